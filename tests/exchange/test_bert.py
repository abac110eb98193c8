"""BERT's encoder and KerasHub's give the same outputs with the same weights."""

import keras
import keras_hub
import numpy as np
import pytest
from support.contract import randomize, to_numpy

from keras_transformer import BertEncoder
from keras_transformer.exchange import bert_from_keras_hub, bert_to_keras_hub

B, S, V = 2, 7, 13
SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": 11}


def new_backbone(**options):
    backbone = keras_hub.models.BertBackbone(V, 2, 3, 12, 23, max_sequence_length=11, **options)
    randomize(backbone)
    return backbone


@pytest.fixture(scope="module")
def backbone():
    """Tests share it, and therefore must not change it."""
    return new_backbone(num_segments=3)


@pytest.fixture
def inputs():
    generator = np.random.default_rng(1)
    ids = generator.integers(1, V, (B, S)).astype("int32")
    ids[0, S - 2 :] = 0
    segments = generator.integers(0, 3, (B, S)).astype("int32")
    return {"token_ids": ids, "segment_ids": segments, "padding_mask": (ids != 0).astype("int32")}


def assert_same_outputs(encoder, pooler, backbone, inputs):
    is_real = inputs["token_ids"] != 0
    own = {x.name: inputs[x.name] for x in encoder.inputs}
    states, expected = encoder(own if len(own) > 1 else own["token_ids"]), backbone(inputs)
    sequence = to_numpy(expected["sequence_output"])[is_real]
    np.testing.assert_allclose(to_numpy(states)[is_real], sequence, atol=1e-4)
    pooled = to_numpy(expected["pooled_output"])
    np.testing.assert_allclose(to_numpy(pooler(states[:, 0])), pooled, atol=1e-4)


def test_outputs_are_the_same_there_and_back(backbone, inputs):
    encoder, pooler = bert_from_keras_hub(backbone)
    assert_same_outputs(encoder, pooler, backbone, inputs)
    back = bert_to_keras_hub(encoder, pooler)
    assert back.get_config() == {**backbone.get_config(), "name": back.name}
    for found, expected in zip(back.weights, backbone.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))


def test_encoder_without_segments_becomes_a_backbone_with_one_segment(inputs):
    encoder = BertEncoder(V, **SIZES)
    pooler = keras.layers.Dense(12, activation="tanh")
    pooler.build((None, 12))
    randomize(encoder)
    backbone = bert_to_keras_hub(encoder, pooler)
    inputs["segment_ids"] = np.zeros((B, S), "int32")
    assert_same_outputs(encoder, pooler, backbone, inputs)
    assert bert_to_keras_hub(encoder).num_segments == 1


def test_a_name_is_that_of_a_preset(backbone, monkeypatch):
    presets = {"bert_tiny_en_uncased": backbone}
    monkeypatch.setattr(keras_hub.models.BertBackbone, "from_preset", presets.__getitem__)
    encoder, _ = bert_from_keras_hub("bert_tiny_en_uncased")
    assert encoder.num_segments == 3


def test_what_a_backbone_has_beyond_bert_is_refused():
    roberta = keras_hub.models.RobertaBackbone(V, 1, 3, 12, 23, max_sequence_length=11)
    with pytest.raises(ValueError, match="must be a `keras_hub.models.BertBackbone`"):
        bert_from_keras_hub(roberta)
    with_lora = new_backbone()
    with_lora.token_embedding.enable_lora(2)
    with pytest.raises(ValueError, match="without quantization and LoRA.*lora_embeddings_a"):
        bert_from_keras_hub(with_lora)
    with pytest.raises(ValueError, match="one dtype policy, without quantization"):
        bert_from_keras_hub(new_backbone(dtype=keras.dtype_policies.DTypePolicyMap()))


def test_what_an_encoder_has_beyond_bert_is_refused():
    for name, value in (
        ("activation", "relu"),
        ("norm_epsilon", 1e-6),
        ("attention_dropout_rate", 0.0),
    ):
        with pytest.raises(ValueError, match=f"Received: encoder with .*'{name}': {value!r}"):
            bert_to_keras_hub(BertEncoder(V, **{**SIZES, name: value}))
    encoder = BertEncoder(V, **SIZES)
    with pytest.raises(ValueError, match="`pooler` must be a built"):
        bert_to_keras_hub(encoder, keras.layers.Dense(12, activation="relu"))
    encoder.quantize("int8")
    with pytest.raises(ValueError, match="`encoder` must have only the weights of.*scale"):
        bert_to_keras_hub(encoder)
