"""A client for exported models on TensorFlow Serving; it needs neither Keras nor model files.

The client raises `UserError`. It handles `TemporaryError` and `NotFoundError`, which the classes of
`endpoint.py` raise.
"""

from keras_transformer.serving.client import ServingClient, Translation, connect

__all__ = ["ServingClient", "Translation", "connect"]
