"""Reads and writes the models of other toolkits: Marian, Hugging Face, CTranslate2 and KerasHub.

The functions for KerasHub import `keras_hub`, which needs the extra `tensorflow` and imports
TensorFlow on every backend.
"""

from keras_transformer.exchange.keras_hub import (
    bert_from_keras_hub,
    bert_to_keras_hub,
    gpt2_from_keras_hub,
    gpt2_to_keras_hub,
)

__all__ = [
    "bert_from_keras_hub",
    "bert_to_keras_hub",
    "gpt2_from_keras_hub",
    "gpt2_to_keras_hub",
]
