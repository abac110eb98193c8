"""A client for exported models on TensorFlow Serving. It needs neither Keras nor model files."""

from keras_transformer.serving.client import ServedTranslation, ServingClient, connect

__all__ = ["ServedTranslation", "ServingClient", "connect"]
