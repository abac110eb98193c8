"""Metrics: BLEU, chrF and TER by sacrebleu, the share of exact matches, and COMET."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Score, Signature

from keras_transformer.errors import UserError
from keras_transformer.evaluation import MetricName


def new_metric(
    name: MetricName,
    tokenize: str = "13a",
    lowercase: bool = False,
    sources: Sequence[str] | None = None,
    comet_model: str | None = None,
) -> Any:
    """Returns a metric with the methods of `sacrebleu.metrics.base.Metric`.

    The metric computes the statistics of a text's sentences once, although scores, significance
    tests and tables need them. For the arguments and errors, see `Evaluator`.
    """
    if name == "bleu":
        try:
            # `force`: without it, sacrebleu warns of tokenized text, which is what "none" is for.
            force = tokenize == "none"
            metric: Any = BLEU(tokenize=tokenize, lowercase=lowercase, force=force)
        except RuntimeError as error:  # the tokenizers for Japanese and Korean need packages
            raise UserError(f"tokenize={tokenize}: {error}") from None
    elif name == "comet":
        if sources is None or comet_model is None:
            raise UserError("the metric comet needs the source sentences and a COMET model")
        metric = Comet(comet_model, sources)
    else:
        metric = {"chrf": CHRF, "ter": TER, "exact-match": ExactMatch}[name]()
    metric._extract_corpus_statistics = functools.cache(metric._extract_corpus_statistics)
    return metric


class SentenceMean:
    """Base class of metrics whose score of a text is the mean of the scores of its sentences.

    Subclasses define `name` and `sentence_scores`. The methods with an underscore are those that
    sacrebleu calls.
    """

    name: str

    def sentence_scores(
        self, hypotheses: Sequence[str], references: Sequence[str]
    ) -> Sequence[float]:
        raise NotImplementedError

    def get_signature(self) -> Signature:
        return Signature({"num_refs": 1})

    def _extract_corpus_statistics(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        return [[score, 1.0] for score in self.sentence_scores(hypotheses, references[0])]

    def _aggregate_and_compute(self, statistics: Sequence[Sequence[float]]) -> Score:
        return self._compute_score_from_stats([sum(x) for x in zip(*statistics, strict=True)])

    def _compute_score_from_stats(self, statistics: Sequence[float]) -> Score:
        total, count = statistics
        return Score(self.name, 100 * float(total) / float(count))


class ExactMatch(SentenceMean):
    """The percentage of translations that equal their references."""

    name = "exact match"

    def sentence_scores(
        self, hypotheses: Sequence[str], references: Sequence[str]
    ) -> Sequence[float]:
        return [float(a == b) for a, b in zip(hypotheses, references, strict=True)]


class Comet(SentenceMean):
    """COMET, multiplied by 100, with the package unbabel-comet.

    `model` is the argument `comet_model` of `Evaluator`.

    Raises:
        UserError: If unbabel-comet is not installed or the model cannot be loaded.

    Source: Rei et al. 2020, https://aclanthology.org/2020.emnlp-main.213
    """

    name = "COMET"

    def __init__(self, model: str, sources: Sequence[str]) -> None:
        try:
            import comet
        except ImportError as error:
            raise UserError(
                "the metric comet needs the package unbabel-comet, which cannot be in one "
                "environment with TensorFlow or JAX. In a new environment: "
                "pip install 'keras3-transformer[torch,comet]'"
            ) from error
        try:
            path = model if Path(model).is_file() else comet.download_model(model)
            self._model = comet.load_from_checkpoint(path)
        except Exception as error:  # COMET, Hugging Face and PyTorch raise different errors
            raise UserError(f"the COMET model {model} cannot be loaded: {error}") from error
        self._name, self._version, self._sources = model, comet.__version__, sources

    def get_signature(self) -> Signature:
        signature = super().get_signature()
        signature.update("model", self._name)
        signature.update("version", self._version)
        return signature

    def sentence_scores(
        self, hypotheses: Sequence[str], references: Sequence[str]
    ) -> Sequence[float]:
        import torch

        rows = zip(self._sources, hypotheses, references, strict=True)
        samples = [{"src": source, "mt": text, "ref": target} for source, text, target in rows]
        return self._model.predict(samples, gpus=int(torch.cuda.is_available())).scores
