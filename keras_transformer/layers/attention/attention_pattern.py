"""Defines the base class of the attention patterns and a registry of their names."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.operations import scalar
from keras_transformer.errors import check_sizes
from keras_transformer.layers.attention.scaled_dot_product_attention import MASKED_SCORE

# Maps names to classes. The file of each class adds the class.
ATTENTION_PATTERNS: dict[str, Any] = {}


def attention_pattern(name: str) -> Callable[[type], type]:
    """Returns a decorator that registers a subclass of `AttentionPattern` under `name`."""

    def register(pattern: type) -> type:
        ATTENTION_PATTERNS[name] = pattern
        return pattern

    return register


def new_attention_pattern(name: Any, window: int | None) -> Any:
    """Creates an `AttentionPattern` from its registered name.

    Args:
        name: A registered name, or None for no pattern. For a list, the function returns a list.
        window: The window, stride or block size in tokens, or None if the pattern has none of them.

    Raises:
        ValueError: If the name is not registered, if a required `window` is missing, or if `window`
            is given for a pattern without a window.
    """
    names = name if isinstance(name, list) else [name]
    known = [None, *ATTENTION_PATTERNS]
    if not names or not all(each in known for each in names):
        raise ValueError(
            f"`attention_pattern` must be None, one of {known[1:]}, or a list of these. "
            f"Received: attention_pattern={name!r}"
        )
    classes = [ATTENTION_PATTERNS.get(each) for each in names]
    if any(each and each.needs_window for each in classes) != (window is not None):
        raise ValueError(
            "`attention_window` is required for patterns with a window, stride or block size, and "
            "must be None for all other patterns. "
            f"Received: attention_pattern={name!r}, attention_window={window}"
        )
    patterns = [each and (each(window) if each.needs_window else each()) for each in classes]
    return patterns if isinstance(name, list) else patterns[0]


@keras.saving.register_keras_serializable(package="keras_transformer")
class AttentionPattern:
    """Base class of attention patterns. They let `MultiHeadAttention` process long sequences (§4).

    A pattern defines which keys a query attends to by their positions. A pattern computes attention
    without storing the scores of all pairs of query and key. A pattern has no weights, so the
    weights of a `MultiHeadAttention` can be used with any pattern. Each pattern is a dataclass
    whose fields are sizes in tokens, at least 1. Padding before a sequence changes no result.

    Call arguments:
        query: float tensor `(B, H, T, K)`.
        key: float tensor `(B, H, S, K)`.
        value: float tensor `(B, H, S, K_v)`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        use_scale: Whether scores are divided by sqrt(K). Defaults to True.
        dropout: `Dropout` layer for the attention weights. Defaults to None.
        training: Whether to apply dropout. Defaults to False.

    Returns:
        A float tensor `(B, H, T, K_v)`, finite even for queries whose keys are all masked.

    Raises:
        ValueError: If a size is not an integer of at least 1.
        ValueError: If `padding_mask` has another number of columns than there are keys.

    Attributes:
        needs_window: Whether the pattern has a window, stride or block size. It must be the
            dataclass's first field and must have no default.
    """

    needs_window = False

    def __post_init__(self) -> None:
        check_sizes(**self.get_config())

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

    def allows(self, query: Any, key: Any) -> Any:
        """Returns a bool tensor, True where the pattern lets a query attend to a key.

        Args:
            query: int tensor, the positions of queries. The first real token has position 0.
            key: int tensor, the positions of keys. Its shape must broadcast to that of `query`.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AttentionPattern":
        return cls(**config)


def fitting_size(size: int, length: Any) -> Any:
    """Returns the number of positions per block: `size`, or `length` if the sequence is shorter.

    When JAX infers shapes, `length` is a symbol instead of a number. With a symbolic `length`, the
    whole sequence is one block.
    """
    if isinstance(length, int):
        return max(1, min(size, length))
    return size if ops.is_tensor(length) else length


def split_blocks(x: Any, size: Any) -> Any:
    """Splits `x` `(B, H, T, K)` into M blocks `(B, H, M, size, K)`. Zero-pads the last block."""
    batch, heads, length, width = ops.shape(x)
    # If the length is symbolic, there is a single block of this length (see `fitting_size`).
    added = -length % size if isinstance(length, int) or ops.is_tensor(length) else 0
    x = ops.concatenate([x, ops.zeros((batch, heads, added, width), x.dtype)], axis=2)
    return ops.reshape(x, (batch, heads, (length + added) // size, size, width))


def join_blocks(blocks: Any, length: Any) -> Any:
    """Joins M blocks of b positions, `(B, H, M, b, K)`, to a sequence `(B, H, length, K)`.

    If `length` is None, the sequence has all M b positions.
    """
    batch, heads, count, size, width = ops.shape(blocks)
    return ops.reshape(blocks, (batch, heads, count * size, width))[:, :, :length]


def with_neighbours(blocks: Any, use_causal_mask: bool) -> Any:
    """Joins each block with the block before it and, without a causal mask, the block after it.

    `blocks` has the shape `(B, H, M, b, K)`. The result has the shape `(B, H, M, 2 b, K)` with a
    causal mask, otherwise `(B, H, M, 3 b, K)`. Zeros replace the missing blocks before the first
    block and after the last block.
    """
    sides = 2 if use_causal_mask else 3
    padded = ops.pad(blocks, [(0, 0), (0, 0), (1, sides - 2), (0, 0), (0, 0)])
    shape = ops.shape(blocks)
    parts = [ops.slice(padded, (0, 0, start, 0, 0), shape) for start in range(sides)]
    return ops.concatenate(parts, axis=3)


def neighbour_distances(size: Any, use_causal_mask: bool) -> Any:
    """Returns query position minus key position, int32 `(b, 2 b)` if causal, else `(b, 3 b)`.

    The queries are in one block of b = `size` positions. The keys are in this block and in its
    neighbours (see `with_neighbours`).
    """
    keys = ops.arange(-size, size if use_causal_mask else 2 * size, dtype="int32")
    return ops.arange(size, dtype="int32")[:, None] - keys


def key_marks(key: Any, padding_mask: Any) -> Any:
    """Returns int32 marks `(B, 1, S, 1)`: 1 if a key is a real token, 0 if it is padding.

    `split_blocks` fills up the last block of keys and the last block of marks with zeros. The added
    keys therefore count as padding.
    """
    check_mask_length(padding_mask, key.shape[2])
    if padding_mask is None:
        padding_mask = ops.ones((ops.shape(key)[0], ops.shape(key)[2]), "bool")
    return _ones_and_zeros(padding_mask)[:, None, :, None]


def masked_scores(queries: Any, keys: Any, marks: Any, allowed: Any) -> Any:
    """Returns float32 scores `(..., T, S)` of queries `(..., T, K)` and keys `(..., S, K)`.

    A score is masked if its key is padding or if `allowed` is False. If `allowed` is None, only
    padding is masked.
    """
    scores = ops.cast(ops.matmul(queries, ops.swapaxes(keys, -1, -2)), "float32")
    mask = ops.swapaxes(marks, -1, -2) > 0
    if allowed is not None:
        mask = ops.logical_and(mask, allowed)
    return ops.where(mask, scores, scalar(MASKED_SCORE, scores.dtype))


def sequence_start(padding_mask: Any) -> Any:
    """Returns the position of the first real token, int32 `(..., 1)`, or S if there is none.

    `padding_mask` has the shape `(..., S)`.
    """
    seen = ops.cumsum(_ones_and_zeros(padding_mask), axis=-1)
    return ops.sum(ops.cast(ops.equal(seen, 0), "int32"), axis=-1, keepdims=True)


def _ones_and_zeros(mask: Any) -> Any:
    # Through bool, because a mask of integers may have other numbers than 1 for True.
    return ops.cast(ops.cast(mask, "bool"), "int32")


def check_mask_length(padding_mask: Any, num_keys: Any) -> None:
    """Raises `ValueError` if the length of the mask and the number of keys are known and differ."""
    length = None if padding_mask is None else padding_mask.shape[1]
    if isinstance(length, int) and isinstance(num_keys, int) and length != num_keys:
        raise ValueError(
            "`padding_mask` must have as many columns as there are keys. "
            f"Received: shape={tuple(padding_mask.shape)}, {num_keys} keys"
        )


def check_one_length(query: Any, key: Any, pattern: Any) -> None:
    """Raises `ValueError` if the numbers of queries and keys are known and differ."""
    if None not in (query.shape[2], key.shape[2]) and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{type(pattern).__name__} is for self-attention: the numbers of queries and keys must "
            f"be equal. Received: {query.shape[2]} queries, {key.shape[2]} keys"
        )
