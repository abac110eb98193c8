"""Decoder layer and stack of decoder layers (right half of Figure 1)."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer._backend.types import Mask, Shape, Size, Tensor
from keras_transformer.layers.attention.attention_patterns import FullAttention
from keras_transformer.layers.attention.cache import Cache, CacheSize, extended, pad, take_slots
from keras_transformer.layers.attention.decoding_step import DecodingStep
from keras_transformer.layers.attention.scaled_dot_product_attention import causal_mask
from keras_transformer.layers.base import given_mask, on_rows
from keras_transformer.layers.stacks.encoder import Encoder, EncoderLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(EncoderLayer):
    """Applies causal self-attention, cross-attention and a feed-forward network (§3.1).

    With `use_memory=False`, the layer has no cross-attention, as in GPT.

    Example:

    >>> layer = DecoderLayer(d_model=64, num_heads=4, d_ff=256)
    >>> y = layer(y, memory=memory, memory_padding_mask=source_ids != 0)

    Args:
        d_model, num_heads, d_ff: See `EncoderLayer`.
        use_memory: Whether the layer has cross-attention to the encoder's output. Defaults to True.
        use_causal_mask: Whether position t attends only to positions up to t. Decoding with a cache
            requires True. Defaults to True.
        **options: Other arguments of `EncoderLayer`. With an `attention_pattern`, cross-attention
            uses `FullAttention()`, which does not store all attention scores.

    Call arguments:
        x: float tensor `(B, T, D)`.
        memory: float tensor `(B, S, D_m)`, the encoder's output, whose width D_m may differ from D.
            Required if `use_memory` is True, and refused by `ValueError` otherwise.
        padding_mask: bool tensor `(B, T)`, True = real target token. Padding at the end needs no
            padding mask, because the causal mask hides the end from real tokens. Defaults to the
            Keras mask of `x`, if any.
        memory_padding_mask: bool tensor `(B, S)`, True = real source token. Defaults to the Keras
            mask of `memory`, if any.
        attention_mask: bool tensor `(B, T, T)`, True = may attend in self-attention.
        memory_attention_mask: bool tensor `(B, T, S)`, True = may attend in cross-attention.
        return_attention_weights: Whether to return a tuple of the output and the cross-attention
            weights, float `(B, H, T, S)`. If `use_memory` is False, the weights are those of
            self-attention, `(B, H, T, T)`. Defaults to False.

    Returns:
        A float tensor `(B, T, D)`.

    Source: Vaswani et al. 2017, Figure 1 (right); for decoders without cross-attention, Radford et
    al. 2018.
    """

    def __init__(
        self,
        d_model: int | None = None,
        num_heads: int = 8,
        d_ff: int = 2048,
        *,
        use_memory: bool = True,
        use_causal_mask: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(None, num_heads, d_ff, use_causal_mask=use_causal_mask, **options)
        self.use_memory = use_memory
        if d_model is not None:
            self._create_sublayers(d_model)

    def _create_sublayers(self, d_model: int) -> None:
        super()._create_sublayers(d_model)
        if self.use_memory:
            pattern = self.attention_pattern and FullAttention()
            self.cross_attention = self._attention("cross_attention", attention_pattern=pattern)
            self.cross_attention_residual = self._residual("cross_attention_residual")

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        super().build(x_shape)
        if self.use_memory:
            self.cross_attention.build(x_shape, memory_shape)
            self.cross_attention_residual.build(x_shape)

    def _output_spec(self, x: Tensor, memory: Tensor | None, **options: Any) -> Any:
        self.check_memory(memory)
        return super()._output_spec(x, memory=memory, **options)

    @checkpointable
    def call(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        padding_mask: Mask | None = None,
        memory_padding_mask: Mask | None = None,
        attention_mask: Mask | None = None,
        memory_attention_mask: Mask | None = None,
        return_attention_weights: bool = False,
        mask: Mask | None = None,
        x_mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Any:
        self.check_memory(memory)
        padding_mask = given_mask(padding_mask, x_mask, mask)
        needs_own_weights = return_attention_weights and not self.use_memory
        x, weights = self._attend(x, padding_mask, attention_mask, needs_own_weights)
        if self.use_memory:
            attended = self.cross_attention(
                query=self.cross_attention_residual.enter(x, padding_mask),
                key=memory,
                padding_mask=given_mask(memory_padding_mask, memory_mask),
                attention_mask=memory_attention_mask,
                return_attention_weights=return_attention_weights,
            )
            attended, weights = attended if return_attention_weights else (attended, None)
            x = self.cross_attention_residual(x, attended, padding_mask)
        x = self.transform(x, padding_mask)
        return (x, weights) if return_attention_weights else x

    def init_cache(self, size: CacheSize, memory: Tensor | None = None) -> Cache:
        """Returns the layer's part of the decoding cache, for sentences with this `memory`."""
        self.check_memory(memory)
        if not self.use_causal_mask:
            raise ValueError("Only causal decoders have a cache. Received: use_causal_mask=False")
        parts = {"self_attention": self.self_attention.init_cache(size)}
        if memory is not None:
            parts["cross_attention"] = self.cross_attention.init_cache(size, memory)
        return Cache.join(parts)

    def step(self, x: Tensor, cache: Cache, step: DecodingStep) -> tuple[Any, Cache, Any]:
        """Computes what `call` computes for the tokens of a decoding step, `x` `(B, T, D)`.

        Returns the output `(B, T, D)`, the updated cache, and the cross-attention weights, float
        `(B, H, T, S)`, or None if `use_memory` is False.
        """
        parts, residual, weights = cache.parts(), self.self_attention_residual, None
        attended, parts["self_attention"], _ = self.self_attention.step(
            residual.enter(x), parts["self_attention"], step
        )
        x = residual(x, attended)
        if self.use_memory:
            residual = self.cross_attention_residual
            attended, _, weights = self.cross_attention.step(
                residual.enter(x), parts["cross_attention"], step
            )
            x = residual(x, attended)
        return on_rows(self.transform, x), Cache.join(parts), weights

    def check_memory(self, memory: Tensor | None) -> None:
        """Raises `ValueError` if `memory` is missing, or given to a layer that does not use it."""
        if (memory is not None) != self.use_memory:
            raise ValueError(
                "`memory` must be given if and only if `use_memory` is True. "
                f"Received: use_memory={self.use_memory}, memory={memory}"
            )


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Encoder):
    """Stack of decoder layers, with a final norm if the layers are pre-norm (§3.1).

    `init_cache` and `step` decode one token at a time, for models with and without an encoder.

    Example:

    >>> decoder = Decoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> y = decoder(y, memory=memory, memory_padding_mask=source_ids != 0)          # (B, T, 512)
    >>> gpt = Decoder(12, 768, 12, 3072, use_memory=False, norm_first=True, activation="gelu")

    Args:
        num_layers, d_model, num_heads, d_ff: See `Encoder`.
        layer: See `Encoder`. For decoding, the layers have `init_cache` and `step`, too, as
            `DecoderLayer` has. Without memory, `init_cache` gets no `memory`. `step` may leave out
            the attention weights. Defaults to None: `DecoderLayer`.
        **options: Other arguments of the layers, as for `Encoder`.

    For call arguments, result and errors, see `DecoderLayer`. The returned attention weights are
    from the last layer.

    Source: Vaswani et al. 2017, Figure 1 (right); for the final norm, Xiong et al. 2020.
    """

    layer_class = DecoderLayer
    prefix = "decoder"

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        self._build_layers(x_shape, *([] if memory_shape is None else [memory_shape]))

    def call(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        padding_mask: Mask | None = None,
        memory_padding_mask: Mask | None = None,
        attention_mask: Mask | None = None,
        memory_attention_mask: Mask | None = None,
        return_attention_weights: bool = False,
        mask: Mask | None = None,
        x_mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Any:
        inputs = {
            "memory": memory,
            "padding_mask": given_mask(padding_mask, x_mask, mask),
            "memory_padding_mask": given_mask(memory_padding_mask, memory_mask),
            "attention_mask": attention_mask,
            "memory_attention_mask": memory_attention_mask,
        }
        return self._apply_layers(x, inputs, return_attention_weights)

    def init_cache(
        self,
        batch: Size,
        beam_size: Size,
        max_length: int | None,
        memory: Tensor | None = None,
        memory_padding_mask: Mask | None = None,
    ) -> Cache:
        """Returns the cache for the first decoding step of B = `batch` sentences.

        There are N = `beam_size` hypotheses per sentence and L = `max_length` positions to decode.
        If `max_length` is None, the cache grows by one position per step. For `memory` and
        `memory_padding_mask`, see `DecoderLayer`. Only causal decoders have a cache. It contains
        the cache of each layer, the padding mask of the memory, and the `slots` of `take_slots`.
        """
        size, given = CacheSize(batch, beam_size, max_length), {}
        mask: Any = ()
        if memory is not None:
            given, mask = {"memory": memory}, memory_padding_mask
            mask = ops.ones(ops.shape(memory)[:2], "bool") if mask is None else mask
        caches = (layer.init_cache(size, **given) for layer in self.layers)
        layers = Cache.join(dict(enumerate(caches)))
        return Cache(
            {"layers": layers.beam, "slots": size.slots()},
            {"layers": layers.sentence, "memory_padding_mask": mask},
            {"layers": layers.shared} | ({"grows": ()} if max_length is None else {}),
        )

    def prefill(self, cache: Cache, x: Tensor, padding_mask: Mask) -> Cache:
        """Adds the keys and values of prompts to a cache that `init_cache` made.

        The next call of `step` has position 0, and its token follows the prompt. The decoder must
        have no cross-attention. The prompts `x`, float `(B, P, D)`, are padded at the beginning,
        and `padding_mask`, bool `(B, P)`, is True for real tokens.
        """
        (batch, length), slots = ops.shape(x)[:2], ops.shape(cache.beam["slots"])
        layers = extended(cache.sentence["layers"], length)
        sentence = {**cache.sentence, "layers": layers, "prompt_mask": padding_mask}
        unused = slots[1] * slots[2]
        is_real = ops.concatenate([padding_mask, ops.zeros((batch, unused), "bool")], axis=1)
        mask = ops.logical_and(causal_mask(length, length + unused), is_real[:, None])[:, None]
        # The first step has position 0. Only differences of positions have an effect.
        step = DecodingStep(mask, -length, None, padding_mask)
        return self._apply_step(x, cache._replace(sentence=sentence), step)[1]

    def extend_cache(self, cache: Cache, max_length: int) -> Cache:
        """Returns a cache with the same contents, but with room for `max_length` positions."""
        slots = cache.beam["slots"]
        beams, length = slots.shape[1:]
        added = max_length - length
        layers = extended(cache.sentence["layers"], added * beams)
        beam = {**cache.beam, "slots": pad(slots, 2, added, -1)}
        return cache._replace(beam=beam, sentence={**cache.sentence, "layers": layers})

    def step(self, x: Tensor, cache: Cache, position: Size) -> tuple[Tensor, Cache, Tensor | None]:
        """Decodes one new token per hypothesis, whose vectors are `x`, float `(B * N, D)`.

        `cache` is what `init_cache`, `extend_cache` or the previous `step` returned, and `position`
        that of the new tokens. Returns the output `(B * N, D)`, the updated cache, and the last
        layer's cross-attention weights, float `(B, H, N, S)`, or None if `use_memory` is False.
        """
        slots, sentence = cache.beam["slots"], cache.sentence
        slots = pad(slots, 2, 1, -1) if "grows" in cache.shared else slots
        slots, mask = take_slots(slots, position)
        batch, _, beams, _ = ops.shape(mask)
        of_prompt = sentence.get("prompt_mask")
        if of_prompt is not None:
            shape = (batch, 1, beams, ops.shape(of_prompt)[1])
            read = ops.broadcast_to(of_prompt[:, None, None], shape)
            mask = ops.concatenate([read, mask], axis=-1)
        offset = position - ops.arange(beams, dtype="int32")  # All tokens have the same position.
        step = DecodingStep(mask, offset, position, of_prompt, sentence["memory_padding_mask"])
        cache = cache._replace(beam={**cache.beam, "slots": slots})
        width = x.shape[-1]
        x, cache, weights = self._apply_step(ops.reshape(x, (-1, beams, width)), cache, step)
        return self.normalize(ops.reshape(x, (-1, width))), cache, weights

    def _apply_step(self, x: Tensor, cache: Cache, step: DecodingStep) -> tuple[Any, Cache, Any]:
        parts, weights = Cache(*(part["layers"] for part in cache)).parts(), None
        for i, layer in enumerate(self.layers):
            x, parts[i], *others = layer.step(x, parts[i], step)
            weights = others[0] if others else None
        layers = Cache.join(parts)
        beam = {**cache.beam, "layers": layers.beam}
        sentence = {**cache.sentence, "layers": layers.sentence}
        return x, cache._replace(beam=beam, sentence=sentence), weights
