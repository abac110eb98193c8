"""Multi-head attention: self, cross and cached."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention.attention_pattern import AttentionPattern
from keras_transformer.layers.attention.masks import both_masks, causal_mask
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    scaled_dot_product_attention,
)
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.int8 import int8_matmul
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Attends with several heads and joins what they found (§3.2.2).

    Beside `keras.layers.MultiHeadAttention` it stores query, key, value and output kernels as 2-D
    matrices, which Glorot initialization and other engines understand; honours every mask it is
    given; keeps the softmax in float32; takes a rotary position encoding; and decodes one token
    at a time from cached keys and values (`init_cache`, `step`).

    Example:

    >>> attention = MultiHeadAttention(d_model=64, num_heads=4)
    >>> y = attention(query=x, use_causal_mask=True)                             # self-attention
    >>> y = attention(query=x, key=memory, padding_mask=memory_ids != 0)         # cross-attention

    Args:
        d_model: Width D of the output.
        num_heads: Number of heads H.
        d_k: Width K of a query and key head. Defaults to `d_model // num_heads`.
        d_v: Width of a value head. Defaults to `d_k`.
        dropout_rate: Dropout on the attention weights, in [0, 1). Defaults to 0, as in the paper.
        use_bias: Whether the four projections have biases. Defaults to True.
        use_scale: Whether scores are divided by sqrt(d_k). Defaults to True.
        position_encoding: `PositionalEncoding` whose `rotate` turns queries and keys, for
            self-attention. Defaults to None.
        attention_pattern: `AttentionPattern` for long sequences: `FullAttention()`,
            `LocalAttention(window)` or `StridedAttention(stride)`. Defaults to None: all to all by
            equation 1 as it stands, which is fastest for sentences.

    Call arguments:
        query: float tensor `(B, T, D)`.
        key: float tensor `(B, S, D)`. Defaults to `query`.
        value: float tensor `(B, S, D)`. Defaults to `key`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None.
        attention_mask: bool tensor broadcastable to `(B, T, S)`, True = may attend. Defaults to
            None.
        use_causal_mask: Whether position t attends only to positions up to t, in self-attention.
            Defaults to False.
        return_attention_weights: Whether to return the weights too. Defaults to False.
        training: Whether to drop attention weights. Defaults to False.

    With an `attention_mask`, or where weights are returned, all scores are computed, those that
    the pattern lacks are masked, and nothing is saved.

    Returns:
        A float tensor `(B, T, D)`; with `return_attention_weights` a tuple of it and the weights
        `(B, H, T, S)`.

    Raises:
        ValueError: If `d_k` is not given and `num_heads` does not divide `d_model`.

    Source: Vaswani et al. 2017, §3.2.2.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        dropout_rate: float = 0.0,
        use_bias: bool = True,
        use_scale: bool = True,
        position_encoding: PositionalEncoding | None = None,
        attention_pattern: AttentionPattern | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if d_k is None and d_model % num_heads:
            raise ValueError(
                "`num_heads` must divide `d_model` where `d_k` is not given. "
                f"Received: num_heads={num_heads}, d_model={d_model}"
            )
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v
        self.dropout_rate = dropout_rate
        self.use_bias = use_bias
        self.use_scale = use_scale
        self.position_encoding = position_encoding
        self.attention_pattern = attention_pattern
        self.query_projection = self._projection(num_heads * self.d_k, "query")
        self.key_projection = self._projection(num_heads * self.d_k, "key")
        self.value_projection = self._projection(num_heads * self.d_v, "value")
        self.output_projection = self._projection(d_model, "output")
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")

    def _projection(self, units: int, name: str) -> Dense:
        dtype = self.dtype_policy
        return Dense(units, use_bias=self.use_bias, dtype=dtype, name=name)

    def build(self, query_shape: Any, key_shape: Any = None, value_shape: Any = None) -> None:
        key_shape = key_shape or query_shape
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape)
        self.value_projection.build(value_shape or key_shape)
        self.output_projection.build((None, None, self.num_heads * self.d_v))
        self.built = True

    def call(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        padding_mask: Any = None,
        attention_mask: Any = None,
        use_causal_mask: bool = False,
        return_attention_weights: bool = False,
        training: bool = False,
    ) -> Any:
        key = query if key is None else key
        value = key if value is None else value
        mask, pattern = attention_mask, self.attention_pattern
        if pattern is not None:
            if mask is None and not return_attention_weights:
                masks = {"padding_mask": padding_mask, "use_causal_mask": use_causal_mask}
                return self._attend_by(pattern, query, key, value, training=training, **masks)
            distance = ops.arange(ops.shape(query)[1])[:, None] - ops.arange(ops.shape(key)[1])
            mask = both_masks(mask, pattern.allows(distance)[None])
        if use_causal_mask:
            mask = both_masks(mask, causal_mask(ops.shape(query)[1]))
        if padding_mask is not None:
            mask = both_masks(mask, padding_mask[:, None, :])
        output, weights = self.attend(query, self.project_memory(key, value), mask)
        return (output, weights) if return_attention_weights else output

    def _attend_by(
        self, pattern: AttentionPattern, query: Any, key: Any, value: Any, **options: Any
    ) -> Any:
        heads = pattern(
            self._rotate(self._split_heads(self.query_projection(query))),
            self._rotate(self._split_heads(self.key_projection(key))),
            self._split_heads(self.value_projection(value)),
            use_scale=self.use_scale,
            dropout=self.dropout if self.dropout_rate else None,
            **options,
        )
        return self.output_projection(self._join_heads(heads))

    def project_memory(self, key: Any, value: Any) -> dict[str, Any]:
        """Projects what is attended to, once for any number of queries.

        Args:
            key: float tensor `(B, S, D)`.
            value: float tensor `(B, S, D)`.

        Returns:
            `{"key": (B, H, K, S), "value": (B, H, S, K_v)}`, float tensors in the compute dtype.
        """
        keys = self._rotate(self._split_heads(self.key_projection(key)))
        return {
            "key": ops.swapaxes(keys, -1, -2),
            "value": self._split_heads(self.value_projection(value)),
        }

    def attend(self, query: Any, memory: dict[str, Any], attention_mask: Any) -> tuple[Any, Any]:
        """Attends to projected keys and values.

        Args:
            query: float tensor `(B, T, D)`.
            memory: What `project_memory` returned.
            attention_mask: bool tensor broadcastable to `(B, T, S)`, True = may attend, or None.

        Returns:
            A tuple of the output `(B, T, D)` and the weights `(B, H, T, S)`.
        """
        queries = self._rotate(self._split_heads(self.query_projection(query)))
        if attention_mask is not None:
            attention_mask = ops.expand_dims(attention_mask, 1)
        heads, weights = self._attention(queries, memory, attention_mask)
        return self.output_projection(self._join_heads(heads)), weights

    def init_cache(self, batch: Any, beam_size: int, max_length: int | None) -> dict[str, Any]:
        """Returns empty buffers for the keys and values of `max_length` positions.

        None stands for buffers that grow: they have no more positions than were decoded, the key
        is `(B * H, L * N, K)`, and there is an entry `"grows"`, which is empty.

        Each position has N slots, one for every hypothesis. What is once written is never moved:
        the mask of `step` says which slots a hypothesis is made of. Compilers write into these
        shapes in place and multiply them as they are.

        Returns:
            `{"key": (B * H, K, L * N), "value": (B * H, L * N, K_v)}`, zeros in the compute dtype.
        """
        rows = batch * self.num_heads
        if max_length is None:
            return {
                "grows": (),
                "key": ops.zeros((rows, 0, self.d_k), self.compute_dtype),
                "value": ops.zeros((rows, 0, self.d_v), self.compute_dtype),
            }
        slots = max_length * beam_size
        return {
            "key": ops.zeros((rows, self.d_k, slots), self.compute_dtype),
            "value": ops.zeros((rows, slots, self.d_v), self.compute_dtype),
        }

    def fuse_projections(self) -> dict[str, Any]:
        """Joins the projections to query, key and value: in `step` one product, not three.

        Returns:
            `"kernel"` `(D, H * (2 * K + K_v))` in the compute dtype, or int8 after `quantize`, then
            with its `"scale"`; where there are biases, `"bias"`. Both are vectors.
        """
        parts = (self.query_projection, self.key_projection, self.value_projection)
        kernel = ops.concatenate([part.kernel for part in parts], axis=-1)
        fused = {"kernel": kernel}
        if self.query_projection.quantization_mode == "int8":
            fused["scale"] = ops.concatenate([part.kernel_scale for part in parts], axis=-1)
        else:
            fused["kernel"] = ops.cast(kernel, self.compute_dtype)
        if self.use_bias:
            bias = ops.concatenate([part.bias for part in parts], axis=-1)
            fused["bias"] = ops.cast(bias, self.compute_dtype)
        return fused

    def step(
        self,
        query: Any,
        cache: dict[str, Any],
        projections: dict[str, Any],
        attention_mask: Any,
        position: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Causal self-attention of one new token per hypothesis, from cached keys and values.

        Args:
            query: float tensor `(B * N, D)`, the tokens at `position` of N hypotheses a sentence;
                the n-th is written to slot n.
            cache: Keys and values of the earlier positions, as `init_cache` lays them out.
            projections: What `fuse_projections` returned.
            attention_mask: bool tensor `(B * H, N, L * N)`: of the slots of all positions, True
                for those that a hypothesis is made of, with that of its newest token.
            position: Position of the tokens, an int or a 0-d int tensor.

        Returns:
            A tuple of the output `(B * N, D)` and the cache with these tokens' keys and values.
        """
        beams = ops.shape(attention_mask)[1]
        queries, keys, values = self._project_beams(query, beams, projections, position)
        cache = _write(cache, keys, values, position * beams)
        if self.attention_pattern is not None:
            of_slots = ops.arange(ops.shape(attention_mask)[2], dtype="int32") // beams
            allowed = self.attention_pattern.allows(position - of_slots)
            attention_mask = both_masks(attention_mask, allowed)
        heads, _ = self._attention(queries, cache, attention_mask)
        heads = ops.reshape(heads, (-1, self.num_heads, beams, self.d_v))
        return self.output_projection(self._join_beams(heads)), cache

    def attend_step(
        self, query: Any, memory: dict[str, Any], attention_mask: Any, beam_size: int
    ) -> tuple[Any, Any]:
        """Attends to projected keys and values with one new token per hypothesis.

        Args:
            query: float tensor `(B * N, D)`.
            memory: What `project_memory` returned, of B sentences.
            attention_mask: bool tensor broadcastable to `(B, N, S)`, True = may attend.
            beam_size: Hypotheses N per sentence.

        Returns:
            A tuple of the output `(B * N, D)` and the weights `(B, H, N, S)`.
        """
        queries = self._split_beams(self.query_projection(query), beam_size)
        heads, weights = self._attention(queries, memory, attention_mask[:, None])
        return self.output_projection(self._join_beams(heads)), weights

    def _project_beams(
        self, query: Any, beams: int, projections: dict[str, Any], position: Any
    ) -> tuple[Any, ...]:
        """Queries, keys and values `(B * H, N, K)` of one position."""
        if "scale" in projections:
            projected = int8_matmul(query, projections["kernel"], projections["scale"])
        else:
            projected = ops.matmul(query, projections["kernel"])
        if self.use_bias:
            projected = projected + projections["bias"]
        width = self.num_heads * self.d_k
        parts = (slice(width), slice(width, 2 * width), slice(2 * width, None))
        heads = [self._split_beams(projected[:, part], beams) for part in parts]
        queries, keys, values = (ops.reshape(x, (-1, *ops.shape(x)[2:])) for x in heads)
        if self.position_encoding is not None:
            queries, keys = (
                self._rotate(x[..., None, :], position)[..., 0, :] for x in (queries, keys)
            )
        return queries, keys, values

    def _attention(self, queries: Any, memory: dict[str, Any], mask: Any) -> tuple[Any, Any]:
        return scaled_dot_product_attention(
            queries,
            memory["key"],
            memory["value"],
            attention_mask=mask,
            use_scale=self.use_scale,
            dropout=self.dropout if self.dropout_rate else None,
            key_is_transposed="grows" not in memory,
        )

    def _split_heads(self, x: Any) -> Any:
        """`(B, T, H * K)` to `(B, H, T, K)`."""
        batch, length, width = ops.shape(x)
        x = ops.reshape(x, (batch, length, self.num_heads, width // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_heads(self, heads: Any) -> Any:
        """`(B, H, T, K)` to `(B, T, H * K)`."""
        heads = ops.transpose(heads, (0, 2, 1, 3))
        batch, length = ops.shape(heads)[:2]
        return ops.reshape(heads, (batch, length, self.num_heads * self.d_v))

    def _split_beams(self, x: Any, beams: int) -> Any:
        """`(B * N, H * K)` to `(B, H, N, K)`."""
        x = ops.reshape(x, (-1, beams, self.num_heads, x.shape[-1] // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_beams(self, heads: Any) -> Any:
        """`(B, H, N, K)` to `(B * N, H * K)`."""
        heads = ops.transpose(heads, (0, 2, 1, 3))
        return ops.reshape(heads, (-1, self.num_heads * self.d_v))

    def _rotate(self, heads: Any, offset: Any = 0) -> Any:
        if self.position_encoding is None:
            return heads
        return self.position_encoding.rotate(heads, offset)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_k": self.d_k,
            "d_v": self.d_v,
            "dropout_rate": self.dropout_rate,
            "use_bias": self.use_bias,
            "use_scale": self.use_scale,
            "position_encoding": keras.saving.serialize_keras_object(self.position_encoding),
            "attention_pattern": keras.saving.serialize_keras_object(self.attention_pattern),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MultiHeadAttention":
        objects = {
            name: keras.saving.deserialize_keras_object(config.get(name))
            for name in ("position_encoding", "attention_pattern")
        }
        return cls(**{**config, **objects})


def _write(cache: dict[str, Any], keys: Any, values: Any, start: Any) -> dict[str, Any]:
    """Writes keys `(B * H, N, K)` and values `(B * H, N, K_v)` into the slots from `start` on."""
    if "grows" in cache:
        return {
            "grows": (),
            "key": ops.concatenate([cache["key"], keys], axis=1),
            "value": ops.concatenate([cache["value"], values], axis=1),
        }
    return {
        "key": ops.slice_update(cache["key"], (0, 0, start), ops.swapaxes(keys, -1, -2)),
        "value": ops.slice_update(cache["value"], (0, start, 0), values),
    }
