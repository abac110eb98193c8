"""A client for exported models on TensorFlow Serving; it needs neither Keras nor model files.

The client raises `UserError`. It catches `TemporaryError` and `NotFoundError` of its endpoint.
"""

from keras_transformer.serving.client import ServingClient, Translation, connect

__all__ = ["ServingClient", "Translation", "connect"]
