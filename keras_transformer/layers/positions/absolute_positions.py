"""Position encodings that are added to the embeddings."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.operations import nan_outside
from keras_transformer.layers.positions.positional_encoding import (
    PositionalEncoding,
    position_encoding,
    positions,
    sinusoid_angles,
)

LAYOUTS = ("interleaved", "half_split")
TIMESCALES = ("paper", "tensor2tensor")
_TENSOR2TENSOR = {"layout": "half_split", "timescales": "tensor2tensor"}


@position_encoding("sinusoidal")
@position_encoding("sinusoidal_half_split", layout="half_split")
@position_encoding("sinusoidal_marian", **_TENSOR2TENSOR)
@position_encoding("sinusoidal_opennmt", **_TENSOR2TENSOR, first_position=1)
@position_encoding("sinusoidal_fairseq", **_TENSOR2TENSOR, first_position=2)
class SinusoidalPositionalEncoding(PositionalEncoding):
    """Adds sines and cosines of the position, with geometrically spaced wavelengths (§3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i/D)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/D)), computed in
    float32. The encoding has no weights and no maximum length.

    Example:

    >>> SinusoidalPositionalEncoding()(np.zeros((1, 50, 64), "float32")).shape    # (1, 50, 64)

    Args:
        layout: `"interleaved"` (sine at even and cosine at odd features, as in the paper) or
            `"half_split"` (first all sines, then all cosines). Defaults to `"interleaved"`.
        timescales: `"paper"`, or `"tensor2tensor"` for angles of pos / 10000^(i/(D/2-1)) instead of
            pos / 10000^(2i/D). Defaults to `"paper"`.
        first_position: Position of the first token: 0 in the paper, tensor2tensor and Marian, 1 in
            OpenNMT-tf and 2 in fairseq. Defaults to 0.

    Source: Vaswani et al. 2017, §3.5. Layout and timescales of the names `"sinusoidal_marian"`,
    `"sinusoidal_opennmt"` and `"sinusoidal_fairseq"` are from tensor2tensor's
    `get_timing_signal_1d`.
    """

    def __init__(
        self,
        layout: str = "interleaved",
        timescales: str = "paper",
        first_position: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if layout not in LAYOUTS or timescales not in TIMESCALES:
            raise ValueError(
                f"`layout` must be one of {LAYOUTS}, and `timescales` one of {TIMESCALES}. "
                f"Received: layout={layout!r}, timescales={timescales!r}"
            )
        self.store_arguments(locals())

    def call(self, embeddings: Any, offset: Any = 0) -> Any:
        length, d_model = ops.shape(embeddings)[1], embeddings.shape[-1]
        angles = sinusoid_angles(length, d_model, offset + self.first_position, self.timescales)
        waves = [ops.sin(angles), ops.cos(angles)]
        if self.layout == "interleaved":
            shape = (*ops.shape(angles)[:-1], 2 * angles.shape[-1])
            table = ops.reshape(ops.stack(waves, axis=-1), shape)
        else:
            table = ops.concatenate(waves, axis=-1)
        return self.add_to(embeddings, table[..., :d_model])


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
        ValueError: If `offset` + T exceeds `max_length`. In a graph that does not know T or
            `offset`, positions from `max_length` on get NaN instead.

    Source: Gehring et al. 2017, Convolutional Sequence to Sequence Learning.
    """

    def __init__(self, max_length: int, initializer: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())

    def build(self, input_shape: Any) -> None:
        d_model = input_shape[-1]
        self.position_embeddings = self.add_weight(
            name="position_embeddings",
            shape=(self.max_length, d_model),
            initializer=self.initializer or keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )

    def call(self, embeddings: Any, offset: Any = 0) -> Any:
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
