"""Scores translations of trained models and of other systems, and compares them."""

from typing import TYPE_CHECKING, Literal

from keras_transformer._lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.evaluation.evaluator import Evaluator
    from keras_transformer.evaluation.scores import evaluate_run

__all__ = ["Evaluator", "MetricName", "SignificanceTest", "evaluate_run"]

MetricName = Literal["bleu", "chrf", "ter", "exact-match", "comet"]
SignificanceTest = Literal["bootstrap", "randomization"]

__getattr__ = lazy_names(__name__, {"evaluator": "Evaluator", "scores": "evaluate_run"})
