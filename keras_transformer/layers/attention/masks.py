"""Boolean masks, computed from ids and passed by name. True = may attend / is a real token."""

from typing import Any

from keras import ops


def padding_mask(ids: Any, pad_id: int = 0) -> Any:
    """Marks the real tokens of a padded batch.

    Args:
        ids: int tensor of shape `(B, S)`.
        pad_id: Id of the padding token. Defaults to 0.

    Returns:
        A bool tensor of shape `(B, S)`, True where `ids` is a real token.
    """
    return ops.not_equal(ids, pad_id)


def causal_mask(length: Any) -> Any:
    """Lets every target position attend to itself and to earlier positions (§3.2.3).

    Args:
        length: Number of positions T, an int or a 0-d int tensor.

    Returns:
        A bool tensor of shape `(1, T, T)`, True where the column (key) is not later than the row
        (query).
    """
    positions = ops.arange(length)
    return ops.expand_dims(positions[None, :] <= positions[:, None], 0)


def both_masks(mask: Any, other: Any) -> Any:
    """Returns what both masks allow; `mask` may be None, which allows all."""
    return other if mask is None else ops.logical_and(mask, other)
