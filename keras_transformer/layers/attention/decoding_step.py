"""What a decoding step tells each layer, and the way of new keys and values into the cache.

In the shapes, B is the number of sentences, N that of hypotheses per sentence, and P that of tokens
in prompts. A step has T tokens of each sentence: the newest tokens of N hypotheses, or P tokens of
a prompt, which is read at once before the first step.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer._backend.types import Size, Tensor
from keras_transformer.layers.attention.cache import Cache, FixedKeyValues


class DecodingStep(NamedTuple):
    """What a decoding step tells each layer of a `Decoder`."""

    mask: Any
    """bool `(B, 1, T, S)`, True = the token may attend to what slot s of the cache holds."""
    offset: Any
    """The `offset` of `PositionalEncoding.rotate` for the queries and keys of the tokens."""
    position: Size | None
    """Position of the newest tokens, 0 for the first after a prompt. None: prompts are read."""
    prompt_mask: Any = None
    """bool `(B, P)`, True = real token of the prompt. None without prompts."""
    memory_padding_mask: Any = None
    """bool `(B, M)`, True = real token of the memory. None without memory."""

    @property
    def prompt_length(self) -> Size:
        """The number of slots P for the prompts, which are before those of decoded tokens."""
        return 0 if self.prompt_mask is None else ops.shape(self.prompt_mask)[1]

    def key_positions(self) -> Any:
        """Returns the position of the tokens in each slot, int32 `(S,)`, below 0 in prompts.

        The step must be one of hypotheses.
        """
        beams, num_slots = ops.shape(self.mask)[2:]
        slots = ops.arange(num_slots, dtype="int32") - self.prompt_length
        return ops.where(slots < 0, slots, slots // beams)


def update_cache(
    cache: Cache, key: Tensor, value: Tensor, step: DecodingStep
) -> tuple[Cache, Any, Any]:
    """Adds the keys and values of a decoding step to the cache of an attention layer.

    Attention with `step.mask` to all keys and values in the cache then gives what attention to the
    whole sequence gives.

    Example:

    >>> cache, key, value = update_cache(cache, key, value, step)
    >>> attended, _ = scaled_dot_product_attention(query, key, value, step.mask)   # (B, H, T, K)

    Args:
        cache: What `CacheSize.empty_cache` or the previous call returned.
        key: float tensor `(B, G, T, K)`, the keys of the step's tokens.
        value: float tensor `(B, G, T, K_v)`, the values of the step's tokens.
        step: The `DecodingStep`.

    Returns:
        A tuple of the updated cache, and all keys `(B, G, S, K)` and values `(B, G, S, K_v)`.
    """
    heads, tokens = ops.shape(key)[:2], ops.shape(key)[2]
    start = 0 if step.position is None else step.prompt_length + step.position * tokens
    key, value = (ops.reshape(x, (-1, *ops.shape(x)[2:])) for x in (key, value))
    own = cache.sentence.write(key, value, start)
    keys = ops.swapaxes(own.key, -1, -2) if isinstance(own, FixedKeyValues) else own.key
    keys, values = (ops.reshape(x, (*heads, *ops.shape(x)[1:])) for x in (keys, own.value))
    return cache._replace(sentence=own), keys, values
