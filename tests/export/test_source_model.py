"""What all exporters share: checks, weights and the comparison."""

import keras
import numpy as np
import pytest
from keras import ops
from keras_transformer.export.source_model import (
    Comparison,
    array,
    check_attention,
    check_model,
    compare,
    position_table,
    random_sentences,
)
from support.contract import to_numpy
from support.parallel_text import SENTENCES
from support.seq2seq_models import SIZES
from support.seq2seq_models import new_model as new_seq2seq_model
from support.small_models import LENGTH, small_model

from keras_transformer import Hypothesis
from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.models import Transformer

V = 60
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=V, joint=False)


def new_model(vocabulary_size=V):
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 4}
    return Transformer(vocabulary_size, target_vocabulary_size=V, **sizes)


def test_only_transformers_with_their_own_tokenizer_are_exported(tokenizer):
    check_model(new_model(), tokenizer)
    with pytest.raises(ValueError, match="must be the model's tokenizer.*61, 60, 0.*60, 60, 0"):
        check_model(new_model(61), tokenizer)
    with pytest.raises(ValueError, match="must be a Seq2Seq.*Received: model=<Sequential"):
        check_model(keras.Sequential(), tokenizer)


def test_arrays_are_float32_whatever_they_were():
    for dtype in ("bfloat16", "float32", "int32"):
        value = array(ops.cast([1, 2, 3], dtype))
        assert value.dtype == np.float32
        assert value.tolist() == [1, 2, 3]


def test_sinusoids_by_hand():
    table = position_table(small_model())
    rates = 10_000.0 ** (-np.arange(0, 12, 2) / 12)
    angles = np.arange(LENGTH)[:, None] * rates
    np.testing.assert_allclose(table[:, 0::2], np.sin(angles), atol=1e-5)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angles), atol=1e-5)


def test_learned_positions_are_the_weights():
    model = small_model("learned")
    table = position_table(model)
    np.testing.assert_array_equal(table, to_numpy(model.positions.position_embeddings))


@pytest.mark.parametrize("variant", ["rotary", "none"])
def test_nothing_is_added_where_positions_are_elsewhere(variant):
    assert position_table(small_model(variant)) is None


@pytest.mark.parametrize(
    "options, received",
    [
        ({"attention_pattern": "local", "attention_window": 3}, "model.attention_pattern='local'"),
        ({"position_encoding": "alibi"}, "model.position_encoding='alibi'"),
        ({"position_encoding": "t5"}, "model.position_encoding='t5'"),
    ],
)
def test_what_a_format_does_not_support_is_refused_by_name(options, received):
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 4}
    check_attention(Transformer(9, **sizes), "It")
    check_attention(Transformer(9, **sizes, attention_pattern="full"), "It")
    with pytest.raises(ValueError, match=f"It does not support .*Received: {received}"):
        check_attention(Transformer(9, **sizes, **options), "It")


@pytest.mark.parametrize("name", SIZES)
def test_other_architectures_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"It supports only .* of the architecture {name}"):
        check_attention(new_seq2seq_model(name), "It")


class FakeTranslator:
    """Always gives the hypotheses x, y and z with the scores -1, -2 and -2, at most `n_best`."""

    def __init__(self, n_best=1, is_trained=True):
        self.n_best, self.is_trained = n_best, is_trained

    def translate_nbest(self, sentences):
        texts = [("x", -1.0), ("y", -2.0), ("z", -2.0)][: self.n_best]
        blank = [Hypothesis("", (), 0.0, 0.0, 0)] * self.n_best
        found = [Hypothesis(text, (), score, score, 1) for text, score in texts]
        return [found if sentence and self.is_trained else blank for sentence in sentences]


def compared(*answers, n_best=1, **options):
    sentences = ["a"] * len(answers[0])
    return compare(
        "export", FakeTranslator(n_best), sentences, *answers, tolerance=TOLERANCE, **options
    )


def test_equal_translations_are_counted_and_their_scores_compared():
    found = compared([[("x", -1.0)], [("x", -1.0005)]])
    assert found[:2] == (2, 2)
    assert found.largest_difference == pytest.approx(5e-4)
    assert str(found) == (
        "100.0% of 2 translations equal the model's; their scores differ by at most 0.0005 nats"
    )
    assert str(Comparison(0, 0, 0.0)).startswith("100.0% of 0 ")


@pytest.mark.parametrize("answer", [("y", -1.0), ("x", -1.1), ("x", float("nan")), ("y", -2.0)])
def test_another_translation_or_score_is_an_error(answer):
    with pytest.raises(
        UserError, match="^the export translates 'a' to .* the model translates it to 'x'"
    ):
        compared([[answer]])


def test_every_answer_and_every_beam_is_compared():
    best, beams = [[("x", -1.0)]], [[("x", -1.0), ("y", -2.0)]]
    assert compared(best, beams, n_best=2).identical == 1
    with pytest.raises(UserError, match="to 'y' with score -2.5000, .* to 'y' with score -2.0000"):
        compared(best, [[("x", -1.0), ("y", -2.5)]], n_best=2)


def test_beams_that_tie_may_change_places_and_fall_out_at_the_end():
    assert compared([[("x", -1.0), ("z", -2.0), ("y", -2.0)]], n_best=3).identical == 1
    assert compared([[("x", -1.0), ("y", -2.0), ("w", -2.0)]], n_best=3).identical == 1
    with pytest.raises(UserError):
        compared([[("w", -1.0), ("y", -2.0), ("z", -2.0)]], n_best=3)


def test_of_quantized_weights_nothing_is_required():
    found = compared([[("x", -1.0)], [("w", -9.0)]], is_exact=False)
    assert found[:3] == (2, 1, 0.0)


def test_without_scores_equal_texts_or_ties_are_enough():
    assert compared([[("x", -5.0)]], compares_scores=False).identical == 1
    assert compared([[("w", -1.0)]], compares_scores=False).identical == 0
    with pytest.raises(UserError):
        compared([[("w", -1.1)]], compares_scores=False)


def test_a_blank_sentence_has_one_translation():
    answers = [[("", 0.0), ("", -float("inf"))]]
    found = compare("export", FakeTranslator(2), [""], answers, tolerance=0.0)
    assert found == (1, 1, 0.0, False)


SAME = "nats. But all translations are the same text, so check that the model is trained"


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_model_that_gives_only_empty_translations_is_reported(is_trained):
    answers = [[("x" if is_trained else "", -1.0 if is_trained else 0.0)], [("", 0.0)]]
    found = compare("it", FakeTranslator(1, is_trained), ["a", ""], answers, tolerance=0.0)
    assert str(found).endswith("nats" if is_trained else SAME)


def test_a_model_that_gives_the_same_translation_for_all_sentences_is_reported():
    answers = [[("x", -1.0)], [("x", -1.0)]]
    assert str(compare("it", FakeTranslator(1), ["a", "b"], answers, tolerance=0.0)).endswith(SAME)


def test_random_sentences_are_the_same_at_every_call_and_of_known_pieces(tokenizer):
    sentences = random_sentences(tokenizer, 9, longest=5)
    assert sentences == random_sentences(tokenizer, 9, longest=5)
    assert len(set(sentences)) > 1
    for ids in tokenizer.encode_source(sentences):
        assert tokenizer.unk_id not in ids
