"""What all models have in common; test_equivalence.py and test_seq2seq.py have the rest."""

import json

import numpy as np
import pytest
from support.seq2seq_models import new_model

from keras_transformer import BertEncoder, LanguageModel, MaskedCrossentropy, MaskedLanguageModel
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


def test_a_loss_with_another_padding_is_refused():
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 1, "d_ff": 4, "max_length": 4}
    model = LanguageModel(5, **sizes, pad_id=-1)
    ids = np.zeros((1, 2), "int32")
    model.compile("sgd", MaskedCrossentropy())
    for use in (model.evaluate, model.train_on_batch):
        with pytest.raises(ValueError, match=r"MaskedCrossentropy\(pad_id=-1\)"):
            use(ids, ids)
    model.compile("sgd", MaskedCrossentropy(pad_id=-1))
    assert model.evaluate(ids, ids, verbose=0) > 0
