"""Metrics: BLEU, chrF and TER by sacrebleu, the share of exact matches, and COMET."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Score, Signature

from keras_transformer.errors import UserError

MetricName = Literal["bleu", "chrf", "ter", "exact-match", "comet"]


def is_worse(name: MetricName, score: float, other: float) -> bool:
    """Returns whether a score of a metric is worse than another. NaN is worse than a number."""
    return not (score <= other if name == "ter" else score >= other)


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
            metric: Any = BLEU(lowercase, force=tokenize == "none", tokenize=tokenize)
        except RuntimeError as error:  # the tokenizers for Japanese and Korean need packages
            raise UserError(f"tokenize={tokenize}: {error}") from None
    elif name == "comet":
        if sources is None or comet_model is None:
            raise UserError("the metric comet needs the source sentences and a COMET model")
        metric = _comet(comet_model, sources)
    elif name == "exact-match":
        metric = SentenceMean("exact match", lambda *texts: list(map(str.__eq__, *texts)))
    else:
        metric = {"chrf": CHRF, "ter": TER}[name]()
    metric._extract_corpus_statistics = functools.cache(metric._extract_corpus_statistics)
    return metric


class SentenceMean:
    """A metric whose score of a text is the mean of the scores of its sentences, in percent.

    `sentence_scores` is a function of hypotheses and references. `signature` has further entries of
    the signature. The methods with an underscore are those that sacrebleu calls.
    """

    def __init__(self, name: str, sentence_scores: Callable[..., Any], **signature: str) -> None:
        self.name, self._sentence_scores, self._signature = name, sentence_scores, signature

    def get_signature(self) -> Signature:
        signature = Signature({"num_refs": 1})
        signature.info.update(self._signature)
        return signature

    def _extract_corpus_statistics(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        return [[float(x), 1.0] for x in self._sentence_scores(hypotheses, references[0])]

    def _aggregate_and_compute(self, statistics: Sequence[Sequence[float]]) -> Score:
        return self._compute_score_from_stats([sum(x) for x in zip(*statistics, strict=True)])

    def _compute_score_from_stats(self, statistics: Sequence[float]) -> Score:
        total, count = statistics
        return Score(self.name, 100 * float(total) / float(count))


def _comet(name: str, sources: Sequence[str]) -> SentenceMean:
    """Returns COMET, with the package unbabel-comet. `name` is as `Evaluator`'s `comet_model`.

    Source: Rei et al. 2020, https://aclanthology.org/2020.emnlp-main.213
    """
    try:
        import comet
    except ImportError as error:
        raise UserError(
            "the metric comet needs the package unbabel-comet, which cannot be in one "
            "environment with TensorFlow or JAX. In a new environment: "
            "pip install 'keras3-transformer[torch,comet]'"
        ) from error
    try:
        path = name if Path(name).is_file() else comet.download_model(name)
        model = comet.load_from_checkpoint(path)
    except Exception as error:  # COMET, Hugging Face and PyTorch raise different errors
        raise UserError(f"the COMET model {name} cannot be loaded: {error}") from error

    def scores(hypotheses: Sequence[str], references: Sequence[str]) -> Sequence[float]:
        import torch

        rows = zip(sources, hypotheses, references, strict=True)
        samples = [{"src": source, "mt": text, "ref": target} for source, text, target in rows]
        return model.predict(samples, gpus=int(torch.cuda.is_available())).scores

    return SentenceMean("COMET", scores, model=name, version=comet.__version__)
