"""A client for exported models on TensorFlow Serving.

The client needs neither Keras nor model files. The classes of `endpoint.py` raise `TemporaryError`
and `NotFoundError`. The client handles both errors. The client itself raises `UserError`.
"""

from keras_transformer.serving.client import ServingClient, Translation, connect

__all__ = ["ServingClient", "Translation", "connect"]
