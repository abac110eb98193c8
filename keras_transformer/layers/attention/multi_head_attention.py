"""Computes multi-head attention."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.operations import attend, is_fused, joined_affine
from keras_transformer._backend.types import Mask, Rule, Shape, Size, Tensor
from keras_transformer.layers.attention.attention_patterns import (
    AttentionPattern,
    check_mask_length,
    sequence_start,
)
from keras_transformer.layers.attention.cache import Cache, CacheSize, KeyValues
from keras_transformer.layers.attention.decoding_step import DecodingStep, update_cache
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    AttentionKind,
    both_masks,
    causal_mask,
    is_recorded,
    record_attention,
    scaled_dot_product_attention,
)
from keras_transformer.layers.base import ConfiguredLayer, Dense, dense_options, given_mask, on_rows
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.normalization import RMSNormalization
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(ConfiguredLayer):
    """Computes attention in several heads and joins their outputs (§3.2.2).

    Unlike `keras.layers.MultiHeadAttention`, this layer stores its kernels as 2-D matrices, as
    Glorot initialization and inference engines expect, computes the softmax in float32, and
    supports position encodings that change queries, keys or scores.

    Example:

    >>> attention = MultiHeadAttention(d_model=64, num_heads=4)
    >>> y = attention(query=x, use_causal_mask=True)                             # self-attention
    >>> y = attention(query=x, key=memory, padding_mask=memory_ids != 0)         # cross-attention

    Args:
        d_model: Width D of the output. Defaults to None, which means the width of `query`.
        num_heads: Number of heads H. Defaults to 8, as in the paper.
        d_k: Width K of queries and keys in each head. Defaults to `d_model // num_heads`.
        d_v: Width K_v of values in each head. Defaults to `d_k`.
        dropout_rate: Dropout rate of the attention weights, in [0, 1). Defaults to 0.
        use_bias: Whether the four projections have biases. Defaults to True.
        use_scale: Whether scores are divided by sqrt(d_k). Defaults to True.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer: Those of the
            four projections. Default to `"glorot_uniform"`, `"zeros"`, None and None.
        position_encoding: `PositionalEncoding` for self-attention. Its `rotate` is applied to
            queries and keys, and its `score_bias` is added to the scores. Defaults to None.
        attention_pattern: `AttentionPattern` for long sequences: `FullAttention()` or
            `LocalAttention(window)`. Defaults to None, which computes all scores at once.
        num_kv_heads: Number of heads G of keys and values. Each serves H / G heads of queries, so
            the decoding cache is smaller by this factor (grouped-query attention, or multi-query
            attention if G is 1). Defaults to `num_heads`.
        qk_norm: Whether each head's queries and keys pass an `RMSNormalization` before they are
            rotated. Defaults to False.
        attention_soft_cap: Scaled scores s become c tanh(s / c) for this bound c. Defaults to None.
        norm_epsilon: Constant that the norms of `qk_norm` add to the mean square. Defaults to 1e-6.

    Call arguments:
        query: float tensor `(B, T, D)`.
        key: float tensor `(B, S, D)`, keyword-only, because `keras.layers.MultiHeadAttention`
            takes `value` before `key`. Defaults to `query`.
        value: float tensor `(B, S, D)`, keyword-only. Defaults to `key`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to the Keras
            mask of `key`, if any.
        attention_mask: bool tensor, True = may attend. A 3-D mask has the shape `(B, T, S)`. A 2-D
            or 4-D mask must be broadcastable to `(B, H, T, S)`. Defaults to None.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        return_attention_weights: Whether to return a tuple of the output and the attention weights
            `(B, H, T, S)`. Defaults to False.
        training: Whether to apply dropout. Defaults to False.

    With `attention_mask`, `return_attention_weights` or `attention_soft_cap`, the layer computes
    all scores and applies the `attention_pattern` as a mask, which saves no time or memory.

    Returns:
        A float tensor `(B, T, D)`.

    Raises:
        ValueError: If `d_k` is not given and `num_heads` does not divide `d_model`, if
            `num_kv_heads` does not divide `num_heads`, if an `attention_pattern` is combined with a
            `score_bias`, if `padding_mask` has another number of columns than there are keys, or if
            `attention_mask` is a float tensor.

    Source: Vaswani et al. 2017, §3.2.2; for `num_kv_heads`, Shazeer 2019, Fast Transformer
    Decoding, and Ainslie et al. 2023, GQA; for `qk_norm`, Henry et al. 2020, Query-Key
    Normalization for Transformers; for `attention_soft_cap`, Gemma Team 2024, Gemma 2, §2.
    """

    def __init__(
        self,
        d_model: int | None = None,
        num_heads: int = 8,
        d_k: int | None = None,
        d_v: int | None = None,
        dropout_rate: float = 0.0,
        use_bias: bool = True,
        use_scale: bool = True,
        kernel_initializer: Rule = "glorot_uniform",
        position_encoding: PositionalEncoding | None = None,
        attention_pattern: AttentionPattern | None = None,
        bias_initializer: Rule = "zeros",
        kernel_regularizer: Rule = None,
        bias_regularizer: Rule = None,
        num_kv_heads: int | None = None,
        qk_norm: bool = False,
        attention_soft_cap: float | None = None,
        norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if attention_pattern and position_encoding and position_encoding.has_score_bias:
            raise ValueError(
                "An `attention_pattern` cannot be combined with a bias of the scores. "
                f"Received: attention_pattern={attention_pattern}, "
                f"position_encoding={type(position_encoding).__name__}"
            )
        self.store_arguments(locals())
        if d_model is not None:
            self._create_sublayers(d_model)

    def _create_sublayers(self, d_model: int) -> None:
        self.num_kv_heads: Any = self.num_kv_heads or self.num_heads
        if (self.d_k is None and d_model % self.num_heads) or self.num_heads % self.num_kv_heads:
            raise ValueError(
                "`num_heads` must divide `d_model` if `d_k` is not given, and be a multiple of "
                f"`num_kv_heads`. Received: num_heads={self.num_heads}, d_model={d_model}, "
                f"num_kv_heads={self.num_kv_heads}"
            )
        self.d_model = d_model
        self.d_k: Any = d_model // self.num_heads if self.d_k is None else self.d_k
        self.d_v: Any = self.d_k if self.d_v is None else self.d_v
        options = dense_options(self)
        self.query_projection = Dense(self.num_heads * self.d_k, name="query", **options)
        self.key_projection = Dense(self.num_kv_heads * self.d_k, name="key", **options)
        self.value_projection = Dense(self.num_kv_heads * self.d_v, name="value", **options)
        self.output_projection = Dense(d_model, name="output", **options)
        self.dropout = Dropout(self.dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.query_norm: Any = None
        self.key_norm: Any = None
        if self.qk_norm:
            own = {"epsilon": self.norm_epsilon, "dtype": self.dtype_policy}
            self.query_norm = RMSNormalization(name="query_norm", **own)
            self.key_norm = RMSNormalization(name="key_norm", **own)

    def build(
        self, query_shape: Shape, key_shape: Shape | None = None, value_shape: Shape | None = None
    ) -> None:
        if self.d_model is None:
            self._create_sublayers(query_shape[-1])
        key_shape = key_shape or query_shape
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape)
        self.value_projection.build(value_shape or key_shape)
        self.output_projection.build((None, None, self.num_heads * self.d_v))
        for norm in (self.query_norm, self.key_norm) if self.qk_norm else ():
            norm.build((None, None, None, self.d_k))

    def call(
        self,
        query: Tensor,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        padding_mask: Mask | None = None,
        attention_mask: Mask | None = None,
        use_causal_mask: bool = False,
        return_attention_weights: bool = False,
        training: bool = False,
        mask: Mask | None = None,
        query_mask: Mask | None = None,
        key_mask: Mask | None = None,
    ) -> Any:
        of_keys = given_mask(query_mask, mask) if key is None else key_mask
        padding_mask = given_mask(padding_mask, of_keys)
        is_cross_attention = key is not None and key is not query
        key = query if key is None else key
        queries, keys, values = self._project(query, key, key if value is None else value)
        dropout = self.dropout if self.dropout_rate else None
        masks: dict[str, Any] = {"padding_mask": padding_mask, "use_causal_mask": use_causal_mask}
        check_mask_length(padding_mask, key.shape[1])
        heads = weights = None
        needs_scores = return_attention_weights or is_recorded() or self.attention_soft_cap
        if not needs_scores:
            options = {**masks, "use_scale": self.use_scale}
            if self.attention_pattern is not None and attention_mask is None:
                options |= {"dropout": dropout, "training": training}
                heads = self.attention_pattern(queries, *self._repeat(keys, values), **options)
            elif is_fused(queries) and not (self.needs_positions or (dropout and training)):
                # Other masks than one of bool for each row may need broadcasting, or an error.
                if attention_mask is None or len(attention_mask.shape) == 3:
                    heads = attend(queries, keys, values, **options, attention_mask=attention_mask)
        if heads is None:
            shape = ops.shape(query)[1], ops.shape(key)[1]
            allowed, bias = self._mask_and_bias(shape, attention_mask, **masks)
            options = {"score_bias": bias, "soft_cap": self.attention_soft_cap}
            keys, values = self._repeat(keys, values)
            heads, weights = scaled_dot_product_attention(
                queries, keys, values, allowed, self.use_scale, dropout, **options
            )
            own: AttentionKind = "decoder" if use_causal_mask else "encoder"
            record_attention(self, "cross" if is_cross_attention else own, weights)
        output = self.output_projection(self.join_heads(heads))
        return (output, weights) if return_attention_weights else output

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Any, Any, Any]:
        """Returns queries, keys and values as heads. Equal inputs are projected together."""
        if query is key is value:
            layers = self.query_projection, self.key_projection, self.value_projection
            return self._split(joined_affine(query, layers))
        queries = self._heads(self.query_projection(query), self.query_norm)
        return queries, *self.project_key_value(key, value)

    def _split(self, projected: Sequence[Tensor], offset: Size = 0) -> tuple[Any, Any, Any]:
        queries, keys, values = projected
        queries = self._heads(queries, self.query_norm, offset)
        keys = self._heads(keys, self.key_norm, offset)
        return queries, keys, self.split_heads(values, self.d_v)

    def _repeat(self, *tensors: Tensor) -> list[Any]:
        """Repeats each head of keys or values `(B, G, S, K)` for the H / G heads of queries."""
        times = self.num_heads // self.num_kv_heads
        return [x if times == 1 else ops.repeat(x, times, axis=1) for x in tensors]

    def project_key_value(self, key: Tensor, value: Tensor, offset: Size = 0) -> tuple[Any, Any]:
        """Projects `key` and `value` `(B, S, D)` to heads `(B, G, S, K)` and `(B, G, S, K_v)`.

        `offset` is the position of the first key.
        """
        if key is value:
            keys, values = joined_affine(key, (self.key_projection, self.value_projection))
        else:
            keys, values = self.key_projection(key), self.value_projection(value)
        return self._heads(keys, self.key_norm, offset), self.split_heads(values, self.d_v)

    def _heads(self, projected: Tensor, norm: Any, offset: Size = 0) -> Any:
        """Splits projected queries or keys into heads, normalizes and rotates them."""
        heads = self.split_heads(projected, self.d_k)
        heads = heads if norm is None else norm(heads)
        encoding = self.position_encoding
        return heads if encoding is None else encoding.rotate(heads, offset)

    @property
    def needs_positions(self) -> bool:
        """Whether the mask or the score bias depends on positions (see `by_position`)."""
        encoding = self.position_encoding
        has_score_bias = encoding is not None and encoding.has_score_bias
        return self.attention_pattern is not None or has_score_bias

    def by_position(
        self, queries: Tensor, keys: Tensor, padding_mask: Mask | None, mask: Mask | None
    ) -> tuple[Any, Any]:
        """Returns `mask` with the attention pattern's mask, and the score bias, or None for each.

        `queries`, int32 `(T, 1)` or `()`, and `keys`, int32 `(S,)`, are positions. `padding_mask`,
        bool `(B, P)`, is True where one of the first P keys is a real token, or None if all are.
        """
        if self.attention_pattern is not None:
            start = 0 if padding_mask is None else sequence_start(padding_mask)[..., None, None]
            mask = both_masks(mask, self.attention_pattern.allows(queries - start, keys - start))
        encoding = self.position_encoding
        return mask, None if encoding is None else encoding.score_bias(queries - keys)

    def _mask_and_bias(
        self, shape: tuple[Any, Any], mask: Any, padding_mask: Mask | None, use_causal_mask: bool
    ) -> tuple[Any, Any]:
        """Returns the combined mask and the score bias for `shape` `(T, S)`, or None for each."""
        bias = None
        if mask is not None:
            mask = ops.convert_to_tensor(mask)
            if "float" in keras.backend.standardize_dtype(mask.dtype):
                raise ValueError(
                    "`attention_mask` must be bool, True = may attend. "
                    f"Received: attention_mask of dtype {mask.dtype}"
                )
            mask = mask[:, None] if len(mask.shape) == 3 else mask
        if self.needs_positions:
            queries, keys = (ops.arange(n, dtype="int32") for n in shape)
            mask, bias = self.by_position(queries[:, None], keys, padding_mask, mask)
        if use_causal_mask:
            mask = both_masks(mask, causal_mask(*shape))
        if padding_mask is not None:
            mask = both_masks(mask, padding_mask[:, None, None, :])
        return mask, bias

    def init_cache(self, size: CacheSize, memory: Tensor | None = None) -> Cache:
        """Returns the cache for `step`: that of self-attention, or of attention to a `memory`."""
        if memory is not None:  # Any number of queries can use these.
            keys, values = self.project_key_value(memory, memory)
            return Cache(sentence=(ops.swapaxes(keys, -1, -2), values))
        own = size.empty_cache(self.num_kv_heads, self.d_k, self.d_v, self.compute_dtype)
        return own._replace(shared=self._joined_projections())

    def step(self, query: Tensor, cache: Cache, step: DecodingStep) -> tuple[Any, Cache, Any]:
        """Attends from the tokens of a decoding step, `query` `(B, T, D)`, to what the cache holds.

        Returns the output `(B, T, D)`, the updated cache, and the weights, `(B, H, T, S)`, or None
        while prompts are read.
        """
        is_memory, bias = not isinstance(cache.sentence, KeyValues), None
        if is_memory:
            queries = self._heads(on_rows(self.query_projection, query), self.query_norm)
            (keys, values), mask = cache.sentence, step.memory_padding_mask[:, None, None, :]
        elif step.position is None:  # `call` has fused kernels and attention patterns.
            cache, *_ = update_cache(
                cache, *self.project_key_value(query, query, step.offset), step
            )
            own = {"padding_mask": step.prompt_mask, "use_causal_mask": True}
            return self(query, **own), cache, None
        else:
            queries, keys, values = self._split(self._joined(query, cache.shared), step.offset)
            cache, keys, values = update_cache(cache, keys, values, step)
            mask, bias = self._of_step(step)
        options: dict[str, Any] = {"key_is_transposed": is_memory, "score_bias": bias}
        options |= {"use_scale": self.use_scale, "soft_cap": self.attention_soft_cap}
        queries = self._group(queries)
        heads, weights = scaled_dot_product_attention(queries, keys, values, mask, **options)
        heads, weights = (self._ungroup(x, ops.shape(query)[1]) for x in (heads, weights))
        output = on_rows(self.output_projection, self.join_heads(heads))
        return output, cache, weights

    def _joined(self, x: Tensor, joined: dict[str, Tensor]) -> list[Any]:
        """Returns projected queries, keys and values, by one product if they are `joined`."""
        layers = self.query_projection, self.key_projection, self.value_projection
        if not joined:
            return [on_rows(layer, x) for layer in layers]
        projected = on_rows(lambda rows: ops.matmul(rows, joined["kernel"]), x)
        if self.use_bias:
            projected = projected + joined["bias"]
        width = self.num_heads * self.d_k
        end = width + self.num_kv_heads * self.d_k
        # Not `ops.split`, which copies the indices to the device on PyTorch.
        return [projected[..., :width], projected[..., width:end], projected[..., end:]]

    def _of_step(self, step: DecodingStep) -> tuple[Any, Any]:
        """Returns the mask of a step of hypotheses, and the score bias or None."""
        mask, bias, size = step.mask, None, self.num_heads // self.num_kv_heads
        if self.needs_positions:
            start = step.prompt_length
            query, keys = start + step.position, start + step.key_positions()
            mask, bias = self.by_position(query, keys, step.prompt_mask, mask)
        if bias is not None:
            times = ops.shape(mask)[2] if size > 1 else 1
            bias = self._group(ops.tile(bias[None, :, None], (1, 1, times, 1)))
        return ops.tile(mask, (1, 1, size, 1)) if size > 1 else mask, bias

    def _group(self, heads: Tensor) -> Any:
        """Reshapes `(B, H, T, K)` to `(B, G, H / G * T, K)`: rows of queries that share keys."""
        batch, count, tokens, width = ops.shape(heads)
        groups = self.num_kv_heads
        return ops.reshape(heads, (batch, groups, count // groups * tokens, width))

    def _ungroup(self, heads: Tensor, tokens: Size) -> Any:
        """Reshapes `(B, G, H / G * T, K)` to `(B, H, T, K)`."""
        batch, *_, width = ops.shape(heads)
        return ops.reshape(heads, (batch, self.num_heads, tokens, width))

    def _joined_projections(self) -> dict[str, Tensor]:
        """Joins query, key and value projections, so that one matrix product computes all three.

        The result has a `"kernel"` `(D, H * K + G * (K + K_v))`, and a `"bias"` if the projections
        have biases. It is empty if they are quantized.
        """
        parts = self.query_projection, self.key_projection, self.value_projection
        if any(part.quantization_config for part in parts):
            return {}
        names = ["kernel", "bias"] if self.use_bias else ["kernel"]
        joined = {x: ops.concatenate([getattr(part, x) for part in parts], axis=-1) for x in names}
        return {name: ops.cast(x, self.compute_dtype) for name, x in joined.items()}

    def split_heads(self, x: Tensor, size: int) -> Any:
        """Reshapes `(B, T, H * K)` to `(B, H, T, K)`, where K is `size`."""
        batch, length, width = ops.shape(x)
        x = ops.reshape(x, (batch, length, width // size, size))
        return ops.transpose(x, (0, 2, 1, 3))

    def join_heads(self, heads: Tensor) -> Any:
        """Reshapes `(B, H, T, K)` to `(B, T, H * K)`."""
        heads = ops.transpose(heads, (0, 2, 1, 3))
        batch, length = ops.shape(heads)[:2]
        return ops.reshape(heads, (batch, length, self.num_heads * self.d_v))
