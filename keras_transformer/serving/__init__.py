"""A client for exported models on TensorFlow Serving. It needs no model files."""

from keras_transformer.serving.client import ServedTranslation, ServingClient, connect

__all__ = ["ServedTranslation", "ServingClient", "connect"]
