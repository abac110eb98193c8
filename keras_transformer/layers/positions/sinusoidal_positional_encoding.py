"""Encodes positions as sinusoids, as in the paper."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.positions.positional_encoding import (
    PositionalEncoding,
    position_encoding,
    sinusoid_angles,
)

LAYOUTS = ("interleaved", "half_split")


@position_encoding("sinusoidal")
@position_encoding("sinusoidal_half_split", layout="half_split")
@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositionalEncoding(PositionalEncoding):
    """Adds sines and cosines of the position, with geometrically spaced wavelengths (§3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i/D)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/D)). Every call
    computes the sines and cosines in float32 for the length of the embeddings. The encoding has no
    weights and no maximum length. `keras_hub.layers.SinePositionEncoding` computes the values in
    the compute dtype. With bfloat16, the Keras Hub layer gives equal values to positions such as
    256 and 257.

    Example:

    >>> SinusoidalPositionalEncoding()(np.zeros((1, 50, 64), "float32")).shape    # (1, 50, 64)

    Args:
        layout: `"interleaved"` (sine at even and cosine at odd features, as in the paper) or
            `"half_split"` (first all sines, then all cosines). Defaults to `"interleaved"`.

    For the call arguments and the result, see `PositionalEncoding`.

    Raises:
        ValueError: If `layout` is unknown.

    Source: Vaswani et al. 2017, §3.5.
    """

    def __init__(self, layout: str = "interleaved", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if layout not in LAYOUTS:
            raise ValueError(f"`layout` must be one of {LAYOUTS}. Received: layout={layout!r}")
        self.layout = layout

    def call(self, embeddings: Any, offset: Any = 0) -> Any:
        length, d_model = ops.shape(embeddings)[1], embeddings.shape[-1]
        angles = sinusoid_angles(length, d_model, offset)
        if self.layout == "interleaved":
            table = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
            shape = (*ops.shape(angles)[:-1], 2 * angles.shape[-1])
            table = ops.reshape(table, shape)[..., :d_model]
        else:
            cosines = ops.cos(angles)[..., : d_model // 2]
            table = ops.concatenate([ops.sin(angles), cosines], axis=-1)
        return self.add_to(embeddings, table)
