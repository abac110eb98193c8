"""A model whose decoding cache grows in a TensorFlow graph, for search without XLA."""

from typing import Any

import keras
import tensorflow as tf

from keras_transformer.decoding.cache import Cache
from keras_transformer.models import Transformer


class GrowingCache:
    """The protocol of search over a cache that has no more positions than were decoded.

    A cache of fixed size is written in place by XLA alone. Without it every write copies all of
    the cache, and attention looks at positions that are still empty.

    Args:
        model: The model.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model

    def init_cache(self, source_ids: Any, max_length: Any, beam_size: Any) -> Cache:
        """The cache without any position; `max_length` does not matter."""
        cache = self._model.init_cache(source_ids, None, beam_size)
        sentence = cache.sentence
        sentence["decoded"] = keras.tree.map_structure(_of_unknown_shape, sentence["decoded"])
        return Cache(
            keras.tree.map_structure(_of_unknown_shape, cache.beam), sentence, cache.shared
        )

    @property
    def pad_id(self) -> int:
        return self._model.pad_id

    def step(self, *arguments: Any, **options: Any) -> tuple[Any, ...]:
        return self._model.step(*arguments, **options)


def _of_unknown_shape(tensor: tf.Tensor) -> tf.Tensor:
    """The same, of which a loop may change the sizes of all axes but those of the heads."""
    known = tensor.shape.as_list()
    shape = [size if size and axis else None for axis, size in enumerate(known)]
    return tf.compat.v1.placeholder_with_default(tensor, shape)
