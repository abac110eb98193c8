"""Evaluation of trained models: scores of translations."""
