"""Decoder layer and stack of decoder layers (right half of Figure 1)."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer.layers.attention.cache import Cache, empty_slots, pad, take_slots
from keras_transformer.layers.attention.full_attention import FullAttention
from keras_transformer.layers.encoder import Encoder, EncoderLayer


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
        memory: float tensor `(B, S, D_m)`, the encoder's output. Its width D_m may differ from D.
            The argument is required if `use_memory` is True.
        padding_mask: bool tensor `(B, T)`, True = real target token. Padding at the end needs no
            padding mask, because the causal mask hides the end from real tokens. Defaults to None,
            which means the Keras mask of `x`, if any.
        memory_padding_mask: bool tensor `(B, S)`, True = real source token. Defaults to None, which
            means the Keras mask of `memory`, if any.
        return_attention_weights: Whether to also return the cross-attention weights. Defaults to
            False.

    Returns:
        A float tensor `(B, T, D)`. With `return_attention_weights`, the layer returns a tuple of
        this tensor and the cross-attention weights, float `(B, H, T, S)`.

    Raises:
        ValueError: If `use_memory` is True and a call has no `memory`.
        ValueError: If `use_memory` is False and a call has `memory` or `return_attention_weights`.

    Source: Vaswani et al. 2017, Figure 1 (right); for decoders without cross-attention, Radford et
    al. 2018.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        use_memory: bool = True,
        use_causal_mask: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(d_model, num_heads, d_ff, use_causal_mask=use_causal_mask, **options)
        self.use_memory = use_memory
        if use_memory:
            pattern = self.attention_pattern and FullAttention()
            self.cross_attention = self._attention("cross_attention", attention_pattern=pattern)
            self.cross_attention_residual = self._residual("cross_attention_residual")

    def build(self, x_shape: Any, memory_shape: Any = None) -> None:
        super().build(x_shape)
        if self.use_memory:
            self.cross_attention.build(x_shape, memory_shape)
            self.cross_attention_residual.build(x_shape)

    def _output_spec(self, x: Any, memory: Any, return_attention_weights: bool, **_: Any) -> Any:
        self._check_memory(memory, return_attention_weights)
        output = super()._output_spec(x)
        if not return_attention_weights:
            return output
        shape = (x.shape[0], self.num_heads, x.shape[1], memory.shape[1])
        return output, keras.KerasTensor(shape, self.compute_dtype)

    @checkpointable
    def call(
        self,
        x: Any,
        memory: Any = None,
        padding_mask: Any = None,
        memory_padding_mask: Any = None,
        return_attention_weights: bool = False,
        mask: Any = None,
        x_mask: Any = None,
        memory_mask: Any = None,
    ) -> Any:
        # Keras sets the last three arguments: `mask` if `x` is the only tensor, else the others.
        self._check_memory(memory, return_attention_weights)
        if padding_mask is None:
            padding_mask = mask if x_mask is None else x_mask
        x = self._attend(x, padding_mask)
        if not self.use_memory:
            return self._transform(x, padding_mask)
        attended = self.cross_attention(
            query=self.cross_attention_residual.enter(x, padding_mask),
            key=memory,
            padding_mask=memory_mask if memory_padding_mask is None else memory_padding_mask,
            return_attention_weights=return_attention_weights,
        )
        attended, weights = attended if return_attention_weights else (attended, None)
        x = self.cross_attention_residual(x, attended, padding_mask)
        x = self._transform(x, padding_mask)
        return (x, weights) if return_attention_weights else x

    def _check_memory(self, memory: Any, needs_weights: bool = False) -> None:
        if (memory is not None) != self.use_memory or (needs_weights and not self.use_memory):
            raise ValueError(
                "If `use_memory` is True, `memory` must be given. If `use_memory` is False, "
                "`memory` and `return_attention_weights` must not be given. "
                f"Received: use_memory={self.use_memory}, memory={memory}"
            )

    def step(
        self,
        x: Any,
        cache: Any,
        projections: dict[str, Any],
        attention_mask: Any,
        memory: Any,
        memory_padding_mask: Any,
        position: Any,
        prompt_length: Any = 0,
    ) -> tuple[Any, Any, Any]:
        """Decodes one new token per hypothesis.

        `memory` is the result of `MultiHeadAttention.project_memory`. `memory_padding_mask` is a
        bool tensor `(B, S)`, True = real source token. If `use_memory` is False, the layer ignores
        `memory` and `memory_padding_mask`. For the other arguments, see `MultiHeadAttention.step`,
        where `x` is called `query`.

        Returns:
            A tuple of the output `(B * N, D)`, the updated cache, and the cross-attention weights,
            float `(B, H, N, S)`. The weights are None if `use_memory` is False.
        """
        query = self.self_attention_residual.enter(x)
        attended, cache = self.self_attention.step(
            query, cache, projections, attention_mask, position, prompt_length
        )
        x = self.self_attention_residual(x, attended)
        if not self.use_memory:
            return self._transform(x), cache, None
        query = self.cross_attention_residual.enter(x)
        attended, weights = self.cross_attention.attend_step(
            query, memory, memory_padding_mask, ops.shape(attention_mask)[1]
        )
        x = self.cross_attention_residual(x, attended)
        return self._transform(x), cache, weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Encoder):
    """Stack of decoder layers, with a final norm if the layers are pre-norm (§3.1).

    `init_cache` and `step` decode one token at a time, for models with and without an encoder.

    Example:

    >>> decoder = Decoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> y = decoder(y, memory=memory, memory_padding_mask=source_ids != 0)          # (B, T, 512)
    >>> gpt = Decoder(12, 768, 12, 3072, use_memory=False, norm_first=True, activation="gelu")

    Args:
        num_layers: Number of layers, at least 1.
        d_model, num_heads, d_ff: See `EncoderLayer`.
        **options: Other arguments of `DecoderLayer`. All layers share one position encoding. For a
            list as `attention_pattern`, see `Encoder`.

    For call arguments, result and errors, see `DecoderLayer`. The returned attention weights are
    from the last layer.

    Source: Vaswani et al. 2017, Figure 1 (right); for the final norm, Xiong et al. 2020.
    """

    layer_class = DecoderLayer
    prefix = "decoder"

    def build(self, x_shape: Any, memory_shape: Any = None) -> None:
        for layer in self.layers:
            if not layer.built:
                layer.build(x_shape, memory_shape)
        super().build(x_shape)

    def call(
        self,
        x: Any,
        memory: Any = None,
        padding_mask: Any = None,
        memory_padding_mask: Any = None,
        return_attention_weights: bool = False,
        mask: Any = None,
        x_mask: Any = None,
        memory_mask: Any = None,
    ) -> Any:
        if padding_mask is None:  # Keras sets the last three arguments, as for `DecoderLayer`.
            padding_mask = mask if x_mask is None else x_mask
        memory_padding_mask = memory_mask if memory_padding_mask is None else memory_padding_mask
        inputs = {
            "memory": memory,
            "padding_mask": padding_mask,
            "memory_padding_mask": memory_padding_mask,
        }
        for layer in self.layers[:-1]:
            x = layer(x, **inputs)
        x = self.layers[-1](x, **inputs, return_attention_weights=return_attention_weights)
        if not return_attention_weights:
            return self._normalize(x, padding_mask)
        return self._normalize(x[0], padding_mask), x[1]

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
            max_length: Maximum number of positions L to decode. If None, the cache starts empty and
                grows by one position per step.
            memory: float tensor `(B, S, D_m)`. Required if `use_memory` is True.
            memory_padding_mask: bool tensor `(B, S)`, True = real source token. Defaults to None,
                which means that all tokens are real.

        Returns:
            A `Cache`. `beam` tells which keys and values each hypothesis uses (see `take_slots`).
            `sentence` contains the self-attention keys and values and the projected memory of each
            layer, and the padding mask of the memory. `shared` contains the joined query, key and
            value projections of each layer.

        Raises:
            ValueError: If `use_memory` is True and `memory` is missing.
            ValueError: If `use_memory` is False and `memory` is given.
            ValueError: If `use_causal_mask` is False.
        """
        if not self.layers[0].use_causal_mask:
            raise ValueError("Only causal decoders have a cache. Received: use_causal_mask=False")
        self.layers[0]._check_memory(memory)
        projected: list[Any] = [()] * self.num_layers
        if memory is not None:
            projected = [
                layer.cross_attention.project_memory(memory, memory) for layer in self.layers
            ]
            if memory_padding_mask is None:
                memory_padding_mask = ops.ones(ops.shape(memory)[:2], "bool")
        attentions = [layer.self_attention for layer in self.layers]
        return Cache(
            beam=empty_slots(batch, beam_size, max_length),
            sentence={
                "decoded": [
                    attention.init_cache(batch, beam_size, max_length) for attention in attentions
                ],
                "memory": projected,
                "padding_mask": () if memory is None else memory_padding_mask,
            },
            shared=[attention.fuse_projections() for attention in attentions],
        )

    def prefill(self, cache: Cache, x: Any, padding_mask: Any) -> Cache:
        """Reads prompts in one pass, and returns the cache with their keys and values.

        All hypotheses of a sentence share the keys and values of its prompt. The next call of
        `step` has position 0, and its token follows the prompt.

        Args:
            cache: The result of `init_cache`.
            x: float tensor `(B, P, D)`, the prompts, padded at the beginning.
            padding_mask: bool tensor `(B, P)`, True = real token.

        Raises:
            ValueError: If `use_memory` is True.
        """
        if self.layers[0].use_memory:
            raise ValueError(
                "Only decoders without cross-attention read prompts. Received: use_memory=True"
            )
        length, written = ops.shape(x)[1], []
        for index, (layer, own) in enumerate(
            zip(self.layers, cache.sentence["decoded"], strict=True)
        ):
            if index > 0:
                x = self.layers[index - 1](x, padding_mask=padding_mask)
            projected = layer.self_attention.project_prompt(layer.self_attention_residual.enter(x))
            written.append(own.extend(length).write(*projected, 0))
        prompt = {"decoded": written, "prompt_mask": padding_mask}
        return cache._replace(sentence={**cache.sentence, **prompt})

    def extend_cache(self, cache: Cache, max_length: int) -> Cache:
        """Returns a cache with the same contents, but with room for `max_length` positions.

        Search starts with a short cache and extends it as hypotheses grow. This way, attention
        computes fewer scores for empty positions.
        """
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
            cross-attention weights, float `(B, H, N, S)`. The weights are None if `use_memory` is
            False.
        """
        sentence = cache.sentence
        slots = sentence["decoded"][0].open_position(cache.beam)
        slots, attention_mask = take_slots(slots, position, self.layers[0].num_heads)
        decoded, weights, prompt_length = [], None, 0
        if "prompt_mask" in sentence:
            attention_mask = _with_prompt(sentence["prompt_mask"], attention_mask)
            prompt_length = ops.shape(sentence["prompt_mask"])[1]
        for layer, own, memory, projections in zip(
            self.layers, sentence["decoded"], sentence["memory"], cache.shared, strict=True
        ):
            x, own, weights = layer.step(
                x,
                own,
                projections,
                attention_mask,
                memory,
                sentence["padding_mask"],
                position,
                prompt_length,
            )
            decoded.append(own)
        cache = cache._replace(beam=slots, sentence={**sentence, "decoded": decoded})
        return self._normalize(x), cache, weights


def _with_prompt(prompt_mask: Any, attention_mask: Any) -> Any:
    """Returns the mask `(B * H, N, P + L * N)` of `(B, P)` and `(B * H, N, L * N)`."""
    rows, beams = ops.shape(attention_mask)[:2]
    batch, length = ops.shape(prompt_mask)
    of_prompt = ops.repeat(prompt_mask[:, None], rows // batch, axis=0)
    of_prompt = ops.broadcast_to(of_prompt, (rows, beams, length))
    return ops.concatenate([of_prompt, attention_mask], axis=-1)
