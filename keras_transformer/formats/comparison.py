"""Compares the translations of an exported model with the translations of the model."""

import itertools
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.runs.run import Run
from keras_transformer.translation.base_translator import BaseTranslator

SENTENCES = 32  # most sentences of a run that its model and an export translate
# Pairs of translation and score of one sentence, best first.
Scored = Sequence[tuple[str, float]]


class Agreement(NamedTuple):
    """Tells how closely the translations of an export match the translations of its model."""

    sentences: int  # number of compared sentences
    identical: int  # number of sentences with the same best translation
    largest_difference: float  # in nats, between export's and model's score of equal translations

    def __str__(self) -> str:
        share = self.identical / self.sentences if self.sentences else 1.0
        return (
            f"{share:.1%} of {self.sentences} translations equal the model's; their scores differ "
            f"by at most {self.largest_difference:.1g} nats"
        )


def scored_translations(translator: BaseTranslator, sentences: Sequence[str]) -> list[Scored]:
    """Returns the hypotheses of each sentence as pairs, without warnings about truncation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = translator.translate_nbest(sentences)
    return [[(hypothesis.text, hypothesis.score) for hypothesis in row] for row in found]


def compare_translations(
    format: str,
    translator: BaseTranslator,
    sentences: Sequence[str],
    *answers: Sequence[Scored],
    tolerance: float,
    is_exact: bool = True,
    compares_scores: bool = True,
) -> Agreement:
    """Compares the translations of an export with the translations of its model.

    Args:
        format: Name of the format, for the message.
        translator: The translator of the model, with the search options of the export.
        sentences: Source sentences.
        *answers: Translations by the export, one argument per signature. `identical` counts the
            first.
        tolerance: Scores count as equal if they differ by at most this number of nats.
        is_exact: Whether to raise an error if results differ. Pass False for quantized weights.
        compares_scores: Whether text and score must both equal the model's, where hypotheses of
            equal scores may change places. If False, an equal score or an equal text is enough.

    Raises:
        UserError: If `is_exact` is True and a result does not equal the model's result.
    """
    expected = scored_translations(translator, sentences)
    identical, differences = 0, [0.0]
    for sentence, hypotheses, *rows in zip(sentences, expected, *answers, strict=True):
        identical += rows[0][0][0] == hypotheses[0][0]
        for row in rows:
            scored = row if sentence.strip() else row[:1]  # a blank text has one translation
            for own, found in zip(hypotheses, scored, strict=False):
                is_same, is_near = found[0] == own[0], _difference(own, found) <= tolerance
                is_right = is_near and _is_among(hypotheses, found, tolerance)
                if not compares_scores:
                    is_right = is_near or is_same
                if is_exact and not is_right:
                    raise UserError(
                        f"the {format} translates {sentence!r} to {found[0]!r} with score "
                        f"{found[1]:.4f}, but the model translates it to {own[0]!r} with score "
                        f"{own[1]:.4f}; nothing was written"
                    )
                if is_same:
                    differences.append(_difference(own, found))
    return Agreement(len(sentences), identical, max(differences))


def _difference(one: tuple[str, float], other: tuple[str, float]) -> float:
    """Returns the absolute difference of two scores, or 0 if both are minus infinity."""
    return 0.0 if one[1] == other[1] else abs(one[1] - other[1])


def _is_among(hypotheses: Scored, found: tuple[str, float], tolerance: float) -> bool:
    """Returns whether `found` is one of `hypotheses`, or has the score of the last of them."""
    near = [_difference(x, found) <= tolerance for x in hypotheses]
    same = any(x[0] == found[0] and is_near for x, is_near in zip(hypotheses, near, strict=True))
    return same or (len(near) > 1 and near[-1])


def run_sentences(run: Run) -> list[str]:
    """Returns the run's first validation sentences, or random texts if the run has none."""
    try:
        sources = (source.strip() for source, _ in run.text.pairs("validation"))
        return list(itertools.islice(filter(None, sources), SENTENCES))
    except UserError:
        return random_sentences(run.tokenizer(), SENTENCES)


def random_sentences(tokenizer: Tokenizer, count: int = 16) -> list[str]:
    """Returns texts of 2 to 20 random source pieces. Every call returns the same texts."""
    random, pieces = np.random.default_rng(0), tokenizer.source_pieces
    numbers = tokenizer.eos_id + 1, len(pieces)
    drawn = (random.integers(*numbers, random.integers(2, 21)) for _ in range(count))
    return ["".join(pieces[id] for id in ids).replace("▁", " ").strip() for ids in drawn]
