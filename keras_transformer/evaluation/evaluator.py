"""Scores translations of one text, and compares them with other translations of the text."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sacrebleu.significance import PairedTest

from keras_transformer.data.parallel_text import read_parallel
from keras_transformer.data.text_files import read_lines
from keras_transformer.errors import UserError
from keras_transformer.evaluation.metrics import MetricName, new_metric

SignificanceTest = Literal["bootstrap", "randomization"]
# The number of words of the longest sentence in each length bucket.
_BUCKETS = {"0-5": 5, "6-10": 10, "11-15": 15, "16-20": 20, "21-30": 30, "31-50": 50, "51+": np.inf}
# The name of each test in sacrebleu's code.
_TESTS = {"bootstrap": "bs", "randomization": "ar"}


@dataclass(frozen=True)
class Score:
    """A metric, its value in percent, and its settings as a sacrebleu signature."""

    metric: str
    score: float
    signature: str


@dataclass(frozen=True)
class Significance:
    """The result of a paired significance test between a baseline and a system.

    `baseline` and `score` are in percent. `samples` were drawn with the random seed `seed`.
    """

    test: SignificanceTest
    metric: str
    baseline: float
    score: float
    p_value: float
    samples: int
    seed: str
    signature: str


@dataclass(frozen=True)
class ScoreDifference:
    """How much the score of a system is above that of a baseline, with a 95 % confidence interval.

    Scores are in percent. `samples` bootstrap samples were drawn with the random seed `seed`.
    """

    metric: str
    difference: float
    low: float
    high: float
    samples: int
    seed: str


@dataclass(frozen=True)
class LengthBucket:
    """The scores of all sentences with a number of words in a range, such as "6-10"."""

    words: str
    sentences: int
    scores: dict[str, float]


class Evaluator:
    """Scores translations of one text, and compares them with other translations of the text.

    All metrics are sacrebleu's, except for exact matches and COMET. All scores are in percent.
    COMET's scores are multiplied by 100. Higher scores are better, except for TER.

    Example:

    ```python
    evaluator = Evaluator(["Ein Hund schläft."], metrics=["bleu", "chrf", "ter"])
    for score in evaluator.scores(["Der Hund schläft."]):
        print(score.metric, score.score, score.signature)
    ```

    Args:
        references: The reference translation of each sentence.
        sources: The source sentences. The metric `"comet"` needs them. Defaults to None.
        metrics: Names from `"bleu"`, `"chrf"`, `"ter"`, `"exact-match"` (the percentage of
            translations that equal their references) and `"comet"`. Defaults to BLEU and chrF.
        tokenize: Tokenization of BLEU, as in sacrebleu. Defaults to `"13a"`.
        lowercase: Whether BLEU ignores case. Defaults to False.
        comet_model: A checkpoint file of COMET, or the name of a model that COMET downloads, such
            as `"Unbabel/wmt22-comet-da"`. Defaults to None.

    Attributes:
        metrics: The names of the metrics, in the order of all results.

    Raises:
        UserError: If there are no sentences, if `sources` and `references` differ in their number,
            or if a package or model that a metric needs is missing.
    """

    def __init__(
        self,
        references: Sequence[str],
        sources: Sequence[str] | None = None,
        metrics: Sequence[MetricName] = ("bleu", "chrf"),
        *,
        tokenize: str = "13a",
        lowercase: bool = False,
        comet_model: str | None = None,
    ) -> None:
        self.references = tuple(references)
        self.sources = None if sources is None else tuple(sources)
        if not self.references:
            raise UserError("there must be at least one reference. Received: none")
        if self.sources is not None:
            self.check_aligned("the sources", self.sources)
        self.metrics = tuple(dict.fromkeys(metrics))
        settings = tokenize, lowercase, self.sources, comet_model
        self._metrics = [new_metric(name, *settings) for name in self.metrics]

    @classmethod
    def from_files(
        cls, reference: Path, source: Path | None = None, **settings: Any
    ) -> "Evaluator":
        """Returns an `Evaluator` with the text of files. They are read as by `read_parallel`."""
        sources = [x for x, _ in read_parallel(source, reference)] if source else None
        return cls(list(read_lines(reference)), sources, **settings)

    def check_aligned(self, name: str, lines: Sequence[str]) -> None:
        """Raises `UserError` if the text `name` has not as many lines as the references."""
        if len(lines) != len(self.references):
            raise UserError(
                f"{name} must have as many lines as the references, in the same order. "
                f"Received: {len(lines):,} and {len(self.references):,} lines"
            )

    def scores(self, hypotheses: Sequence[str]) -> list[Score]:
        """Returns the score of the translations for each metric."""
        scores = []
        for metric in self._metrics:
            result = metric._aggregate_and_compute(self._statistics(metric, hypotheses))
            scores.append(Score(result.name, result.score, str(metric.get_signature())))
        return scores

    def compare(
        self,
        hypotheses: Sequence[str],
        baseline: Sequence[str],
        test: SignificanceTest = "bootstrap",
    ) -> list[Significance]:
        """Tests for each metric whether two systems differ, with a paired test of sacrebleu.

        The environment variable `SACREBLEU_SEED` sets the random seed.

        Args:
            hypotheses: The translations of the system.
            baseline: The translations of the other system.
            test: `"bootstrap"` (paired bootstrap resampling, 1,000 samples) or `"randomization"`
                (paired approximate randomization, 10,000 samples). Defaults to `"bootstrap"`.

        Returns:
            A `Significance` per metric. `p_value` is small if such a difference between the scores
            is improbable for equally good systems. If the systems' statistics of all sentences are
            the same, `p_value` is 1.0, where sacrebleu returns 1 / (samples + 1).
        """
        self.check_aligned("the translations", hypotheses)
        self.check_aligned("the baseline", baseline)
        if (count := len(hypotheses)) < 30:  # Resampling then underestimates the variance.
            message = "A p-value from fewer than 30 sentences tells little. Received: "
            warnings.warn(f"{message}{count} sentences", stacklevel=2)
        systems = [("baseline", tuple(baseline)), ("system", tuple(hypotheses))]
        metrics = {str(number): metric for number, metric in enumerate(self._metrics)}
        paired = PairedTest(systems, metrics, (self.references,), test_type=_TESTS[test])
        signatures, results = paired()
        found = []
        for metric, (name, signature) in zip(self._metrics, signatures.items(), strict=True):
            old, new = results[name]
            same = self._statistics(metric, baseline) == self._statistics(metric, hypotheses)
            values = (old.score, new.score, 1.0 if same else new.p_value, paired.n_samples)
            found.append(Significance(test, name, *values, signature.info["seed"], str(signature)))
        return found

    def differences(
        self, hypotheses: Sequence[str], baseline: Sequence[str], samples: int = 1000
    ) -> list[ScoreDifference]:
        """Returns the difference of two systems for each metric, with a 95 % confidence interval.

        The interval is from the 2.5th to the 97.5th percentile of the differences in paired
        bootstrap samples of the sentences. For the other arguments and the seed, see `compare`.

        Source: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation".
        """
        seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
        size = len(self.references)
        found = []
        for metric in self._metrics:
            generator = np.random.default_rng(None if seed == "none" else int(seed))
            drawn = generator.multinomial(size, np.full(size, 1 / size), size=samples)
            scores = []
            for lines in (hypotheses, baseline):
                statistics = np.array(self._statistics(metric, lines), "float64")
                totals = [statistics.sum(0), *(drawn @ statistics)]
                scores.append([metric._compute_score_from_stats(x).score for x in totals])
            difference, *sampled = np.subtract(scores[0], scores[1]).tolist()
            low, high = np.percentile(sampled, (2.5, 97.5)).tolist()
            name = metric._compute_score_from_stats(totals[0]).name
            found.append(ScoreDifference(name, difference, low, high, samples, seed))
        return found

    def length_buckets(self, hypotheses: Sequence[str]) -> list[LengthBucket]:
        """Returns the scores of short and of long sentences, shortest first.

        The length of a sentence is the number of words of the source, or of the reference if there
        are no sources. White space separates words. Buckets without sentences are left out.
        """
        lengths = [len(line.split()) for line in self.sources or self.references]
        numbers = np.digitize(lengths, list(_BUCKETS.values()), right=True)
        statistics = [(x, self._statistics(x, hypotheses)) for x in self._metrics]
        buckets = []
        for number in np.unique(numbers):
            rows = np.flatnonzero(numbers == number)
            results = [x._aggregate_and_compute([s[i] for i in rows]) for x, s in statistics]
            scores = {result.name: result.score for result in results}
            buckets.append(LengthBucket(list(_BUCKETS)[number], len(rows), scores))
        return buckets

    def _statistics(self, metric: Any, hypotheses: Sequence[str]) -> Any:
        """Returns the statistics of each sentence, which a metric keeps."""
        self.check_aligned("the translations", hypotheses)
        return metric._extract_corpus_statistics(tuple(hypotheses), (self.references,))
