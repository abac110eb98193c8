"""Sines and cosines of the position, which are added to the embeddings."""

from typing import Any

from keras import ops

from keras_transformer._backend.types import Size, Tensor
from keras_transformer.layers.positions.positional_encoding import (
    PositionalEncoding,
    position_encoding,
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

    def call(self, embeddings: Tensor, offset: Size = 0) -> Any:
        length, d_model = ops.shape(embeddings)[1], embeddings.shape[-1]
        angles = sinusoid_angles(length, d_model, offset + self.first_position, self.timescales)
        waves = [ops.sin(angles), ops.cos(angles)]
        if self.layout == "interleaved":
            shape = (*ops.shape(angles)[:-1], 2 * angles.shape[-1])
            table = ops.reshape(ops.stack(waves, axis=-1), shape)
        else:
            table = ops.concatenate(waves, axis=-1)
        return self.add_to(embeddings, table[..., :d_model])
