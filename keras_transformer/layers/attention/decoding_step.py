"""Decodes one token at a time, with cached keys and values.

The `call` of attention, decoder layer and decoder computes whole sequences. This file computes the
same for one new token per hypothesis.
"""

from typing import Any

from keras import ops

from keras_transformer.layers.attention.cache import (
    Cache,
    FixedKeyValues,
    GrowingKeyValues,
    KeyValues,
    empty_key_values,
    empty_slots,
    pad,
    take_slots,
)
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    scaled_dot_product_attention,
)
from keras_transformer.layers.encoder import Encoder


class DecodingStep(Encoder):
    """Base class of `Decoder` that decodes one token at a time."""

    def init_cache(
        self,
        batch: Any,
        beam_size: Any,
        max_length: int | None,
        memory: Any = None,
        memory_padding_mask: Any = None,
    ) -> Cache:
        """Returns the cache for the first decoding step.

        Args:
            batch: Number of sentences B.
            beam_size: Number of hypotheses N per sentence.
            max_length: Maximum number of positions L to decode. If None, the cache grows by one
                position per step.
            memory: float tensor `(B, S, D_m)`. Required if `use_memory` is True.
            memory_padding_mask: bool tensor `(B, S)`, True = real source token. Defaults to None,
                which means that all tokens are real.

        Returns:
            A `Cache`: `beam` for `take_slots`, `sentence` with each layer's keys and values and the
            padding mask of the memory, and `shared` with each layer's joined projections.

        Raises:
            ValueError: If `use_causal_mask` is False, or if `memory` is given or missing against
                `use_memory`.
        """
        if not self.use_causal_mask:
            raise ValueError("Only causal decoders have a cache. Received: use_causal_mask=False")
        self.layers[0].check_memory(memory)
        of_memory: list[Any] = [()] * self.num_layers
        if memory is not None:
            for i, layer in enumerate(self.layers):  # any number of queries can use these
                keys, values = layer.cross_attention.project_key_value(memory, memory)
                of_memory[i] = FixedKeyValues(ops.swapaxes(keys, -1, -2), values)
            if memory_padding_mask is None:
                memory_padding_mask = ops.ones(ops.shape(memory)[:2], "bool")
        attentions = [layer.self_attention for layer in self.layers]
        size, rows = (beam_size, max_length), batch * self.num_heads
        return Cache(
            beam=empty_slots(batch, *size),
            sentence={
                "decoded": [
                    empty_key_values(rows, x.d_k, x.d_v, *size, x.compute_dtype) for x in attentions
                ],
                "memory": of_memory,
                "padding_mask": () if memory is None else memory_padding_mask,
            },
            shared=[fuse_projections(x) for x in attentions],
        )

    def prefill(self, cache: Cache, x: Any, padding_mask: Any) -> Cache:
        """Returns the cache that `init_cache` made, with the keys and values of prompts.

        The next call of `step` has position 0, and its token follows the prompt. The decoder must
        have no cross-attention.

        Args:
            cache: The result of `init_cache`.
            x: float tensor `(B, P, D)`, the prompts, padded at the beginning.
            padding_mask: bool tensor `(B, P)`, True = real token.
        """
        length, written = ops.shape(x)[1], []
        for layer, own in zip(self.layers, cache.sentence["decoded"], strict=True):
            entered = layer.self_attention_residual.enter(x)
            # The first step has position 0. Only differences of positions have an effect.
            heads = layer.self_attention.project_key_value(entered, entered, offset=-length)
            keys, values = (ops.reshape(x, (-1, *ops.shape(x)[2:])) for x in heads)
            written.append(own.extend(length).write(keys, values, 0))
            if layer is not self.layers[-1]:
                x = layer(x, padding_mask=padding_mask)
        prompt = {"decoded": written, "prompt_mask": padding_mask}
        return cache._replace(sentence={**cache.sentence, **prompt})

    def extend_cache(self, cache: Cache, max_length: int) -> Cache:
        """Returns a cache with the same contents, but with room for `max_length` positions."""
        beams, length = cache.beam.shape[1:]
        added = max_length - length
        decoded = [own.extend(added * beams) for own in cache.sentence["decoded"]]
        return cache._replace(
            beam=pad(cache.beam, 2, added, -1), sentence={**cache.sentence, "decoded": decoded}
        )

    def step(self, x: Any, cache: Cache, position: Any) -> tuple[Any, Cache, Any]:
        """Decodes one new token per hypothesis.

        Args:
            x: float tensor `(B * N, D)`, one vector for the new token of each hypothesis.
            cache: The cache that `init_cache`, `extend_cache` or the previous `step` returned.
            position: Position of the new tokens, an int or a 0-d int tensor.

        Returns:
            A tuple of the output `(B * N, D)`, the updated cache, and the last layer's
            cross-attention weights, float `(B, H, N, S)`, or None if `use_memory` is False.
        """
        sentence, slots, decoded, weights = cache.sentence, cache.beam, [], None
        if isinstance(sentence["decoded"][0], GrowingKeyValues):
            slots = pad(slots, 2, 1, -1)
        slots, mask = take_slots(slots, position, self.num_heads)
        rows, beams = ops.shape(mask)[:2]
        tokens: tuple[Any, ...] = position, mask
        if "prompt_mask" in sentence:
            batch, length = ops.shape(sentence["prompt_mask"])
            of_prompt = ops.repeat(sentence["prompt_mask"][:, None], rows // batch, axis=0)
            of_prompt = ops.broadcast_to(of_prompt, (rows, beams, length))
            tokens = position, ops.concatenate([of_prompt, mask], axis=-1), length
        for layer, own, memory, projections in zip(
            self.layers, sentence["decoded"], sentence["memory"], cache.shared, strict=True
        ):
            query = layer.self_attention_residual.enter(x)
            attended, own = self_attention_step(
                layer.self_attention, query, own, projections, *tokens
            )
            x = layer.self_attention_residual(x, attended)
            if layer.use_memory:
                attention, residual = layer.cross_attention, layer.cross_attention_residual
                queries = _split_beams(
                    attention, attention.query_projection(residual.enter(x)), beams
                )
                is_real = sentence["padding_mask"][:, None, None, :]
                heads, weights = _attend(attention, queries, memory, is_real)
                x = residual(x, _join_beams(attention, heads))
            x = layer.transform(x)
            decoded.append(own)
        cache = cache._replace(beam=slots, sentence={**sentence, "decoded": decoded})
        return self.normalize(x), cache, weights


def self_attention_step(
    attention: MultiHeadAttention,
    query: Any,
    cache: KeyValues,
    projections: Any,
    position: Any,
    mask: Any,
    prompt_length: Any = 0,
) -> tuple[Any, KeyValues]:
    """Computes causal self-attention for one new token per hypothesis, `query` `(B * N, D)`.

    The bool `mask` `(B * H, N, P + L * N)` is the padding mask of the prompt, of P tokens, and the
    mask that `take_slots` returns. Returns the output `(B * N, D)`, and the `cache` of earlier
    positions with the new key and value of hypothesis n in slot n.
    """
    beams, num_slots = ops.shape(mask)[1:]
    queries, keys, values = _project(attention, query, beams, projections, position)
    cache = cache.write(keys, values, prompt_length + position * beams)
    bias = None
    if attention.needs_positions:
        slots = ops.arange(num_slots, dtype="int32") - prompt_length
        own = prompt_length + ops.where(slots < 0, slots, slots // beams)
        is_real = mask[:, :1, :prompt_length]
        mask, bias = attention.by_position(prompt_length + position, own, is_real, mask)
    if bias is not None:
        bias = ops.tile(bias[:, None], (ops.shape(queries)[0] // attention.num_heads, 1, 1))
    heads, _ = _attend(attention, queries, cache, mask, bias)
    heads = ops.reshape(heads, (-1, attention.num_heads, beams, attention.d_v))
    return _join_beams(attention, heads), cache


def fuse_projections(attention: MultiHeadAttention) -> dict[str, Any]:
    """Joins query, key and value projections, so that one matrix product computes all three.

    Returns:
        A dict with a matrix `"kernel"` `(D, H * (2 * K + K_v))`, and a vector `"bias"` if the
        projections have biases. If they are quantized, the dict is empty.
    """
    parts = _projections(attention)
    if any(part.quantization_config for part in parts):
        return {}
    names, dtype = ["kernel", "bias"] if attention.use_bias else ["kernel"], attention.compute_dtype
    joined = {x: ops.concatenate([getattr(part, x) for part in parts], axis=-1) for x in names}
    return {name: ops.cast(x, dtype) for name, x in joined.items()}


def _projections(attention: MultiHeadAttention) -> tuple[Any, Any, Any]:
    return attention.query_projection, attention.key_projection, attention.value_projection


def _project(
    attention: MultiHeadAttention, query: Any, beams: Any, projections: Any, position: Any
) -> tuple[Any, Any, Any]:
    """Returns the queries, keys and values `(B * H, N, K)` of one position."""
    if projections:
        projected = ops.matmul(query, projections["kernel"])
        if attention.use_bias:
            projected = projected + projections["bias"]
        width = attention.num_heads * attention.d_k
        # Not `ops.split`, which copies the indices to the device on PyTorch.
        parts = [projected[:, :width], projected[:, width : 2 * width], projected[:, 2 * width :]]
    else:
        parts = [projection(query) for projection in _projections(attention)]
    heads = [_split_beams(attention, part, beams) for part in parts]
    queries, keys, values = (ops.reshape(x, (-1, *ops.shape(x)[2:])) for x in heads)
    if attention.position_encoding is not None:
        queries, keys = (
            attention.rotate(x[..., None, :], position)[..., 0, :] for x in (queries, keys)
        )
    return queries, keys, values


def _attend(
    attention: MultiHeadAttention, queries: Any, memory: KeyValues, mask: Any, bias: Any = None
) -> tuple[Any, Any]:
    is_transposed, scale = isinstance(memory, FixedKeyValues), attention.use_scale
    return scaled_dot_product_attention(
        queries, memory.key, memory.value, mask, scale, None, is_transposed, bias
    )


def _split_beams(attention: MultiHeadAttention, x: Any, beams: Any) -> Any:
    """Reshapes `(B * N, H * K)` to `(B, H, N, K)`."""
    return attention.split_heads(ops.reshape(x, (-1, beams, x.shape[-1])))


def _join_beams(attention: MultiHeadAttention, heads: Any) -> Any:
    """Projects `(B, H, N, K_v)` to `(B * N, D)`."""
    joined = attention.join_heads(heads)
    return attention.output_projection(ops.reshape(joined, (-1, joined.shape[-1])))
