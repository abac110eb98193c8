"""Recipes: their keys, their files, and settings that fit a corpus or a machine."""
