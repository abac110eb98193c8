"""Evaluation of trained models: scores of their translations."""
