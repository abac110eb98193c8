"""BERT, GPT-2, Llama and Qwen 3 come from KerasHub and go back with equal outputs."""

import sys

import keras
import keras_hub
import numpy as np
import pytest
from support.cases import most_once
from support.contract import assert_same_arrays, randomize, to_numpy
from support.parallel_text import SENTENCES

from keras_transformer import (
    BertEncoder,
    LanguageModel,
    SearchOptions,
    Tokenizer,
    search,
)
from keras_transformer.formats import (
    bert_from_keras_hub,
    bert_to_keras_hub,
    gpt2_from_keras_hub,
    gpt2_to_keras_hub,
    llama_from_keras_hub,
    llama_to_keras_hub,
    qwen3_from_keras_hub,
    qwen3_to_keras_hub,
)

B, S, V = 2, 7, 13
SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": 11}
TOKEN_IDS = np.random.default_rng(1).integers(1, V, (B, S)).astype("int32")
TOKEN_IDS[0, S - 2 :] = 0  # Padding for BERT, a token for GPT-2.
LENGTHS = [S - 2, S]  # without the padding of a decoder
IS_REAL = np.arange(S) < np.array(LENGTHS)[:, None]
PROMPTS = np.where(IS_REAL, TOKEN_IDS, -1)
CONVERTERS = {
    "GPT2": (gpt2_from_keras_hub, gpt2_to_keras_hub),
    **dict.fromkeys(("Llama", "Llama3"), (llama_from_keras_hub, llama_to_keras_hub)),
    "Qwen3": (qwen3_from_keras_hub, qwen3_to_keras_hub),
}
QWEN3 = {"head_dim": 6, "sliding_window_size": None}
DECODERS = {
    "gpt_2": ("GPT2", {}),
    "llama": ("Llama", {}),
    "llama_3_tied": ("Llama3", {"tie_word_embeddings": True, "rope_max_wavelength": 500_000}),
    "qwen_3": ("Qwen3", {**QWEN3, "layer_norm_epsilon": 1e-3, "dropout": 0.1}),
    "qwen_3_untied": ("Qwen3", {**QWEN3, "num_key_value_heads": 1, "tie_word_embeddings": False}),
}


def new_bert(**options):
    return randomize(
        keras_hub.models.BertBackbone(V, 2, 3, 12, 23, max_sequence_length=11, **options)
    )


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


@pytest.mark.each_backend_if_slow
def test_bert_is_the_same_there_and_back(monkeypatch):
    backbone = new_bert(num_segments=3)
    presets = {"bert_tiny_en_uncased": backbone}
    monkeypatch.setattr(keras_hub.models.BertBackbone, "from_preset", presets.__getitem__)
    encoder, pooler = bert_from_keras_hub("bert_tiny_en_uncased")
    segment_ids = np.random.default_rng(2).integers(0, 3, (B, S)).astype("int32")
    assert_same_as_bert(encoder, pooler, backbone, segment_ids)
    back = bert_to_keras_hub(encoder, pooler)
    assert back.get_config() == {**backbone.get_config(), "name": back.name}
    assert_same_arrays(back.weights, backbone.weights)


@pytest.mark.each_backend
def test_encoder_without_segments_becomes_a_backbone_with_one_segment():
    encoder = BertEncoder(V, **SIZES)
    pooler = keras.layers.Dense(12, activation="tanh")
    pooler.build((None, 12))
    randomize(encoder)
    backbone = bert_to_keras_hub(encoder, pooler)
    assert_same_as_bert(encoder, pooler, backbone, np.zeros((B, S), "int32"))
    assert bert_to_keras_hub(encoder).num_segments == 1


def new_decoder(name, **options):
    """Random weights with small queries and keys, for which the epsilon of their norms counts."""
    sizes = {"num_layers": 2, "hidden_dim": 16, "intermediate_dim": 23}
    heads = {"num_query_heads": 4, "num_key_value_heads": 2}
    if name == "GPT2":
        heads = {"num_heads": 4, "max_sequence_length": 11}
    backbone_class = getattr(keras_hub.models, f"{name}Backbone")
    backbone = randomize(backbone_class(vocabulary_size=V, **{**sizes, **heads, **options}))
    for weight in backbone.weights if name == "Qwen3" else ():
        if weight.path.endswith(("query/kernel", "key/kernel")):
            weight.assign(weight * 0.004)
    return backbone


def converted(case):
    """A backbone, the model from it, and the function for the way back."""
    name, options = DECODERS[case]
    backbone = new_decoder(name, **options)
    load, export = CONVERTERS[name]
    return backbone, load(backbone), export


def log_probabilities(backbone, token_ids):
    states = backbone({"token_ids": token_ids, "padding_mask": np.ones_like(token_ids)})
    logits = backbone.token_embedding(states, reverse=True)
    return to_numpy(keras.ops.log_softmax(logits, axis=-1))


@pytest.mark.each_backend
@pytest.mark.parametrize("case", most_once(DECODERS, "gpt_2", "llama_3_tied"))
def test_decoders_are_the_same_there_and_back(case):
    backbone, model, export = converted(case)
    inputs = {"token_ids": TOKEN_IDS, "padding_mask": IS_REAL.astype("int32")}
    expected = backbone(inputs)
    states = keras.Function(model.input, model.states)(PROMPTS)
    np.testing.assert_allclose(to_numpy(states)[IS_REAL], to_numpy(expected)[IS_REAL], atol=1e-5)
    logits = to_numpy(backbone.token_embedding(expected, reverse=True))[IS_REAL]
    np.testing.assert_allclose(to_numpy(model(PROMPTS))[IS_REAL], logits, atol=1e-5)
    assert model.pad_id == -1
    back = export(model)
    ignored = {"name": None, "trainable": None}
    assert {**back.get_config(), **ignored} == {**backbone.get_config(), **ignored}
    assert back.token_embedding.tie_weights == backbone.token_embedding.tie_weights
    assert_same_arrays(back.weights, backbone.weights, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(back(inputs)), to_numpy(expected), atol=1e-5)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize("case", ["llama", "qwen_3"])
def test_decoders_search_as_keras_hub_generates(case):
    steps = 5
    backbone, model, _ = converted(case)
    causal_lm = getattr(keras_hub.models, f"{DECODERS[case][0]}CausalLM")(backbone, None)
    causal_lm.compile(sampler="greedy")
    inputs = {"token_ids": TOKEN_IDS, "padding_mask": IS_REAL.astype("int32")}
    inputs = {name: np.pad(x, ((0, 0), (0, steps))) for name, x in inputs.items()}
    expected = causal_lm.generate(inputs, stop_token_ids=None)["token_ids"]
    found = search(model, PROMPTS, max_length=steps, options=SearchOptions(beam_size=1))
    for row, length in enumerate(LENGTHS):
        ids = to_numpy(found.ids)[row, 0]
        np.testing.assert_array_equal(ids, expected[row, length : length + steps])
        text = np.concatenate([TOKEN_IDS[row, :length], ids])[None]
        logs = log_probabilities(backbone, text)[0, length - 1 : -1]
        score = logs[np.arange(steps), ids].sum()
        np.testing.assert_allclose(to_numpy(found.log_probabilities)[row, 0], score, atol=1e-4)


def test_a_sliding_window_becomes_local_attention(monkeypatch):
    # KerasHub ignores the window where it calls a fused kernel.
    attention = sys.modules["keras_hub.src.models.qwen3.qwen3_attention"]
    monkeypatch.setattr(attention, "fused_attention_op_available", lambda: False)
    backbone = new_decoder("Qwen3", **{**QWEN3, "sliding_window_size": 3})
    model = qwen3_from_keras_hub(backbone, max_length=50)
    assert (model.attention_pattern, model.attention_window, model.max_length) == ("local", 2, 50)
    found = to_numpy(keras.ops.log_softmax(model(TOKEN_IDS), axis=-1))
    np.testing.assert_allclose(found, log_probabilities(backbone, TOKEN_IDS), atol=1e-5)
    assert qwen3_to_keras_hub(model).sliding_window_size == 3


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        (
            "Llama3",
            {
                **{"rope_frequency_adjustment_factor": 8.0, "rope_low_freq_factor": 1.0},
                **{"rope_high_freq_factor": 4.0, "rope_pretraining_sequence_length": 8192},
            },
            "Received: a backbone with {'rope_frequency_adjustment_factor': 8.0}",
        ),
        ("Llama", {"rope_position_scaling_factor": 2.0}, "'rope_position_scaling_factor': 2.0"),
        ("Qwen3", {**QWEN3, "rope_scaling_factor": 4.0}, "with {'rope_scaling_factor': 4.0}"),
    ],
)
def test_a_backbone_with_other_rotary_positions_is_refused(name, options, match):
    with pytest.raises(ValueError, match=match):
        CONVERTERS[name][0](new_decoder(name, **options))


MODERN = {"position_encoding": "rotary", "activation": "swiglu", "normalization": "rms"}
MODERN |= {"use_bias": False, "num_kv_heads": 1}
EXPORTED = {
    bert_to_keras_hub: (BertEncoder, {}),
    gpt2_to_keras_hub: (LanguageModel, {}),
    llama_to_keras_hub: (LanguageModel, MODERN),
    qwen3_to_keras_hub: (LanguageModel, {**MODERN, "qk_norm": True}),
}


@pytest.mark.parametrize(
    ("exports", "change"),
    [
        ([bert_to_keras_hub], {"activation": "relu"}),
        ([bert_to_keras_hub], {"norm_epsilon": 1e-6}),
        ([gpt2_to_keras_hub], {"position_encoding": "rotary"}),
        ([gpt2_to_keras_hub], {"attention_dropout_rate": 0.2}),
        ([gpt2_to_keras_hub], {"num_kv_heads": 1}),
        *(
            ([llama_to_keras_hub, qwen3_to_keras_hub], change)
            for change in (
                {"activation": "geglu"},
                {"attention_soft_cap": 5.0},
                {"norm_first": False},
                {"attention_pattern": ["local"], "attention_window": 3},
                {"attention_dropout_rate": 0.0},
            )
        ),
    ],
)
def test_a_model_that_differs_from_the_published_one_is_refused(exports, change):
    name, value = next(iter(change.items()))
    for export in exports:
        model_class, own = EXPORTED[export]
        model = model_class(V, **{**SIZES, **own, **change})
        with pytest.raises(ValueError, match="Received: a model with {") as error:
            export(model)
        assert f"{{{name!r}: {value!r}}}" in str(error.value)  # no other argument is named


def test_weights_that_would_be_lost_are_refused():
    with_lora = new_bert()
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
    converters = (bert_from_keras_hub, gpt2_from_keras_hub)
    for convert in (*converters, llama_from_keras_hub, qwen3_from_keras_hub):
        with pytest.raises(ValueError, match="`backbone` must be a `keras_hub.models"):
            convert(roberta)


def test_its_tokenizer_gives_the_same_ids_in_a_tensorflow_graph():
    import tensorflow as tf

    texts = [line for pair in SENTENCES for line in pair]
    texts += [
        "",
        "<Ａ> a dog",
        "a <Ａ>dog",
        " two  spaces ",
        "Großer ＨＵＮＤ",
        "漢字 x\ty",
        "<s> </s>",
    ]
    found = []
    for normalization in ("identity", "nmt_nfkc"):
        own = Tokenizer.train(SENTENCES, 120, normalization=normalization, tags=["<Ａ>"])
        theirs = keras_hub.tokenizers.SentencePieceTokenizer(proto=own.source_model)
        signature = [tf.TensorSpec([None], tf.string)]
        in_graph = tf.function(theirs.tokenize, input_signature=signature)
        found.append(in_graph(tf.constant(texts)).to_list())
        assert found[-1] == own.encode_source(texts)
    assert found[0] != found[1]
