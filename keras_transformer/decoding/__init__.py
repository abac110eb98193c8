"""Translates with a trained model: search, search options and the `Translator`."""
