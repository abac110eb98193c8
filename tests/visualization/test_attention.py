"""Attention weights are those of the NumPy reference, and each axis has its tokens."""

import keras
import numpy as np
import pytest
from support import reference
from support.cases import once
from support.contract import weights_of
from support.small_models import inputs_of, new_model, small_model

from keras_transformer import Tokenizer, Transformer, Translator, UserError
from keras_transformer._backend.gradient_checkpointing import gradient_checkpointing
from keras_transformer.layers import DecoderLayer, EncoderLayer, padding_mask
from keras_transformer.visualization import (
    AttentionExample,
    AttentionMap,
    attention_maps,
    attention_rollout,
    head_entropy,
    translation_attention,
)

KINDS = ["encoder"] * 2 + ["decoder", "cross"] * 2


def record_results(monkeypatch, name, index):
    """Returns a list that gets the result `index` of each call of a function of the reference."""
    found, function = [], getattr(reference, name)

    def record(*arguments, **options):
        results = function(*arguments, **options)
        found.append(results[index])
        return results

    monkeypatch.setattr(reference, name, record)
    return found


@pytest.mark.each_backend
@pytest.mark.parametrize(
    "variant",
    ["all_at_once"]
    + once("sinusoidal", "strided_attention", "t5", "local_attention", "fixed_attention"),
)
def test_weights_of_a_transformer_are_those_of_the_reference(variant, monkeypatch):
    model = new_model(variant, num_layers=2)
    inputs = inputs_of(model)
    expected = record_results(monkeypatch, "multi_head_attention", 1)
    reference.transformer(weights_of(model), model.get_config(), **inputs)
    maps = attention_maps(model, inputs)
    assert [each.kind for each in maps] == KINDS
    for each, weights in zip(maps, expected, strict=True):
        np.testing.assert_allclose(each.weights, weights, rtol=0, atol=1e-6)
        np.testing.assert_allclose(each.weights.sum(axis=-1), 1, rtol=0, atol=1e-6)
        hidden = np.broadcast_to(weights == 0, each.weights.shape)
        assert not each.weights[hidden].any()


class _OwnModel(keras.Model):
    """An encoder-only and a decoder-only layer in a model that is built by its first call."""

    def __init__(self):
        super().__init__()
        self.encoder_layer = EncoderLayer(d_model=6, num_heads=3, d_ff=7, name="first")
        self.decoder_layer = DecoderLayer(6, num_heads=2, d_ff=7, use_memory=False)

    def call(self, x):
        return self.decoder_layer(self.encoder_layer(x, padding_mask=padding_mask(x[:, :, 0])))


@pytest.mark.each_backend_if_slow
def test_any_model_with_attention_layers_works_also_with_dropout_and_gradient_checkpointing():
    x = np.ones((1, 5, 6), "float32")
    x[:, 3:] = 0
    model = _OwnModel()
    with gradient_checkpointing():
        maps = attention_maps(model, x)
    assert [(each.kind, each.weights.shape) for each in maps] == [
        ("encoder", (1, 3, 5, 5)),
        ("decoder", (1, 2, 5, 5)),
    ]
    assert maps[0].name.endswith("first/self_attention")
    assert not maps[0].weights[..., 3:].any()
    assert not np.triu(maps[1].weights, 1).any()
    again = attention_maps(model, x)
    np.testing.assert_array_equal(maps[1].weights, again[1].weights)


def test_a_model_without_attention_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="must have attention layers.*class Sequential"):
        attention_maps(model, np.ones((1, 3)))


def test_rollout_multiplies_the_layers_with_residual_connections():
    first = np.array([[1.0, 0.0], [0.5, 0.5]])
    second = np.array([[0.0, 1.0], [0.0, 1.0]])
    maps = [
        AttentionMap("1", "decoder", np.stack([first, first])[None]),
        AttentionMap("2", "decoder", np.stack([second, second])[None]),
    ]
    # (second + I) / 2 = [[1/2, 1/2], [0, 1]] times (first + I) / 2 = [[1, 0], [1/4, 3/4]]
    np.testing.assert_array_equal(attention_rollout(maps), [[[0.625, 0.375], [0.25, 0.75]]])
    cross = AttentionMap("3", "cross", maps[0].weights)
    for wrong in ([], [cross], [maps[0], cross]):
        with pytest.raises(ValueError, match="one stack"):
            attention_rollout(wrong)


def test_entropy_is_the_mean_over_real_queries_in_nats():
    weights = np.array([[[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]]])
    mask = np.array([[True, True, False]])
    np.testing.assert_allclose(head_entropy(weights[None]), [[np.log(8) / 3]])
    np.testing.assert_allclose(head_entropy(weights[None], mask), [[np.log(4) / 2]])


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([("abc de. f", "fed. cba d")] * 9, vocabulary_size=13, model_type="bpe")


def test_words_of_the_models_own_translation_have_scores(tokenizer):
    translator = Translator(small_model(), tokenizer)
    found = translation_attention(translator, "de f")
    (expected,), *_ = translator.translate_nbest(["de f"], word_scores=True)
    assert len(found.word_scores) == len(found.texts[1].split()) > 0
    assert found.word_scores == expected.word_scores
    assert translation_attention(translator, "de f", "cba d").word_scores == ()


def test_rows_and_columns_are_the_tokens_that_are_read_and_predicted(tokenizer):
    model = small_model()
    found = translation_attention(Translator(model, tokenizer), "de f", "cba d")
    source = [tokenizer.source_pieces[id] for id in tokenizer.encode_source(["de f"])[0]]
    target = [tokenizer.target_pieces[id] for id in tokenizer.encode_target(["cba d"])[0]]
    keys, read, predicted = [*source, "</s>"], ["<s>", *target], [*target, "</s>"]
    assert found.tokens == {
        "encoder": (keys, keys),
        "decoder": (read, read),
        "cross": (predicted, keys),
    }
    assert found.texts == ("de f", "cba d")
    assert found.special_tokens == ("<pad>", "<unk>", "<s>", "</s>")
    assert [target for _, target in sorted(found.alignment, key=lambda x: x[1])] == [0, 1]
    ids = {
        "source_ids": np.array([[*tokenizer.encode_source(["de f"])[0], 3]]),
        "target_ids": np.array([[2, *tokenizer.encode_target(["cba d"])[0]]]),
    }
    for each, expected in zip(found.maps, attention_maps(model, ids), strict=True):
        np.testing.assert_array_equal(each.weights, expected.weights)


def test_an_unknown_source_token_is_shown_by_its_characters(tokenizer):
    found = translation_attention(Translator(small_model(), tokenizer), "de 龍😀 f", "cba")
    keys = found.tokens["encoder"][0]
    assert "<unk>" not in keys and "龍😀" in keys
    assert len(keys) == len(tokenizer.encode_source(["de 龍😀 f"])[0]) + 1
    tagged = Tokenizer(tokenizer.source_model, source_prefix=["d"])
    keys = translation_attention(Translator(small_model(), tagged), "龍 f", "cba").tokens[
        "encoder"
    ][0]
    assert keys[0] == "d" and "龍" in keys


def test_an_alignment_is_optional(tokenizer, monkeypatch):
    translator = Translator(small_model(), tokenizer)
    expected = translation_attention(translator, "de f", "cba d")
    monkeypatch.delattr(Transformer, "source_attention")
    found = translation_attention(translator, "de f", "cba d")
    assert expected.alignment and found.alignment == ()
    for one, other in zip(found.maps, expected.maps, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)


def test_what_has_no_attention_is_refused_in_one_line(tokenizer):
    translator = Translator(small_model(), tokenizer)
    for sentence, target in (("", "d"), ("d", ""), ("d " * 20, "d")):
        with pytest.raises(UserError, match="must have 1 to 10 pieces. Received: "):
            translation_attention(translator, sentence, target)
    with pytest.raises(UserError, match="must be UTF-8 text"):
        translation_attention(translator, "d\udcff", "d")


def test_tokens_must_fit_the_weights():
    weights = np.ones((1, 2, 1, 3)) / 3
    tokens = {"cross": (["a"], ["b", "c", "d"])}
    example = AttentionExample([AttentionMap("", "cross", weights)], tokens)
    assert example.kinds == ["cross"]
    np.testing.assert_array_equal(example.layers("cross"), weights)
    for wrong in (weights[..., :2], weights.repeat(2, axis=0)):
        with pytest.raises(ValueError, match=r"shape \(1, H, T, S\).*1 and 3 tokens"):
            AttentionExample([AttentionMap("", "cross", wrong)], tokens)
