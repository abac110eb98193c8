"""Joined parts, copied characters and minimum Bayes risk."""

import math
from dataclasses import replace

import numpy as np
import pytest
from keras import ops
from sacrebleu.metrics import CHRF
from support.fake_models import BOS, PAD
from support.small_models import small_model

from keras_transformer.translation.hypothesis import (
    Hypothesis,
    SourcePart,
    expected_utilities,
    with_copies,
)
from keras_transformer.translation.long_lines import join_hypotheses
from keras_transformer.visualization import attention_maps

FIRST = Hypothesis("ein Hund .", (4, 5, 6), -1.0, -2.0, 4, ((1, 0), (1, 1), (2, 2)))
SECOND = Hypothesis("er bellt .", (7, 8), -0.5, -0.25, 3, ((0, 1), (1, 0)))
SOURCES = [SourcePart(0, 0, [3], "a dog .", 0), SourcePart(0, 1, [3], "it barks .", 3)]
SAMPLES = ["a dog sleeps", "two cats", "a dog sleeps", "a dog sleeping", "a dog"]


def test_parts_are_joined_and_summed_and_alignments_move_by_the_words_before():
    pairs = ((0, 4), (1, 0), (1, 1), (1, 3), (2, 2))
    expected = Hypothesis("ein Hund . er bellt .", (4, 5, 6, 7, 8), -1.5, -2.25, 7, pairs)
    assert join_hypotheses(SOURCES, [FIRST, SECOND]) == expected
    missing = Hypothesis("", (), -math.inf, -math.inf, 0, ())
    assert join_hypotheses(SOURCES, [SECOND, missing]) == missing


def test_the_scores_of_the_halves_of_a_word_are_averaged():
    first = replace(FIRST, word_scores=(-1.0, -2.0, -3.0))
    half = SourcePart(0, 1, [3], "y", 1)  # It continues the second word.
    second = Hypothesis("y z", (7,), -0.5, -0.25, 3, (), (-5.0, -6.0))
    joined = join_hypotheses([SourcePart(0, 0, [3], "a x", 0), half], [first, second])
    assert joined.text == "ein Hund .y z"
    assert joined.word_scores == (-1.0, -2.0, -4.0, -6.0)


def test_attention_is_that_of_the_last_layer_over_all_positions_at_once():
    model = small_model()
    generator = np.random.default_rng(3)
    source_ids = generator.integers(4, 13, (2, 7)).astype("int32")
    source_ids[0, 5:] = PAD
    target_ids = generator.integers(4, 13, (2, 3, 30)).astype("int32")
    target_ids[..., 0] = BOS
    target_ids[1, 2, 4:] = PAD
    attention = model.source_attention(ops.convert_to_tensor(source_ids), target_ids)
    pairs = {"source_ids": np.repeat(source_ids, 3, 0), "target_ids": target_ids.reshape(6, 30)}
    *_, last = attention_maps(model, pairs)
    expected = last.weights.mean(axis=1).reshape(2, 3, 30, 7)
    expected[target_ids == PAD] = 0
    np.testing.assert_allclose(ops.convert_to_numpy(attention), expected, atol=1e-5)


class Pieces:
    """A tokenizer whose ids are indices of pieces."""

    target_pieces = ["▁I", "▁mag", "▁", "ö", "ft", "er", ".", "▁sehr", "我", "爱"]

    def decode_target(self, ids):
        text = ["".join(self.target_pieces[id] for id in row) for row in ids]
        return [x.replace("▁", " ").strip() for x in text]


@pytest.mark.parametrize(
    ("ids", "shares", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 0.5, 0.4, 0.4, 0.1], "I mag 😀."),
        ([0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 0.3, 0.2, 0.1, 0.5], "I mag öfter."),
        ([0, 2, 6, 7], [0, 0.5, 0.5, 0.1], "I . sehr"),
        ([0, 1, 7], [0.4, 0.5, 0.1], "I 😀 sehr"),  # only once
        ([8, 9, 6], [0.1, 0.5, 0.1], "我😀."),
        ([], [], ""),
    ],
)
def test_an_unknown_character_replaces_the_word_with_more_than_half_of_its_attention_to_it(
    ids, shares, expected
):
    """A third of the attention of each piece is to eos, which does not count."""
    other = [2 / 3 - share for share in shares]
    attention = np.array([other, shares, [1 / 3] * len(ids)]).T.reshape(-1, 3)
    assert with_copies(Pieces(), ids, attention, [None, "😀"]) == expected


def test_is_the_mean_of_sacrebleus_chrf_over_all_samples():
    found = expected_utilities(SAMPLES)
    for candidate in set(SAMPLES):
        scores = [CHRF().sentence_score(candidate, [sample]).score for sample in SAMPLES]
        assert found[candidate] == pytest.approx(sum(scores) / len(SAMPLES))
