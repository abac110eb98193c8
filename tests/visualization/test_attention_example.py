"""The attention of a sentence and its translation, with the tokens of each axis."""

import numpy as np
import pytest
from support.small_models import small_model

from keras_transformer import Tokenizer, Transformer, Translator, UserError
from keras_transformer.visualization import (
    AttentionExample,
    AttentionMap,
    attention_maps,
    translation_attention,
)


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
