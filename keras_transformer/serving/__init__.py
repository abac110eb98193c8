"""A client for exported models on TensorFlow Serving; it needs neither Keras nor a model.

The client raises only `UserError`. `TemporaryError` and `NotFoundError` are internal.
"""

from keras_transformer.serving.client import ServingClient, Translation, connect

__all__ = ["ServingClient", "Translation", "connect"]
