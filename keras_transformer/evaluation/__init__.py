"""Scores translations of trained models and of other systems, and compares them."""

from keras_transformer.evaluation.evaluator import Evaluator, MetricName, SignificanceTest
from keras_transformer.evaluation.run_evaluation import evaluate_run

__all__ = ["Evaluator", "MetricName", "SignificanceTest", "evaluate_run"]
