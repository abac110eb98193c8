"""Bahdanau's model finds the source words that it translates."""

import keras
import numpy as np
import pytest
from support.contract import to_numpy
from support.seq2seq_models import small_model
from support.small_models import inputs_of

from keras_transformer.training import MaskedCrossentropy


def test_the_encoder_reads_in_both_directions():
    """The memory at the first and at the last token depends on every token."""
    model = small_model("attentional_recurrent")
    source_ids = inputs_of(model)["source_ids"][1:]
    memory = to_numpy(model.init_cache(source_ids, 3).sentence["memory"])
    for position in (0, 3, source_ids.shape[1] - 1):
        other = source_ids.copy()
        other[0, position] = (other[0, position] + 1) % model.vocabulary_size or 1
        changed = to_numpy(model.init_cache(other, 3).sentence["memory"])
        difference = np.abs(changed - memory)[0]
        assert (difference[[0, -1]].max(axis=-1) > 1e-6).all()
        forward = difference[:, : model.d_model].max(axis=-1)
        assert (forward[:position] == 0).all() and (forward[position:] > 0).all()


@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`")
def test_training_asks_for_no_program_that_cannot_be_compiled():
    """On TensorFlow, XLA cannot compile the gradient of the loop over target tokens."""
    model = small_model("attentional_recurrent")
    inputs = inputs_of(model)
    model.compile("sgd", MaskedCrossentropy(), jit_compile=keras.config.backend() != "torch")
    loss = model.train_on_batch(inputs, np.ones_like(inputs["target_ids"]))
    assert np.isfinite(loss)
    assert model.jit_compile == (keras.config.backend() == "jax")
