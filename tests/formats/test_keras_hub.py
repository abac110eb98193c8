"""BERT's encoder and GPT-2 come from KerasHub and go back with equal outputs."""

import sys

import keras
import keras_hub
import numpy as np
import pytest
from support.contract import randomize, to_numpy

from keras_transformer import BertEncoder, LanguageModel
from keras_transformer.formats import (
    bert_from_keras_hub,
    bert_to_keras_hub,
    gpt2_from_keras_hub,
    gpt2_to_keras_hub,
)

B, S, V = 2, 7, 13
SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": 11}
TOKEN_IDS = np.random.default_rng(1).integers(1, V, (B, S)).astype("int32")
TOKEN_IDS[0, S - 2 :] = 0  # Padding for BERT, a token for GPT-2.


def new_backbone(name, **options):
    backbone_class = getattr(keras_hub.models, f"{name}Backbone")
    backbone = backbone_class(V, 2, 3, 12, 23, max_sequence_length=11, **options)
    randomize(backbone)
    return backbone


def assert_same_as_bert(encoder, pooler, backbone, segment_ids):
    is_real = TOKEN_IDS != 0
    inputs = {"token_ids": TOKEN_IDS, "segment_ids": segment_ids}
    own = {x.name: inputs[x.name] for x in encoder.inputs}
    states = encoder(own if len(own) > 1 else TOKEN_IDS)
    expected = backbone({**inputs, "padding_mask": is_real.astype("int32")})
    sequence = to_numpy(expected["sequence_output"])[is_real]
    np.testing.assert_allclose(to_numpy(states)[is_real], sequence, atol=1e-4)
    pooled = to_numpy(expected["pooled_output"])
    np.testing.assert_allclose(to_numpy(pooler(states[:, 0])), pooled, atol=1e-4)


@pytest.mark.each_backend
def test_bert_is_the_same_there_and_back(monkeypatch):
    backbone = new_backbone("Bert", num_segments=3)
    presets = {"bert_tiny_en_uncased": backbone}
    monkeypatch.setattr(keras_hub.models.BertBackbone, "from_preset", presets.__getitem__)
    encoder, pooler = bert_from_keras_hub("bert_tiny_en_uncased")
    segment_ids = np.random.default_rng(2).integers(0, 3, (B, S)).astype("int32")
    assert_same_as_bert(encoder, pooler, backbone, segment_ids)
    back = bert_to_keras_hub(encoder, pooler)
    assert back.get_config() == {**backbone.get_config(), "name": back.name}
    for found, expected in zip(back.weights, backbone.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))


@pytest.mark.each_backend
def test_encoder_without_segments_becomes_a_backbone_with_one_segment():
    encoder = BertEncoder(V, **SIZES)
    pooler = keras.layers.Dense(12, activation="tanh")
    pooler.build((None, 12))
    randomize(encoder)
    backbone = bert_to_keras_hub(encoder, pooler)
    assert_same_as_bert(encoder, pooler, backbone, np.zeros((B, S), "int32"))
    assert bert_to_keras_hub(encoder).num_segments == 1


@pytest.mark.each_backend
def test_gpt2_is_the_same_there_and_back():
    backbone = new_backbone("GPT2")
    model = gpt2_from_keras_hub(backbone)
    inputs = {"token_ids": TOKEN_IDS, "padding_mask": np.ones_like(TOKEN_IDS)}
    expected = backbone(inputs)
    states = keras.Function(model.input, model.states)(TOKEN_IDS)
    np.testing.assert_allclose(to_numpy(states), to_numpy(expected), atol=1e-4)
    logits = to_numpy(backbone.token_embedding(expected, reverse=True))
    np.testing.assert_allclose(to_numpy(model(TOKEN_IDS)), logits, atol=1e-4)
    assert model.pad_id == -1 and model.dropout_rate == model.attention_dropout_rate == 0.1
    back = gpt2_to_keras_hub(model)
    np.testing.assert_allclose(to_numpy(back(inputs)), to_numpy(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("model_class", "change"),
    [
        (BertEncoder, {"activation": "relu"}),
        (BertEncoder, {"norm_epsilon": 1e-6}),
        (BertEncoder, {"attention_dropout_rate": 0.0}),
        (LanguageModel, {"activation": "gelu"}),
        (LanguageModel, {"position_encoding": "rotary"}),
        (LanguageModel, {"attention_dropout_rate": 0.2}),
        (LanguageModel, {"use_bias": False}),
        (LanguageModel, {"num_kv_heads": 1}),
        (LanguageModel, {"logits_soft_cap": 5.0}),
        (LanguageModel, {"normalization": "rms"}),
    ],
)
def test_a_model_that_differs_from_the_published_one_is_refused(model_class, change):
    model = model_class(V, **{**SIZES, **change})
    convert = bert_to_keras_hub if model_class is BertEncoder else gpt2_to_keras_hub
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=f"Received: a model with .*'{name}': {value!r}"):
        convert(model)


def test_weights_that_would_be_lost_are_refused():
    with_lora = new_backbone("Bert")
    with_lora.token_embedding.enable_lora(2)
    with pytest.raises(ValueError, match="without quantization and LoRA.*lora_embeddings_a"):
        bert_from_keras_hub(with_lora)
    model = LanguageModel(V, **SIZES)
    model.decoder.layers[0].feed_forward.inner.enable_lora(2)
    with pytest.raises(ValueError, match="Received: model with the weights .*lora_kernel_a"):
        gpt2_to_keras_hub(model)
    encoder = BertEncoder(V, **SIZES)
    with pytest.raises(ValueError, match="`pooler` must be built, with activation tanh"):
        bert_to_keras_hub(encoder, keras.layers.Dense(12, activation="relu"))
    encoder.quantize("int8")
    with pytest.raises(ValueError, match="`encoder` must have only the weights of.*scale"):
        bert_to_keras_hub(encoder)


def test_other_backbones_are_refused():
    roberta = keras_hub.models.RobertaBackbone(V, 1, 3, 12, 23, max_sequence_length=11)
    for convert in (bert_from_keras_hub, gpt2_from_keras_hub):
        with pytest.raises(ValueError, match="`backbone` must be a `keras_hub.models"):
            convert(roberta)


def test_a_missing_keras_hub_is_told_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(ImportError, match="pip install 'keras3-transformer"):
        bert_from_keras_hub("bert_tiny_en_uncased")
