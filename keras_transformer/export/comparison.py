"""The comparison of an export with its model, which every exporter makes before it is done."""

import itertools
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import UserError
from keras_transformer.run import Run

# Translations of a sentence with their scores, best first.
Scored = Sequence[tuple[str, float]]


class Comparison(NamedTuple):
    """How the translations of an export compare with those of the model.

    Attributes:
        sentences: Number of sentences.
        identical: Number of those with the same best translation.
        largest_difference: Largest difference of the scores of the same translation, in nats.
    """

    sentences: int
    identical: int
    largest_difference: float

    def __str__(self) -> str:
        share = self.identical / self.sentences if self.sentences else 1.0
        return (
            f"{share:.1%} of {self.sentences} translations are the model's, their scores within "
            f"{self.largest_difference:.1g} nats"
        )


def compare(
    format: str,
    translator: Translator,
    sentences: Sequence[str],
    *answers: Sequence[Scored],
    tolerance: float,
    is_exact: bool = True,
    compares_scores: bool = True,
) -> Comparison:
    """Compares translations by an export with those by its model.

    Args:
        format: Name of the format, for the message.
        translator: Translates with the model and the search of the export, whose `n_best` is that
            of the answers.
        sentences: Source sentences.
        *answers: Translations by the export, of each sentence; the first ones are counted.
        tolerance: Largest difference of scores that is due to rounding.
        is_exact: Whether the export must give the model's results. False for quantized weights.
        compares_scores: Whether the scores of an exact export must be the model's. If False, scores
            are used only to tell a tie, where an exact export may give another translation.

    Returns:
        A `Comparison`.

    Raises:
        UserError: If an exact export gives another translation that is not a tie, or another score.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of truncated sentences: the export truncates them, too
        expected = translator.translate_nbest(sentences)
    identical, differences = 0, [0.0]
    for sentence, hypotheses, *rows in zip(sentences, expected, *answers, strict=True):
        identical += rows[0][0][0] == hypotheses[0].text
        for row in rows:
            scored = row if sentence.strip() else row[:1]  # a blank text has one translation
            for hypothesis, (text, score) in zip(hypotheses, scored, strict=False):
                difference = _difference(hypothesis, score)
                if compares_scores:
                    is_right = difference <= tolerance and _is_among(
                        hypotheses, text, score, tolerance
                    )
                else:
                    is_right = text == hypothesis.text or difference <= tolerance
                if is_exact and not is_right:
                    raise UserError(
                        f"the {format} translates {sentence!r} to {text!r} with score {score:.4f}, "
                        f"the model to {hypothesis.text!r} with {hypothesis.score:.4f}; nothing "
                        "was written"
                    )
                if text == hypothesis.text:
                    differences.append(difference)
    return Comparison(len(sentences), identical, max(differences))


def _difference(hypothesis: Hypothesis, score: float) -> float:
    """Of two scores; 0 for two that are minus infinity."""
    return 0.0 if hypothesis.score == score else abs(hypothesis.score - score)


def _is_among(hypotheses: Sequence[Hypothesis], text: str, score: float, tolerance: float) -> bool:
    """Whether a translation is among the hypotheses, or ties with the last of several."""
    if len(hypotheses) > 1 and abs(hypotheses[-1].score - score) <= tolerance:
        return True
    return any(
        hypothesis.text == text and _difference(hypothesis, score) <= tolerance
        for hypothesis in hypotheses
    )


def run_sentences(run: Run, count: int) -> list[str]:
    """Returns the first sentences of a run's validation text, or random ones if it is missing.

    Args:
        run: A run that has a tokenizer.
        count: Maximum number of sentences.
    """
    try:
        sources = (source.strip() for source, _ in run.pairs("validation"))
        return list(itertools.islice(filter(None, sources), count))
    except UserError:
        return random_sentences(run.tokenizer(), count)


def random_sentences(tokenizer: Tokenizer, count: int, longest: int = 20) -> list[str]:
    """Returns texts of random source pieces; the same ones at every call.

    Args:
        tokenizer: The tokenizer whose pieces are used.
        count: Number of texts.
        longest: Maximum number of drawn pieces per text; the text may be encoded as others.
    """
    random, pieces = np.random.default_rng(0), tokenizer.source_pieces
    numbers = tokenizer.eos_id + 1, len(pieces)
    drawn = (random.integers(*numbers, random.integers(2, longest + 1)) for _ in range(count))
    return ["".join(pieces[id] for id in ids).replace("▁", " ").strip() for ids in drawn]
