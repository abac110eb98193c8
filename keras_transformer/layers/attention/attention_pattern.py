"""Which positions attend to which, as an object that computes it, and sequences in blocks."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

# Name to class. Each pattern's file adds its own.
ATTENTION_PATTERNS: dict[str, Any] = {}


def attention_pattern(name: str) -> Callable[[type], type]:
    """Returns a decorator that registers an `AttentionPattern` under a name."""

    def register(pattern: type) -> type:
        ATTENTION_PATTERNS[name] = pattern
        return pattern

    return register


def new_attention_pattern(name: str | None, window: int | None) -> "AttentionPattern | None":
    """Makes the pattern of a name.

    Args:
        name: A registered name, or None for no pattern.
        window: Window or stride in tokens, for the patterns that have one, else None.

    Raises:
        ValueError: If there is no such pattern, or it needs a `window` or takes none.
    """
    if name not in (None, *ATTENTION_PATTERNS):
        raise ValueError(
            f"`attention_pattern` must be None or one of {list(ATTENTION_PATTERNS)}. "
            f"Received: attention_pattern={name!r}"
        )
    pattern = None if name is None else ATTENTION_PATTERNS[name]
    needs_window = pattern is not None and pattern.needs_window
    if needs_window != (window is not None):
        raise ValueError(
            "`attention_window` must be given with the patterns that have a window or a stride, "
            f"and with no other. Received: attention_pattern={name!r}, attention_window={window}"
        )
    if pattern is None:
        return None
    return pattern(window) if needs_window else pattern()


@keras.saving.register_keras_serializable(package="keras_transformer")
class AttentionPattern:
    """Base class of the ways in which `MultiHeadAttention` attends over long sequences (§4).

    A pattern is a rule about the distance from a key to a query, and a way to compute attention by
    that rule without the scores of all queries and keys in memory. It has no weights: the same
    `MultiHeadAttention` can be given another one. Patterns are dataclasses whose fields are sizes
    in tokens, at least 1.

    Call arguments:
        query: float tensor `(B, H, T, K)`.
        key: float tensor `(B, H, S, K)`.
        value: float tensor `(B, H, S, K_v)`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        use_scale: Whether scores are divided by sqrt(K). Defaults to True.
        dropout: The `Dropout` of the weights. Defaults to None.
        training: Whether to drop. Defaults to False.

    Returns:
        A float tensor `(B, H, T, K_v)`. Queries that may attend to nothing get finite numbers.

    Raises:
        ValueError: If a size is less than 1.

    Attributes:
        needs_window: Whether the first field is a window or a stride, without a default.
    """

    needs_window = False

    def __post_init__(self) -> None:
        for name, size in self.get_config().items():
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={size}")

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        padding_mask: Any = None,
        use_causal_mask: bool = False,
        use_scale: bool = True,
        dropout: Any = None,
        training: bool = False,
    ) -> Any:
        raise NotImplementedError

    def allows(self, distance: Any) -> Any:
        """Returns which distances the pattern has, regardless of masks.

        Args:
            distance: int tensor, the query's position less the key's.

        Returns:
            A bool tensor of the same shape.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AttentionPattern":
        return cls(**config)


# --- Sequences in blocks -------------------------------------------------------------------------


def fitting_size(size: int, length: Any) -> Any:
    """The size of blocks: no larger than the sequence is long, as far as that is known.

    Where JAX infers shapes it knows lengths by name; then there is one block.
    """
    if isinstance(length, int):
        return max(1, min(size, length))
    return size if ops.is_tensor(length) else length


def split_blocks(x: Any, size: Any) -> Any:
    """Cuts `(B, H, T, K)` into blocks of `size`, padded with zeros: `(B, H, T / size, size, K)`."""
    batch, heads, length, width = ops.shape(x)
    # A length by name is that of the one block.
    added = -length % size if isinstance(length, int) or ops.is_tensor(length) else 0
    x = ops.concatenate([x, ops.zeros((batch, heads, added, width), x.dtype)], axis=2)
    return ops.reshape(x, (batch, heads, (length + added) // size, size, width))


def join_blocks(blocks: Any, length: Any) -> Any:
    """Puts blocks together again, and leaves out what follows `length`."""
    batch, heads, count, size, width = ops.shape(blocks)
    return ops.reshape(blocks, (batch, heads, count * size, width))[:, :, :length]


def with_neighbours(blocks: Any, use_causal_mask: bool) -> Any:
    """Puts the block before in front of each block, and the block after behind it if not causal.

    The first and the last block have zeros there.

    Args:
        blocks: tensor `(B, H, M, b, K)`.
        use_causal_mask: Whether to leave out the block after.

    Returns:
        A tensor `(B, H, M, 2 b, K)` or `(B, H, M, 3 b, K)`.
    """
    sides = 2 if use_causal_mask else 3
    padded = ops.pad(blocks, [(0, 0), (0, 0), (1, sides - 2), (0, 0), (0, 0)])
    shape = ops.shape(blocks)
    parts = [ops.slice(padded, (0, 0, start, 0, 0), shape) for start in range(sides)]
    return ops.concatenate(parts, axis=3)


def neighbour_distances(size: Any, use_causal_mask: bool) -> Any:
    """Distances from the keys of `with_neighbours` to the queries of the block.

    Returns:
        int32 tensor `(b, 2 b)` or `(b, 3 b)`, the query's position less the key's.
    """
    keys = ops.arange(-size, size if use_causal_mask else 2 * size, dtype="int32")
    return ops.arange(size, dtype="int32")[:, None] - keys


def key_marks(key: Any, padding_mask: Any) -> Any:
    """Marks the real keys: int32 `(B, 1, S, 1)`, 1 where a key is a real token.

    Blocks of them have zeros where blocks of keys have nothing.
    """
    if padding_mask is None:
        padding_mask = ops.ones((ops.shape(key)[0], ops.shape(key)[2]), "bool")
    return ops.cast(padding_mask, "int32")[:, None, :, None]


def check_one_length(query: Any, key: Any, pattern: Any) -> None:
    """Raises `ValueError` where queries and keys are known to be of two sequences."""
    if None not in (query.shape[2], key.shape[2]) and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{type(pattern).__name__} is a pattern of self-attention: there must be as many "
            f"queries as keys. Received: {query.shape[2]} queries, {key.shape[2]} keys"
        )
