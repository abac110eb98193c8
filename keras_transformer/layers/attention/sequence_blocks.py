"""Sequences cut into blocks, for attention that looks no farther than the next one."""

from typing import Any

from keras import ops


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
