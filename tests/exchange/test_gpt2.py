"""GPT-2 comes from KerasHub and goes back with equal outputs."""

import keras
import numpy as np
import pytest
from support.contract import randomize, to_numpy

from keras_transformer import LanguageModel
from keras_transformer.exchange import gpt2_from_keras_hub, gpt2_to_keras_hub

V, D, H, F, LONGEST = 29, 12, 2, 20, 7
SIZES = {"num_layers": 2, "num_heads": H, "d_model": D, "d_ff": F, "max_length": LONGEST}
TOKEN_IDS = np.random.default_rng(1).integers(0, V, (3, LONGEST)).astype("int32")


@pytest.fixture(scope="module")
def backbone():
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(V, 2, H, D, F, max_sequence_length=LONGEST)
    randomize(backbone)
    return backbone


def outputs(backbone, token_ids):
    mask = np.ones_like(token_ids)
    return to_numpy(backbone({"token_ids": token_ids, "padding_mask": mask}))


def test_a_backbone_becomes_a_language_model_with_equal_outputs(backbone):
    model = gpt2_from_keras_hub(backbone)
    states = keras.Function(model.input, model.states)(TOKEN_IDS)
    expected = outputs(backbone, TOKEN_IDS)
    np.testing.assert_allclose(to_numpy(states), expected, atol=1e-4)
    logits = to_numpy(backbone.token_embedding(expected, reverse=True))
    np.testing.assert_allclose(to_numpy(model(TOKEN_IDS)), logits, atol=1e-4)
    assert model.pad_id == -1 and model.dropout_rate == model.attention_dropout_rate == 0.1


def test_a_language_model_becomes_a_backbone_with_equal_outputs():
    model = LanguageModel(V, **SIZES)
    randomize(model)
    states = keras.Function(model.input, model.states)(TOKEN_IDS)
    expected = outputs(gpt2_to_keras_hub(model), TOKEN_IDS)
    np.testing.assert_allclose(to_numpy(states), expected, atol=1e-4)


def test_presets_are_asked_for_by_name(backbone, monkeypatch):
    import keras_hub

    presets = {"tiny": backbone}
    monkeypatch.setattr(keras_hub.models.GPT2Backbone, "from_preset", presets.__getitem__)
    assert gpt2_from_keras_hub("tiny").d_model == D


@pytest.mark.parametrize(
    "change",
    [{"activation": "gelu"}, {"position_encoding": "rotary"}, {"attention_dropout_rate": 0.2}],
)
def test_a_model_that_differs_from_gpt2_is_refused(change):
    (argument,) = change
    with pytest.raises(ValueError, match=f"needs a `model` with.*Received: .*{argument}"):
        gpt2_to_keras_hub(LanguageModel(V, **{**SIZES, **change}))


def test_weights_that_would_be_lost_are_refused(backbone):
    model = LanguageModel(V, **SIZES)
    model.decoder.layers[0].feed_forward.inner.enable_lora(2)
    with pytest.raises(ValueError, match="Received: model with the weights .*lora_kernel_a"):
        gpt2_to_keras_hub(model)
    with pytest.raises(ValueError, match="Received: backbone=<Functional"):
        gpt2_from_keras_hub(keras.Model(backbone.inputs, backbone.outputs))
