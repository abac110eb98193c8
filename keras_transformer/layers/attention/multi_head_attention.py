"""Computes multi-head attention, with or without a cache of keys and values."""

from typing import Any

import keras
from keras import ops

from keras_transformer.errors import check_sizes
from keras_transformer.layers.attention.attention_pattern import (
    AttentionPattern,
    check_mask_length,
    sequence_start,
)
from keras_transformer.layers.attention.attention_records import (
    is_recorded,
    record_attention,
    self_attention_kind,
)
from keras_transformer.layers.attention.cache import FixedKeyValues, GrowingKeyValues
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    both_masks,
    causal_mask,
    scaled_dot_product_attention,
)
from keras_transformer.layers.base import (
    ConfiguredLayer,
    Dense,
    initializer_config,
    int8_matmul,
    is_default_int8,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(ConfiguredLayer):
    """Computes attention in several heads and joins their outputs (§3.2.2).

    Unlike `keras.layers.MultiHeadAttention`, this layer stores its kernels as 2-D matrices, as
    Glorot initialization and inference engines expect. This layer combines all given masks,
    computes the softmax in float32, and supports position encodings that change queries, keys or
    scores. `init_cache` and `step` decode one token at a time with cached keys and values.

    Example:

    >>> attention = MultiHeadAttention(d_model=64, num_heads=4)
    >>> y = attention(query=x, use_causal_mask=True)                             # self-attention
    >>> y = attention(query=x, key=memory, padding_mask=memory_ids != 0)         # cross-attention

    Args:
        d_model: Width D of the output.
        num_heads: Number of heads H.
        d_k: Width K of queries and keys in each head. Defaults to `d_model // num_heads`.
        d_v: Width K_v of values in each head. Defaults to `d_k`.
        dropout_rate: Dropout rate of the attention weights, in [0, 1). Defaults to 0, as in the
            paper.
        use_bias: Whether the four projections have biases. Defaults to True.
        use_scale: Whether scores are divided by sqrt(d_k). Defaults to True.
        kernel_initializer: Initializer of the four kernels. Defaults to `"glorot_uniform"`.
        position_encoding: `PositionalEncoding` for self-attention. The layer applies the encoding's
            `rotate` to queries and keys, and adds the encoding's `score_bias` to the scores.
            Defaults to None.
        attention_pattern: `AttentionPattern` for long sequences: `FullAttention()`,
            `LocalAttention(window)`, `StridedAttention(stride)` or `FixedAttention(block_size)`.
            Defaults to None. The layer then computes all scores at once (equation 1), which is
            fastest for short inputs.

    Call arguments:
        query: float tensor `(B, T, D)`.
        key: float tensor `(B, S, D)`, keyword-only, because `keras.layers.MultiHeadAttention`
            takes `value` before `key`. Defaults to `query`.
        value: float tensor `(B, S, D)`, keyword-only. Defaults to `key`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None,
            which means the Keras mask of `key`, if any.
        attention_mask: bool tensor, True = may attend. A 3-D mask has the shape `(B, T, S)`. A 2-D
            or 4-D mask must be broadcastable to `(B, H, T, S)`. Defaults to None.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        return_attention_weights: Whether to also return the attention weights. Defaults to False.
        training: Whether to apply dropout. Defaults to False.

    With `attention_mask` or `return_attention_weights`, the layer computes all scores and applies
    the `attention_pattern` as a mask. The pattern then saves no time or memory.

    Returns:
        A float tensor `(B, T, D)`. With `return_attention_weights`, the layer returns a tuple of
        this tensor and the attention weights `(B, H, T, S)`.

    Raises:
        ValueError: If a size is not an integer of at least 1.
        ValueError: If `d_k` is not given and `num_heads` does not divide `d_model`.
        ValueError: If an `attention_pattern` is combined with a position encoding that has a
            `score_bias`.
        ValueError: If the `position_encoding` has another number of heads, or rotates heads and
            `d_k` is odd.
        ValueError: If `padding_mask` has another number of columns than there are keys.

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
        kernel_initializer: Any = "glorot_uniform",
        position_encoding: PositionalEncoding | None = None,
        attention_pattern: AttentionPattern | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        given = {"d_k": d_k, "d_v": d_v}
        given = {name: size for name, size in given.items() if size is not None}
        check_sizes(d_model=d_model, num_heads=num_heads, **given)
        if d_k is None and d_model % num_heads:
            raise ValueError(
                "`num_heads` must divide `d_model` if `d_k` is not given. "
                f"Received: num_heads={num_heads}, d_model={d_model}"
            )
        if attention_pattern and position_encoding and position_encoding.has_score_bias:
            raise ValueError(
                "An `attention_pattern` cannot be combined with a position encoding that adds a "
                "bias to the scores. "
                f"Received: attention_pattern={attention_pattern}, "
                f"position_encoding={type(position_encoding).__name__}"
            )
        of_bias = getattr(position_encoding, "num_heads", num_heads)
        if of_bias != num_heads:
            raise ValueError(
                "`position_encoding` must have the same `num_heads` as the layer. "
                f"Received: num_heads={num_heads}, position_encoding.num_heads={of_bias}"
            )
        self.supports_masking = True
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v
        if position_encoding is not None:
            position_encoding.check_head_width(self.d_k)
        self.dropout_rate = dropout_rate
        self.use_bias = use_bias
        self.use_scale = use_scale
        self.kernel_initializer = initializer_config(kernel_initializer)
        self.position_encoding = position_encoding
        self.attention_pattern = attention_pattern
        self.query_projection = self._projection(num_heads * self.d_k, "query")
        self.key_projection = self._projection(num_heads * self.d_k, "key")
        self.value_projection = self._projection(num_heads * self.d_v, "value")
        self.output_projection = self._projection(d_model, "output")
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")

    def _projection(self, units: int, name: str) -> Dense:
        return Dense(
            units,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name=name,
        )

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
        *,
        key: Any = None,
        value: Any = None,
        padding_mask: Any = None,
        attention_mask: Any = None,
        use_causal_mask: bool = False,
        return_attention_weights: bool = False,
        training: bool = False,
        mask: Any = None,
        query_mask: Any = None,
        key_mask: Any = None,
    ) -> Any:
        # Keras sets the last 3 arguments: `mask` if `query` is the only tensor, else the others.
        if padding_mask is None:
            query_mask = mask if query_mask is None else query_mask
            padding_mask = query_mask if key is None else key_mask
        is_cross_attention = key is not None and key is not query
        key = query if key is None else key
        value = key if value is None else value
        allowed, bias = _over_heads(attention_mask), None
        needs_weights = return_attention_weights or is_recorded()
        if self.attention_pattern is not None and allowed is None and not needs_weights:
            heads = self.attention_pattern(
                self._rotate(self._split_heads(self.query_projection(query))),
                self._rotate(self._split_heads(self.key_projection(key))),
                self._split_heads(self.value_projection(value)),
                padding_mask=padding_mask,
                use_causal_mask=use_causal_mask,
                use_scale=self.use_scale,
                dropout=self.dropout if self.dropout_rate else None,
                training=training,
            )
            return self.output_projection(self._join_heads(heads))
        check_mask_length(padding_mask, key.shape[1])
        is_real = None if padding_mask is None else padding_mask[:, None, None, :]
        if self._needs_positions:
            queries, keys = (ops.arange(ops.shape(x)[1], dtype="int32") for x in (query, key))
            allowed, bias = self._by_position(queries[:, None], keys, is_real, allowed)
        if use_causal_mask:
            allowed = both_masks(allowed, causal_mask(ops.shape(query)[1], ops.shape(key)[1]))
        if is_real is not None:
            allowed = both_masks(allowed, is_real)
        queries = self._rotate(self._split_heads(self.query_projection(query)))
        memory = self.project_memory(key, value)
        heads, weights = self._attention(queries, memory, allowed, bias)
        own_kind = self_attention_kind(use_causal_mask)
        record_attention(self, "cross" if is_cross_attention else own_kind, weights)
        output = self.output_projection(self._join_heads(heads))
        return (output, weights) if return_attention_weights else output

    def project_memory(self, key: Any, value: Any) -> FixedKeyValues:
        """Projects `key` and `value` `(B, S, D)`. Any number of queries can use the result.

        Returns:
            Keys `(B, H, K, S)` and values `(B, H, S, K_v)`, float tensors in the compute dtype.
        """
        keys = self._rotate(self._split_heads(self.key_projection(key)))
        values = self._split_heads(self.value_projection(value))
        return FixedKeyValues(ops.swapaxes(keys, -1, -2), values)

    def init_cache(
        self, batch: Any, beam_size: Any, max_length: int | None
    ) -> FixedKeyValues | GrowingKeyValues:
        """Returns an empty cache for `max_length` positions.

        If `max_length` is None, the cache grows by one position per step.
        """
        kind = GrowingKeyValues if max_length is None else FixedKeyValues
        sizes = (batch * self.num_heads, self.d_k, self.d_v, (max_length or 0) * beam_size)
        return kind.empty(*sizes, self.compute_dtype)

    def project_prompt(self, prompt: Any) -> tuple[Any, Any]:
        """Projects a prompt `(B, P, D)` to keys `(B * H, P, K)` and values `(B * H, P, K_v)`.

        The positions are -P, ..., -1, because the first step has position 0. Only the differences
        of positions have an effect.
        """
        keys = self._split_heads(self.key_projection(prompt))
        keys = self._rotate(keys, -ops.shape(prompt)[1])
        values = self._split_heads(self.value_projection(prompt))
        keys, values = (ops.reshape(x, (-1, *ops.shape(x)[2:])) for x in (keys, values))
        return keys, values

    def fuse_projections(self) -> dict[str, Any]:
        """Joins query, key and value projections, so that one matrix product computes all three.

        Returns:
            A dict with a matrix `"kernel"` `(D, H * (2 * K + K_v))` in the compute dtype. If
            `use_bias` is True, the dict also contains a vector `"bias"` in the compute dtype. After
            `quantize("int8")`, the kernel is int8, and the dict also contains a vector `"scale"`.
            After any other quantization, or with LoRA on quantized kernels, the dict is empty, and
            `step` computes three matrix products.
        """
        parts = (self.query_projection, self.key_projection, self.value_projection)
        configs = [part.quantization_config for part in parts]
        is_int8 = all(map(is_default_int8, configs)) and not any(x.lora_enabled for x in parts)
        if not is_int8 and any(configs):
            return {}
        kernel = ops.concatenate([part.kernel for part in parts], axis=-1)
        fused = {"kernel": kernel}
        if is_int8:
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
        cache: FixedKeyValues | GrowingKeyValues,
        projections: dict[str, Any],
        attention_mask: Any,
        position: Any,
        prompt_length: Any = 0,
    ) -> tuple[Any, FixedKeyValues | GrowingKeyValues]:
        """Computes causal self-attention for one new token per hypothesis, with a cache.

        Args:
            query: float tensor `(B * N, D)`, one vector for the new token of each hypothesis.
            cache: Keys and values of the P tokens of the prompt, if any, and of the earlier
                positions. Each position has N entries. The step writes the new key and value of
                hypothesis n to entry n of the new position.
            projections: The result of `fuse_projections`.
            attention_mask: bool tensor `(B * H, N, P + L * N)`, the padding mask of the prompt and
                the mask that `take_slots` returns.
            position: Position of the new tokens, an int or a 0-d int tensor.
            prompt_length: Number P of tokens of the prompt. Defaults to 0.

        Returns:
            A tuple of the output `(B * N, D)` and the cache with the new keys and values.
        """
        beams, num_slots = ops.shape(attention_mask)[1:]
        queries, keys, values = self._project_beams(query, beams, projections, position)
        cache = cache.write(keys, values, prompt_length + position * beams)
        bias = None
        if self._needs_positions:
            slots = ops.arange(num_slots, dtype="int32") - prompt_length
            own = prompt_length + ops.where(slots < 0, slots, slots // beams)
            is_real = attention_mask[:, :1, :prompt_length]
            attention_mask, bias = self._by_position(
                prompt_length + position, own, is_real, attention_mask
            )
        if bias is not None:
            bias = ops.tile(bias[:, None], (ops.shape(queries)[0] // self.num_heads, 1, 1))
        heads, _ = self._attention(queries, cache, attention_mask, bias)
        heads = ops.reshape(heads, (-1, self.num_heads, beams, self.d_v))
        return self.output_projection(self._join_beams(heads)), cache

    def attend_step(
        self, query: Any, memory: FixedKeyValues, padding_mask: Any, beam_size: int
    ) -> tuple[Any, Any]:
        """Computes cross-attention for one new token per hypothesis, with projected memory.

        Args:
            query: float tensor `(B * N, D)`, one vector per hypothesis.
            memory: The result of `project_memory` for B sentences.
            padding_mask: bool tensor `(B, S)`, True where a key is a real token.
            beam_size: Number of hypotheses N per sentence.

        Returns:
            A tuple of the output `(B * N, D)` and the attention weights `(B, H, N, S)`.
        """
        queries = self._split_beams(self.query_projection(query), beam_size)
        heads, weights = self._attention(queries, memory, padding_mask[:, None, None, :])
        return self.output_projection(self._join_beams(heads)), weights

    def _project_beams(
        self, query: Any, beams: int, projections: dict[str, Any], position: Any
    ) -> tuple[Any, ...]:
        """Returns the queries, keys and values `(B * H, N, K)` of one position."""
        parts = (
            self._project_fused(query, projections)
            if projections
            else (
                self.query_projection(query),
                self.key_projection(query),
                self.value_projection(query),
            )
        )
        heads = [self._split_beams(part, beams) for part in parts]
        queries, keys, values = (ops.reshape(x, (-1, *ops.shape(x)[2:])) for x in heads)
        if self.position_encoding is not None:
            queries, keys = (
                self._rotate(x[..., None, :], position)[..., 0, :] for x in (queries, keys)
            )
        return queries, keys, values

    def _project_fused(self, query: Any, projections: dict[str, Any]) -> list[Any]:
        if "scale" in projections:
            projected = int8_matmul(query, projections["kernel"], projections["scale"])
        else:
            projected = ops.matmul(query, projections["kernel"])
        if self.use_bias:
            projected = projected + projections["bias"]
        width = self.num_heads * self.d_k
        parts = (slice(width), slice(width, 2 * width), slice(2 * width, None))
        return [projected[:, part] for part in parts]

    def _attention(
        self,
        queries: Any,
        memory: FixedKeyValues | GrowingKeyValues,
        mask: Any,
        score_bias: Any = None,
    ) -> tuple[Any, Any]:
        return scaled_dot_product_attention(
            queries,
            memory.key,
            memory.value,
            attention_mask=mask,
            use_scale=self.use_scale,
            dropout=self.dropout if self.dropout_rate else None,
            key_is_transposed=memory.key_is_transposed,
            score_bias=score_bias,
        )

    def _split_heads(self, x: Any) -> Any:
        """Reshapes `(B, T, H * K)` to `(B, H, T, K)`."""
        batch, length, width = ops.shape(x)
        x = ops.reshape(x, (batch, length, self.num_heads, width // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_heads(self, heads: Any) -> Any:
        """Reshapes `(B, H, T, K)` to `(B, T, H * K)`."""
        heads = ops.transpose(heads, (0, 2, 1, 3))
        batch, length = ops.shape(heads)[:2]
        return ops.reshape(heads, (batch, length, self.num_heads * self.d_v))

    def _split_beams(self, x: Any, beams: int) -> Any:
        """Reshapes `(B * N, H * K)` to `(B, H, N, K)`."""
        x = ops.reshape(x, (-1, beams, self.num_heads, x.shape[-1] // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_beams(self, heads: Any) -> Any:
        """Reshapes `(B, H, N, K)` to `(B * N, H * K)`."""
        heads = ops.transpose(heads, (0, 2, 1, 3))
        return ops.reshape(heads, (-1, self.num_heads * self.d_v))

    def _rotate(self, heads: Any, offset: Any = 0) -> Any:
        if self.position_encoding is None:
            return heads
        return self.position_encoding.rotate(heads, offset)

    @property
    def _needs_positions(self) -> bool:
        encoding = self.position_encoding
        has_score_bias = encoding is not None and encoding.has_score_bias
        return self.attention_pattern is not None or has_score_bias

    def _by_position(self, queries: Any, keys: Any, is_real: Any, mask: Any) -> tuple[Any, Any]:
        """Combines `mask` with the attention pattern's mask, and computes the score bias.

        Args:
            queries: int32 tensor `(T, 1)` or `()`, the positions of the queries.
            keys: int32 tensor `(S,)`, the positions of the keys.
            is_real: bool tensor `(..., 1, P)`, True where one of the first P keys is a real token.
                None if all keys are.
            mask: A bool mask, or None.

        Returns:
            A tuple of the combined mask and the score bias. The mask and the bias can be None.
        """
        if self.attention_pattern is not None:
            start = 0 if is_real is None else sequence_start(is_real)
            mask = both_masks(mask, self.attention_pattern.allows(queries - start, keys - start))
        encoding = self.position_encoding
        return mask, None if encoding is None else encoding.score_bias(queries - keys)


def _over_heads(mask: Any) -> Any:
    """Adds a head axis to a mask `(B, T, S)`, so that it broadcasts to `(B, H, T, S)`."""
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    if len(mask.shape) > 4 or "float" in keras.backend.standardize_dtype(mask.dtype):
        raise ValueError(
            "`attention_mask` must have at most four axes (B, H, T, S) and be bool, True = may "
            f"attend. Received: attention_mask of shape {mask.shape} and dtype {mask.dtype}"
        )
    return mask[:, None] if len(mask.shape) == 3 else mask
