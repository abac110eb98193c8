"""Scores the translations of trained models."""
