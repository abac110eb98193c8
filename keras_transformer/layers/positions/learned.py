"""Learned positions, which are added to the embeddings."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.operations import nan_outside
from keras_transformer._backend.types import Rule, Shape, Size, Tensor
from keras_transformer.layers.positions.positional_encoding import (
    PositionalEncoding,
    position_encoding,
    positions,
)


@position_encoding("learned")
class LearnedPositionalEncoding(PositionalEncoding):
    """Adds a learned vector per position, up to a maximum length (§3.5; Table 3, row E).

    Example:

    >>> LearnedPositionalEncoding(max_length=128)(np.zeros((1, 50, 64), "float32"))

    Args:
        max_length: Number of learned vectors, one per token position.
        initializer: Initializer of the vectors. Defaults to None, which means a normal distribution
            with standard deviation d_model^-1/2.

    Raises:
        ValueError: If `offset` + T exceeds `max_length`. In a graph that does not know these
            numbers, positions from `max_length` on get NaN instead.

    Source: Gehring et al. 2017, Convolutional Sequence to Sequence Learning.
    """

    def __init__(self, max_length: int, initializer: Rule = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        self.position_embeddings = self.add_weight(
            name="position_embeddings",
            shape=(self.max_length, d_model),
            initializer=self.initializer or keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )

    def call(self, embeddings: Tensor, offset: Size = 0) -> Any:
        if isinstance(embeddings.shape[1], int) and isinstance(offset, int):
            self.check_length(offset + embeddings.shape[1])
        indices = positions(ops.shape(embeddings)[1], offset)
        last = self.max_length - 1
        rows = ops.take(self.position_embeddings, ops.clip(indices, 0, last), axis=0)
        rows = nan_outside(indices[..., None] <= last, ops.cast(rows, "float32"))
        return self.add_to(embeddings, rows)

    def check_length(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                "A sequence must have at most `max_length` positions. "
                f"Received: max_length={self.max_length}, length={length}"
            )
