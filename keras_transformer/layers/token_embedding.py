"""Token embedding and output projection, which share one matrix."""

import json
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend import without_tensorflow
from keras_transformer.errors import check_ids
from keras_transformer.layers.base import ConfiguredLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(ConfiguredLayer):
    """Maps ids to vectors scaled by sqrt(d_model), and maps vectors to logits (§3.4).

    Both maps use one matrix. The initial values of the matrix have variance 1 / d_model, so that
    scaled vectors have variance 1 and the initial logits are not large.

    Example:

    >>> embedding = TokenEmbedding(vocabulary_size=1000, d_model=64)
    >>> vectors = embedding(np.array([[5, 6, 7]]))          # (1, 3, 64)
    >>> logits = embedding(vectors, reverse=True)           # (1, 3, 1000)

    Args:
        vocabulary_size: Number of tokens V.
        d_model: Width D of the vectors.
        use_scale: Whether vectors are multiplied by sqrt(d_model). Defaults to True.
        initializer: Initializer of the matrix. Defaults to None, which means a normal distribution
            with standard deviation d_model^-1/2.

    Call arguments:
        inputs: int tensor `(B, T)` of ids, or, with `reverse=True`, float tensor `(B, T, D)`.
        reverse: Whether to project vectors to logits. Defaults to False.

    Returns:
        A float tensor in the compute dtype: `(B, T, D)`, or `(B, T, V)` with `reverse=True`.

    Raises:
        ValueError: If the ids are not integers. `keras.Input` makes floats of them by default.

    Source: Vaswani et al. 2017, §3.4; for the shared matrix, Press and Wolf 2017.
    """

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        use_scale: bool = True,
        initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())
        self.scale: Any = None
        self.quantization_config = None

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.d_model),
            initializer=keras.initializers.get(
                self.initializer or keras.initializers.RandomNormal(stddev=self.d_model**-0.5)
            ),
        )
        self.built = True

    def set_vectors(self, ids: Any, vectors: Any) -> None:
        """Replaces the vectors of some tokens, for example with word vectors, before training.

        All new vectors are multiplied by one number, after which the mean square of their values is
        that of the layer's matrix. The vectors of the other tokens stay.

        Args:
            ids: Ids of the tokens, int `(N,)`.
            vectors: The new vectors, float `(N, D)`, finite and not all 0.
        """
        ids, vectors = np.asarray(ids), np.asarray(ops.convert_to_numpy(vectors), "float32")
        check_ids(self.vocabulary_size, ids=ids)
        shape = (len(ids), self.d_model)
        size = np.mean(vectors**2) if vectors.shape == shape and len(ids) else 0.0
        if not 0 < size < np.inf or self.scale is not None:
            raise ValueError(
                f"`vectors` must have the shape {shape}, be finite and not all 0, and the layer "
                f"must not be quantized. Received: shape={vectors.shape}, mean square {size}"
            )
        matrix = np.array(ops.convert_to_numpy(self.embeddings))
        matrix[ids] = vectors * np.sqrt(np.mean(matrix**2) / size)
        self.embeddings.assign(matrix)

    def _output_spec(self, inputs: Any, reverse: bool) -> Any:
        _check_ids(inputs, reverse)
        shape = inputs.shape[:-1] if reverse else inputs.shape
        width = self.vocabulary_size if reverse else self.d_model
        return keras.KerasTensor((*shape, width), self.compute_dtype)

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        _check_ids(inputs, reverse)
        if reverse:
            kernel = ops.transpose(self.embeddings)
            if self.scale is None:
                return ops.matmul(inputs, kernel)
            inputs, scale = keras.quantizers.abs_max_quantize(inputs, axis=-1)
            logits = ops.cast(ops.matmul(inputs, kernel), self.compute_dtype)
            scales = (ops.cast(x, self.compute_dtype) for x in (scale, self.scale))
            return logits / math.prod(scales)
        inputs = ops.cast(inputs, "int32")  # TensorFlow has no lookup by unsigned integers.
        vectors = ops.cast(ops.take(self.embeddings, inputs, axis=0), self.compute_dtype)
        if self.scale is not None:
            scale = ops.take(self.scale, inputs, axis=0)
            vectors = vectors / ops.expand_dims(scale, -1)
        return vectors * math.sqrt(self.d_model) if self.use_scale else vectors

    def quantize(self, mode: str, type_check: bool = True, config: Any = None) -> None:
        """Replaces the matrix with 8-bit integers and one scale per token.

        `keras.Model.quantize` skips layers that raise `NotImplementedError`.
        """
        if not _is_default_int8(config):
            raise NotImplementedError(
                f"The token embedding '{self.name}' stays in {self.variable_dtype}: it supports "
                "only `mode` 'int8' with Keras's default quantizers. "
                f"Received: mode={mode!r}, config={config}"
            )
        self.quantization_config = config
        self._is_quantized = True  # Keras then refuses to quantize the layer again.
        values, scale = keras.quantizers.abs_max_quantize(self.embeddings, axis=-1, to_numpy=True)
        self._tracker.unlock()
        del self.embeddings
        options = {"initializer": "zeros", "trainable": False}
        self.embeddings = self.add_weight(values.shape, name="embeddings", dtype="int8", **options)
        self.scale = self.add_weight(
            scale.shape[:1], name="scale", dtype=self.variable_dtype, **options
        )
        self.embeddings.assign(values)
        self.scale.assign(scale[:, 0])
        self._tracker.lock()


def _check_ids(inputs: Any, reverse: bool) -> None:
    if hasattr(inputs, "to_tensor"):  # later errors of TensorFlow name no cause
        raise ValueError("`inputs` must be dense: use `to_tensor(pad_id)`. Received: RaggedTensor")
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    if not reverse and "int" not in dtype:
        raise ValueError(
            "`inputs` must be ids of an integer dtype. In a model, declare them as "
            f'`keras.Input((None,), dtype="int32")`. Received: dtype={dtype}'
        )


def _is_default_int8(config: Any) -> bool:
    """Returns whether `config` equals the config that `quantize("int8")` uses by default."""
    with without_tensorflow():
        # As JSON, because a loaded quantizer has lists instead of tuples.
        given, default = (
            json.dumps(x and keras.saving.serialize_keras_object(x))
            for x in (config, keras.quantizers.Int8QuantizationConfig())
        )
    return given == default
