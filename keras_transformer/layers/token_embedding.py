"""Token embedding and output projection, which share one matrix by default."""

import json
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.operations import is_eager, read
from keras_transformer._backend.types import Ids, Mask, Rule, Shape, Tensor
from keras_transformer.errors import check_ids
from keras_transformer.layers.base import ConfiguredLayer

# Names of the scales of quantized matrices, by the names of the matrices.
_SCALES = {"embeddings": "scale", "output_embeddings": "output_scale"}

# Each dtype holds the integers below this number exactly.
_EXACT_INTEGERS = {"bfloat16": 2**8, "float16": 2**11}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(ConfiguredLayer):
    """Maps ids to vectors scaled by sqrt(d_model), and maps vectors to logits (§3.4).

    By default, both maps use one matrix. The initial values of a matrix have variance 1 / d_model,
    so that scaled vectors have variance 1 and the initial logits are not large.

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
        tie_weights: Whether both maps use one matrix. If False, the logits have a matrix of their
            own, `output_embeddings`. Defaults to True.
        use_bias: Whether a bias, initially 0, is added to the logits. Defaults to False.
        pad_id: Id of padding. The vectors carry a Keras mask that is False for padding, which the
            layers of this package and of Keras use where they get no other mask. Defaults to 0.
            None means no mask.
        soft_cap: Bound c of the logits z, which become c tanh(z / c), as in Gemma 2. Defaults to
            None.

    Call arguments:
        inputs: int tensor `(B, T)` of ids, or, with `reverse=True`, float tensor `(B, T, D)`. As in
            `keras.layers.Embedding`, ids of another dtype are cast to int32.
        reverse: Whether to project vectors to logits. Defaults to False.

    Returns:
        A float tensor in the compute dtype: `(B, T, D)`, or `(B, T, V)` with `reverse=True`.

    Raises:
        ValueError: If ids have a dtype of 16 bits that rounds some ids of the vocabulary, or are
            fractions or outside the vocabulary, outside of compiled functions.

    Source: Vaswani et al. 2017, §3.4; for the shared matrix, Press and Wolf 2017.
    """

    cut: Callable[[Tensor], Tensor] | None = None  # replaces the vectors `(B, T, D)` of a call

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        use_scale: bool = True,
        initializer: Rule = None,
        tie_weights: bool = True,
        use_bias: bool = False,
        pad_id: int | None = 0,
        soft_cap: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())
        self.scale: Any = None
        self.output_scale: Any = None
        self.bias: Any = None
        self.quantization_config = None

    def build(self, input_shape: Shape) -> None:
        for name in _SCALES if not self.tie_weights else ["embeddings"]:
            initial = self.initializer or keras.initializers.RandomNormal(stddev=self.d_model**-0.5)
            shape = self.vocabulary_size, self.d_model
            setattr(self, name, self.add_weight(shape, initial, name=name))
        if self.use_bias:
            self.bias = self.add_weight((self.vocabulary_size,), "zeros", name="bias")

    def output_weights(self) -> tuple[Any, Any]:
        """Returns the output matrix `(V, D)`, and the bias `(V,)` of the logits or None."""
        return self.embeddings if self.tie_weights else self.output_embeddings, self.bias

    def set_vectors(self, ids: Ids, vectors: Tensor) -> None:
        """Replaces the vectors of some tokens, for example with word vectors, before training.

        `vectors`, float `(N, D)`, are finite and not all 0. They are multiplied by one number,
        after which their mean square is that of the layer's matrix. The vectors of other tokens
        than `ids`, int `(N,)`, stay.
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

    def save_own_variables(self, store: Any) -> None:
        """Saves the weights as Keras does, which would copy a large matrix twice."""
        for index, weight in enumerate(self.weights):
            store[f"{index}"] = read(weight)

    def _output_spec(self, inputs: Tensor, reverse: bool) -> Any:
        shape = inputs.shape[:-1] if reverse else inputs.shape
        width = self.vocabulary_size if reverse else self.d_model
        return keras.KerasTensor((*shape, width), self.compute_dtype)

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Here, because Keras would round floats to the compute dtype before `call`.
        is_reverse = any(x is True for x in (*args[:1], kwargs.get("reverse")))
        return super().__call__(inputs if is_reverse else self._ids(inputs), *args, **kwargs)

    def call(self, inputs: Tensor, reverse: bool = False) -> Any:
        if reverse:
            logits = self._logits(inputs)
            logits = logits if self.bias is None else logits + self.bias
            cap = self.soft_cap
            return logits if cap is None else cap * ops.tanh(logits / cap)
        vectors = ops.cast(self._rows(inputs), self.compute_dtype)
        if self.scale is not None:
            scale = ops.take(self.scale, inputs, axis=0)
            vectors = vectors / ops.expand_dims(scale, -1)
        vectors = vectors * math.sqrt(self.d_model) if self.use_scale else vectors
        return self.cut(vectors) if self.cut else vectors

    def compute_mask(self, inputs: Tensor, previous_mask: Mask | None = None) -> Any:
        """Returns the Keras mask of the result: that of the ids, or with `reverse` as given."""
        if "int" not in keras.backend.standardize_dtype(inputs.dtype):
            return previous_mask
        return None if self.pad_id is None else ops.not_equal(inputs, self.pad_id)

    def _ids(self, inputs: Ids) -> Any:
        """Returns ids as int32. Outside of compiled functions, `check_ids` refuses wrong ones."""
        dtype = keras.backend.standardize_dtype(getattr(inputs, "dtype", "int32"))
        if self.vocabulary_size > _EXACT_INTEGERS.get(dtype, math.inf):
            raise ValueError(
                f"Ids in {dtype} are rounded. In a model, declare them as "
                f'`keras.Input((None,), dtype="int32")`. Received: dtype={dtype}'
            )
        if is_eager(inputs):
            check_ids(self.vocabulary_size, ids=ops.convert_to_numpy(inputs))
        return inputs if dtype == "int32" else ops.cast(inputs, "int32")

    def _rows(self, ids: Ids) -> Any:
        """Returns the vectors of ids. PyTorch finds ids without a vector, except negative ones."""
        try:
            return ops.take(self.embeddings, ids, axis=0)
        except IndexError:
            check_ids(self.vocabulary_size, ids=ops.convert_to_numpy(ids))
            raise

    def _logits(self, inputs: Tensor) -> Any:
        """Returns the logits without the bias."""
        kernel = ops.transpose(self.output_weights()[0])
        if self.scale is None:
            return ops.matmul(inputs, kernel)
        inputs, scale = keras.quantizers.abs_max_quantize(inputs, axis=-1)
        logits = ops.cast(ops.matmul(inputs, kernel), self.compute_dtype)
        own = self.scale if self.tie_weights else self.output_scale
        scales = (ops.cast(x, self.compute_dtype) for x in (scale, own))
        return logits / math.prod(scales)

    def quantize(self, mode: str, type_check: bool = True, config: Any = None) -> None:
        """Replaces each matrix with 8-bit integers and one scale per token, in mode "int8"."""
        if not _is_default_int8(config):
            raise NotImplementedError(
                f"The token embedding '{self.name}' stays in {self.variable_dtype}: it supports "
                "only `mode` 'int8' with Keras's default quantizers. "
                f"Received: mode={mode!r}, config={config}"
            )
        self.quantization_config = config
        self._is_quantized = True  # Keras then refuses to quantize the layer again.
        for name, name_of_scale in _SCALES.items():
            if (matrix := getattr(self, name, None)) is not None:
                values, scale = keras.quantizers.abs_max_quantize(matrix, axis=-1, to_numpy=True)
                delattr(self, name)
                self._set_constant(name, values, "int8")
                self._set_constant(name_of_scale, scale[:, 0], self.variable_dtype)

    def _set_constant(self, name: str, value: Any, dtype: str) -> None:
        weight = self.add_weight(value.shape, "zeros", dtype, trainable=False, name=name)
        weight.assign(value)
        setattr(self, name, weight)


def _is_default_int8(config: Any) -> bool:
    """Returns whether `config` equals the config that `quantize("int8")` uses by default."""
    default = keras.quantizers.Int8QuantizationConfig()
    if type(config) is not type(default) or config.weight_quantizer is not None:
        return False
    quantizers = (x.activation_quantizer for x in (config, default))
    # As JSON, because a loaded quantizer has lists instead of tuples.
    given, usual = (json.dumps(x and x.get_config()) for x in quantizers)
    return given == usual
