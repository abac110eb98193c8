"""The Transformer of "Attention Is All You Need" for Keras 3."""

__version__ = "0.1.0.dev0"
