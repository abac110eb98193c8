"""Exchanges models with KerasHub.

The functions import `keras_hub`, which needs the extra `tensorflow` and imports TensorFlow on every
backend. So each module is imported when one of its public names is first used.
"""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.exchange.bert import bert_from_keras_hub, bert_to_keras_hub
    from keras_transformer.exchange.gpt2 import gpt2_from_keras_hub, gpt2_to_keras_hub

__all__ = [
    "bert_from_keras_hub",
    "bert_to_keras_hub",
    "gpt2_from_keras_hub",
    "gpt2_to_keras_hub",
]

__getattr__ = lazy_names(
    __name__,
    {
        "bert_from_keras_hub": "keras_transformer.exchange.bert",
        "bert_to_keras_hub": "keras_transformer.exchange.bert",
        "gpt2_from_keras_hub": "keras_transformer.exchange.gpt2",
        "gpt2_to_keras_hub": "keras_transformer.exchange.gpt2",
    },
)
