"""Vector quantization with a learned codebook."""

from typing import Any

import keras
from keras import ops

from keras_transformer.errors import check_sizes
from keras_transformer.layers.base import ConfiguredLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class VectorQuantizer(ConfiguredLayer):
    """Replaces each vector by the nearest vector of a learned codebook (VQ-VAE, §3).

    The gradient of the outputs passes unchanged to the inputs. The layer adds two losses: the mean
    squared distance between the inputs and their codebook vectors, with gradients for the codebook
    only, and `commitment` times the same distance, with gradients for the inputs only.

    The codebook starts with values from N(0, 1). Codebook vectors far away from all inputs are
    never used and never trained. So scale the inputs to zero mean and unit variance, for example
    with batch normalization (Łańcucki et al. 2020, §3.1). Distances and losses are computed in
    float32.

    Example:

    >>> quantizer = VectorQuantizer(num_codes=256)
    >>> quantized = quantizer(vectors)              # (B, 7, 7, D)
    >>> codes = quantizer.encode(vectors)           # (B, 7, 7), from 0 to 255
    >>> quantized = quantizer.decode(codes)         # (B, 7, 7, D)

    Args:
        num_codes: Number of vectors in the codebook.
        commitment: Weight of the loss that draws the inputs to the codebook, at least 0. Defaults
            to 0.25.

    Call arguments:
        inputs: float tensor `(..., D)`.
        mask: bool tensor `(...)`, True for the vectors that count in the losses. Defaults to None,
            which means the Keras mask of `inputs`, if any.

    Returns:
        The nearest codebook vectors, a float tensor `(..., D)` in the compute dtype.

    Raises:
        ValueError: If `num_codes` is below 1, or if `commitment` is negative.

    Source: van den Oord et al. 2017, Neural Discrete Representation Learning, eq. 3.
    """

    def __init__(self, num_codes: int, commitment: float = 0.25, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_sizes(num_codes=num_codes)
        if not commitment >= 0:
            raise ValueError(f"`commitment` must be at least 0. Received: commitment={commitment}")
        self.supports_masking = True
        self.num_codes = num_codes
        self.commitment = commitment

    def build(self, input_shape: Any) -> None:
        self.codebook = self.add_weight(
            name="codebook",
            shape=(self.num_codes, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=1.0),
            autocast=False,
        )
        self.built = True

    def _output_spec(self, inputs: Any, **_: Any) -> Any:
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def call(self, inputs: Any, mask: Any = None) -> Any:
        vectors = ops.cast(inputs, "float32")
        quantized = self.decode(self.encode(vectors))
        for factor, moved, fixed in (
            (1.0, quantized, vectors),
            (self.commitment, vectors, quantized),
        ):
            distances = ops.mean(ops.square(moved - ops.stop_gradient(fixed)), axis=-1)
            self.add_loss(factor * _mean(distances, mask))
        outputs = ops.stop_gradient(quantized) + (vectors - ops.stop_gradient(vectors))
        return ops.cast(outputs, self.compute_dtype)

    def encode(self, vectors: Any) -> Any:
        """Returns the indices of the nearest codebook vectors, int32 `(...)`.

        Args:
            vectors: float tensor `(..., D)`.

        Raises:
            ValueError: If the layer has not been built.
        """
        vectors, codebook = ops.cast(vectors, "float32"), self._float32_codebook()
        products = ops.matmul(vectors, ops.transpose(codebook))
        # Without the squares of `vectors`, which are the same for all codes.
        distances = ops.sum(ops.square(codebook), axis=-1) - 2 * products
        return ops.cast(ops.argmin(distances, axis=-1), "int32")

    def decode(self, codes: Any) -> Any:
        """Returns the codebook vectors of `codes`, float32 `(..., D)`.

        Args:
            codes: int tensor `(...)`, from 0 to `num_codes` - 1.

        Raises:
            ValueError: If the layer has not been built, or the codes are not integers.
        """
        codebook, codes = self._float32_codebook(), ops.convert_to_tensor(codes)
        if "int" not in keras.backend.standardize_dtype(codes.dtype):
            raise ValueError(f"`codes` must be integers. Received: dtype={codes.dtype}")
        return ops.take(codebook, ops.cast(codes, "int32"), axis=0)

    def _float32_codebook(self) -> Any:
        if not self.built:
            raise ValueError("Call the layer or its method `build` first, which make the codebook.")
        return ops.cast(self.codebook, "float32")


def _mean(values: Any, mask: Any) -> Any:
    """Returns the mean of the values where `mask` is True, or of all values without a mask."""
    if mask is None:
        return ops.mean(values)
    weights = ops.broadcast_to(ops.cast(ops.cast(mask, "bool"), values.dtype), ops.shape(values))
    return ops.divide_no_nan(ops.sum(values * weights), ops.sum(weights))
