"""Models of time series: encoder, forecaster, and two ways to pretrain the encoder."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import check_sizes
from keras_transformer.layers import Dropout, Encoder, LearnedPositionalEncoding
from keras_transformer.layers.base import Dense
from keras_transformer.models.base import ConfiguredModel, compute_policy

_EPSILON = 1e-5  # added to the variance of a series


@keras.saving.register_keras_serializable(package="keras_transformer")
class TimeSeriesEncoder(ConfiguredModel):
    """Encodes one time series, cut into patches, as in PatchTST.

    A linear map turns each patch into a vector, and learned position embeddings are added. Encoder
    layers with GELU follow. `Forecaster` forecasts with the encoder. `MaskedPatchModel` and
    `SkipGramWindowModel` pretrain it on series without forecasts.

    Example:

    >>> encoder = TimeSeriesEncoder(num_patches=12, patch_size=8)
    >>> states = encoder(encoder.patches_of(series))                # (B, 96) to (B, 12, 128)

    Args:
        num_patches: Number of patches P of a series.
        patch_size: Number of time steps in a patch. Defaults to 16.
        num_layers: Number of layers. Defaults to 3.
        d_model: Width D. Defaults to 128.
        num_heads: Number of attention heads H. Defaults to 16.
        d_ff: Width F of the feed-forward networks. Defaults to 256.
        dropout_rate: Dropout rate, in [0, 1), of the embeddings and of sublayer outputs. Defaults
            to 0.2.
        dtype: Dtype policy of all layers. Defaults to the global policy.

    Call arguments:
        inputs: float tensor `(B, P, patch_size)`, such as the result of
            `encoder.patches_of`.

    Returns:
        A float tensor `(B, P, D)` in the compute dtype.

    Raises:
        ValueError: If a size is below 1, if `num_heads` does not divide `d_model`, or if `dtype` is
            float64.

    Source: Nie et al. 2023, A Time Series is Worth 64 Words: Long-term Forecasting with
    Transformers. There, the layers have batch normalization.
    """

    def __init__(
        self,
        num_patches: int,
        patch_size: int = 16,
        num_layers: int = 3,
        d_model: int = 128,
        num_heads: int = 16,
        d_ff: int = 256,
        dropout_rate: float = 0.2,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        policy = compute_policy(dtype)
        check_sizes(num_patches=num_patches, patch_size=patch_size)
        embedding = Dense(d_model, dtype=policy, name="patch_embedding")
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        positions = LearnedPositionalEncoding(
            num_patches, initializer=initializer, dtype=policy, name="positions"
        )
        encoder = Encoder(
            num_layers,
            d_model,
            num_heads,
            d_ff,
            dropout_rate=dropout_rate,
            activation="gelu",
            dtype=policy,
            name="encoder",
        )
        patches = keras.Input((num_patches, patch_size), dtype="float32", name="patches")
        x = Dropout(dropout_rate, dtype=policy, name="dropout")(positions(embedding(patches)))
        super().__init__(patches, encoder(x), **kwargs)

        self.dtype_policy = policy
        self.num_patches = num_patches
        self.patch_size = patch_size
        self.num_layers = num_layers
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.encoder = encoder

    @property
    def look_back(self) -> int:
        """Number of time steps L that the patches cover."""
        return self.num_patches * self.patch_size

    def patches_of(self, series: Any) -> np.ndarray:
        """Cuts series into patches, after each was scaled to zero mean and unit variance.

        Args:
            series: float array or tensor `(B, L)`.

        Returns:
            A float array `(B, P, patch_size)`, computed in float32 or in a wider dtype of `series`.

        Raises:
            ValueError: If L is not `look_back`.
        """
        series = ops.convert_to_numpy(series)
        series = series.astype(np.promote_types(series.dtype, "float32"))
        if series.shape[1:] != (self.look_back,):
            raise ValueError(
                f"`series` must have the shape (B, {self.look_back}). "
                f"Received: shape={series.shape}"
            )
        mean = series.mean(axis=1, keepdims=True)
        scaled = (series - mean) / np.sqrt(series.var(axis=1, keepdims=True) + _EPSILON)
        return scaled.reshape(-1, self.num_patches, self.patch_size)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Forecaster(ConfiguredModel):
    """Forecasts several time series, each from its own past.

    All series share the weights, and none sees the others (channel independence). Each series is
    scaled to zero mean and unit variance. A linear map of all of the encoder's vectors gives the
    forecast, which is scaled back (Kim et al. 2022, reversible instance normalization).

    Example:

    >>> model = Forecaster(TimeSeriesEncoder(num_patches=12, patch_size=8), 96, num_series=7)
    >>> forecast = model(past)                                 # (B, 96, 7) to (B, 96, 7)

    Args:
        encoder: A `TimeSeriesEncoder`, which the model shares and trains.
        horizon: Number of time steps to forecast.
        num_series: Number of series C.
        dropout_rate: Dropout rate, in [0, 1), before the linear map. Defaults to 0.

    Call arguments:
        inputs: float tensor `(B, L, C)`, where L is `encoder.look_back`.

    Returns:
        A float32 tensor `(B, horizon, C)`.

    Raises:
        ValueError: If `encoder` is not a `TimeSeriesEncoder`, or if a size is below 1.

    Source: Nie et al. 2023.
    """

    def __init__(
        self,
        encoder: TimeSeriesEncoder,
        horizon: int,
        num_series: int,
        dropout_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        policy = _policy_of(encoder)
        check_sizes(horizon=horizon, num_series=num_series)
        past = keras.Input((encoder.look_back, num_series), dtype="float32", name="past")
        mean = ops.mean(past, axis=1, keepdims=True)  # (B, 1, C)
        deviation = ops.sqrt(ops.var(past, axis=1, keepdims=True) + _EPSILON)
        series = ops.transpose((past - mean) / deviation, (0, 2, 1))
        states = encoder(ops.reshape(series, (-1, encoder.num_patches, encoder.patch_size)))
        flat = ops.reshape(states, (-1, encoder.num_patches * encoder.d_model))
        flat = Dropout(dropout_rate, dtype=policy, name="dropout")(flat)
        forecast = Dense(horizon, dtype=policy, name="forecast")(flat)
        forecast = ops.cast(ops.reshape(forecast, (-1, num_series, horizon)), "float32")
        super().__init__(past, ops.transpose(forecast, (0, 2, 1)) * deviation + mean, **kwargs)

        self.dtype_policy = policy
        self.encoder = encoder
        self.horizon = horizon
        self.num_series = num_series
        self.dropout_rate = dropout_rate

    def get_config(self) -> dict[str, Any]:
        return _without_dtype(super().get_config())


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedPatchModel(ConfiguredModel):
    """Pretrains an encoder: restores masked patches from the others.

    Masked patches are zeros in the encoder's input. Train with the mean squared error and the mask
    as `sample_weight`, so that only masked patches count.

    Example:

    >>> model = MaskedPatchModel(encoder)
    >>> restored = model({"patches": patches, "is_masked": is_masked})   # (B, P, patch_size)

    Args:
        encoder: A `TimeSeriesEncoder`, which the model shares and trains.

    Call arguments:
        inputs: A dictionary of `patches`, float `(B, P, patch_size)`, and `is_masked`, bool
            `(B, P)`.

    Returns:
        A float tensor `(B, P, patch_size)` in the compute dtype.

    Raises:
        ValueError: If `encoder` is not a `TimeSeriesEncoder`.

    Source: Nie et al. 2023, §3.2.
    """

    def __init__(self, encoder: TimeSeriesEncoder, **kwargs: Any) -> None:
        policy = _policy_of(encoder)
        patches = keras.Input(
            (encoder.num_patches, encoder.patch_size), dtype="float32", name="patches"
        )
        is_masked = keras.Input((encoder.num_patches,), dtype="bool", name="is_masked")
        visible = ops.where(ops.expand_dims(is_masked, -1), 0.0, patches)
        restored = Dense(encoder.patch_size, dtype=policy, name="restored")(encoder(visible))
        super().__init__({"patches": patches, "is_masked": is_masked}, restored, **kwargs)
        self.dtype_policy = policy
        self.encoder = encoder

    def get_config(self) -> dict[str, Any]:
        return _without_dtype(super().get_config())


@keras.saving.register_keras_serializable(package="keras_transformer")
class SkipGramWindowModel(ConfiguredModel):
    """Pretrains an encoder: tells which windows are neighbours in time.

    As skip-gram predicts the words around a word, the vector of a window predicts the window next
    to it. The other windows of the batch are the negatives. The vector of a window is a linear map
    of the mean of the encoder's vectors; the windows to predict have a linear map of their own.

    Example:

    >>> model = SkipGramWindowModel(encoder)
    >>> logits = model({"center": patches, "context": patches_of_neighbours})           # (B, B)

    Args:
        encoder: A `TimeSeriesEncoder`, which the model shares and trains.

    Call arguments:
        inputs: A dictionary of `center` and `context`, float `(B, P, patch_size)`. Row i of
            `context` is a neighbour of row i of `center`.

    Returns:
        The logits, a float tensor `(B, B)` in the compute dtype. The label of row i is i.

    Raises:
        ValueError: If `encoder` is not a `TimeSeriesEncoder`.

    Source: Mikolov et al. 2013 for words; van den Oord et al. 2018, Representation Learning with
    Contrastive Predictive Coding, for the loss.
    """

    rows_have_classes = False

    def __init__(self, encoder: TimeSeriesEncoder, **kwargs: Any) -> None:
        policy = _policy_of(encoder)
        shape = encoder.num_patches, encoder.patch_size
        inputs = {
            name: keras.Input(shape, dtype="float32", name=name) for name in ("center", "context")
        }
        center, context = (
            Dense(encoder.d_model, use_bias=False, dtype=policy, name=f"{name}_projection")(
                ops.mean(encoder(x), axis=1)
            )
            for name, x in inputs.items()
        )
        logits = ops.matmul(center, ops.transpose(context)) * encoder.d_model**-0.5
        super().__init__(inputs, logits, **kwargs)
        self.dtype_policy = policy
        self.encoder = encoder

    def get_config(self) -> dict[str, Any]:
        return _without_dtype(super().get_config())


def _policy_of(encoder: TimeSeriesEncoder) -> Any:
    if not isinstance(encoder, TimeSeriesEncoder):
        raise ValueError(f"`encoder` must be a `TimeSeriesEncoder`. Received: encoder={encoder}")
    return encoder.dtype_policy


def _without_dtype(config: dict[str, Any]) -> dict[str, Any]:
    """Removes the dtype policy, which is the encoder's."""
    del config["dtype"]
    return config
