"""The folder of a run: its recipe, text, checkpoints, model and scores."""
