"""Trains by a recipe: `train` starts, prepares, fits with validation, and finishes."""
