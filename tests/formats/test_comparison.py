"""The comparison of an export's translations with the model's."""

import pytest

from keras_transformer import Hypothesis
from keras_transformer.errors import UserError
from keras_transformer.formats.comparison import Agreement, compare_translations

TOLERANCE = 1e-3


class FakeTranslator:
    """Always gives the hypotheses x, y and z with the scores -1, -2 and -2, at most `n_best`."""

    def __init__(self, n_best=1):
        self.n_best = n_best

    def translate_nbest(self, sentences):
        texts = [("x", -1.0), ("y", -2.0), ("z", -2.0)][: self.n_best]
        blank = [Hypothesis("", (), 0.0, 0.0, 0)] * self.n_best
        found = [Hypothesis(text, (), score, score, 1) for text, score in texts]
        return [found if sentence else blank for sentence in sentences]


def compared(*answers, n_best=1, **options):
    sentences = ["a"] * len(answers[0])
    return compare_translations(
        "export", FakeTranslator(n_best), sentences, *answers, tolerance=TOLERANCE, **options
    )


def test_equal_translations_are_counted_and_their_scores_compared():
    found = compared([[("x", -1.0)], [("x", -1.0005)]])
    assert found[:2] == (2, 2)
    assert found.largest_difference == pytest.approx(5e-4)
    assert str(found) == (
        "100.0% of 2 translations equal the model's; their scores differ by at most 0.0005 nats"
    )
    assert str(Agreement(0, 0, 0.0)).startswith("100.0% of 0 ")


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


def test_without_scores_equal_texts_or_ties_are_enough():
    assert compared([[("x", -5.0)]], compares_scores=False).identical == 1
    assert compared([[("w", -1.0)]], compares_scores=False).identical == 0
    with pytest.raises(UserError):
        compared([[("w", -1.1)]], compares_scores=False)
