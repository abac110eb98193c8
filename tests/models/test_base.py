"""What all models have in common; test_equivalence.py and test_seq2seq.py have the rest."""

import json

import keras
import numpy as np
import pytest
from support.seq2seq_models import new_model

from keras_transformer import (
    BertEncoder,
    LanguageModel,
    MaskedAccuracy,
    MaskedCrossentropy,
    MaskedLanguageModel,
    Perplexity,
)
from keras_transformer.models import architecture


def test_a_subclass_of_a_model_is_saved_with_its_own_arguments():
    class Narrow(architecture("recurrent")):
        pass

    model = Narrow(13, num_layers=1, d_model=4, d_embedding=3)
    assert Narrow.from_config(model.get_config()).d_model == 4


def test_float64_is_refused():
    with pytest.raises(ValueError, match="Received: dtype=float64"):
        new_model("recurrent", dtype="float64")


def test_config_contains_the_model_that_is_an_argument_and_all_changes_once():
    encoder = BertEncoder(13, num_layers=1, d_model=4, num_heads=2, d_ff=6, max_length=5)
    encoder.embedding.trainable = False
    model = MaskedLanguageModel(encoder)
    model.quantize("int8")
    config = json.loads(json.dumps(model.get_config()))
    assert config["changes"] and "changes" not in config["encoder"]["config"]
    loaded = MaskedLanguageModel.from_config(config)
    assert json.loads(json.dumps(loaded.get_config())) == config
    assert not loaded.encoder.embedding.trainable


@pytest.mark.parametrize(
    "counted",
    [
        {"loss": MaskedCrossentropy()},
        {"metrics": ["accuracy", MaskedAccuracy()]},
        {"weighted_metrics": [Perplexity()]},
    ],
)
def test_compile_refuses_another_padding(counted):
    model = LanguageModel(5, 1, 4, 1, 4, 0.0, 0.0, max_length=4, pad_id=-1)
    with pytest.raises(ValueError, match=r"Use `\w+\(pad_id=-1\)`"):
        model.compile("sgd", **counted)


def test_a_loaded_model_goes_on_training(tmp_path):
    model = LanguageModel(5, 1, 4, 1, 4, 0.0, 0.0, max_length=4, pad_id=-1)
    model.compile("adam", MaskedCrossentropy(pad_id=-1), weighted_metrics=[Perplexity(pad_id=-1)])
    ids = np.array([[1, 0, 3]])
    model.train_on_batch(ids, ids)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        loaded.train_on_batch(ids, ids), model.train_on_batch(ids, ids), rtol=1e-5
    )
