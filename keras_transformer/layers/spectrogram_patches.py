"""Turns a spectrogram into a sequence of vectors, one for each patch of time and frequency."""

from typing import Any

import keras
from keras import ops

from keras_transformer.errors import check_sizes
from keras_transformer.layers.base import ConfiguredLayer, Conv2D
from keras_transformer.layers.positions.sinusoidal_positional_encoding import (
    SinusoidalPositionalEncoding,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SpectrogramPatches(ConfiguredLayer):
    """Maps each patch of a spectrogram to a vector, and adds the patch's time and band.

    A linear map turns each patch into a vector. A learned vector for its frequency bands and the
    sinusoid of its time are added. Frames of zeros at the end are padding, so a spectrogram gives
    the same vectors in any batch. The patches of the first `patch_frames` frames are never padding.
    Zeros are recognized before the spectrograms are cast to the compute dtype, because float16 has
    no numbers below 6e-8 but 0.

    Example:

    >>> vectors, mask = SpectrogramPatches(64, patch_frames=4, patch_bands=16)(spectrograms)

    Args:
        d_model: Width D of the vectors.
        patch_frames: Frames of a patch. Defaults to 4.
        patch_bands: Frequency bands of a patch. Must divide the number of bands F. Defaults to 16.

    Call arguments:
        inputs: float tensor `(B, T, F)` with T at least 1, padded with frames of zeros at the end.

    Returns:
        The vectors, float `(B, S, D)`, and a bool mask `(B, S)`, False after the last patch with a
        real frame. S is ceil(T / patch_frames) * F / patch_bands. The patches of the same time are
        neighbours, from the lowest band to the highest.

    Raises:
        ValueError: If `patch_bands` does not divide F, or if T is 0.

    Source: Gong et al. 2021, AST: Audio Spectrogram Transformer, §2.1 (with overlapping patches).
    """

    def __init__(
        self, d_model: int, patch_frames: int = 4, patch_bands: int = 16, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False
        check_sizes(d_model=d_model, patch_frames=patch_frames, patch_bands=patch_bands)
        self.d_model = d_model
        self.patch_frames = patch_frames
        self.patch_bands = patch_bands
        size = patch_frames, patch_bands
        self.projection = Conv2D(
            d_model,
            size,
            strides=size,
            data_format="channels_last",
            dtype=self.dtype_policy,
            name="projection",
        )
        self.times = SinusoidalPositionalEncoding(dtype=self.dtype_policy, name="times")

    def build(self, input_shape: Any) -> None:
        bands = input_shape[-1]
        if bands % self.patch_bands:
            raise ValueError(
                "`patch_bands` must divide the number of bands. "
                f"Received: patch_bands={self.patch_bands}, inputs of shape {tuple(input_shape)}"
            )
        # As large as the patches and times: with 0.05, a model needs twice the steps.
        self.band_embeddings = self.add_weight(
            (bands // self.patch_bands, self.d_model),
            keras.initializers.RandomNormal(stddev=1.0),
            name="band_embeddings",
        )
        self.projection.build((None, None, bands, 1))
        self.times.build((None, None, self.d_model))
        self.built = True

    def call(self, inputs: Any) -> Any:
        if inputs.shape[1] == 0:
            raise ValueError(
                "A spectrogram must have at least one frame. "
                f"Received: inputs of shape {tuple(inputs.shape)}"
            )
        batch, frames = ops.shape(inputs)[:2]
        groups = (frames + self.patch_frames - 1) // self.patch_frames
        missing = groups * self.patch_frames - frames
        # `missing` may be a tensor in a TensorFlow graph, which `ops.pad` does not take.
        end = ops.zeros((batch, missing, inputs.shape[-1]), inputs.dtype)
        padded = ops.concatenate([inputs, end], axis=1)
        vectors = self.projection(ops.cast(padded, self.compute_dtype)[..., None])
        vectors = vectors + ops.cast(self.band_embeddings, vectors.dtype)
        times = self.times(ops.zeros((1, groups, self.d_model), vectors.dtype))
        vectors = ops.reshape(vectors + times[:, :, None], (batch, -1, self.d_model))
        is_real = ops.any(padded != 0, axis=-1)
        is_real = ops.any(ops.reshape(is_real, (batch, groups, self.patch_frames)), axis=-1)
        numbers = ops.arange(1, groups + 1, dtype="int32")
        ends = ops.max(ops.where(is_real, numbers, 1), axis=-1, keepdims=True)
        is_real = numbers <= ends  # Silence within a recording is not padding.
        return vectors, ops.repeat(is_real, self.band_embeddings.shape[0], axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, frames, bands = input_shape
        count = None
        if frames is not None:
            count = -(-frames // self.patch_frames) * (bands // self.patch_bands)
        return (batch, count, self.d_model), (batch, count)

    def _output_spec(self, inputs: Any) -> Any:
        vectors, mask = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(vectors, self.compute_dtype), keras.KerasTensor(mask, "bool")
