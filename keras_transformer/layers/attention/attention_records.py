"""Records the attention weights that layers compute."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

# "encoder": self-attention to all positions; "decoder": causal self-attention; "cross": attention
# to another sequence.
AttentionKind = Literal["encoder", "decoder", "cross"]


class AttentionRecord(NamedTuple):
    """The attention weights of one call of a layer.

    Attributes:
        layer: The layer that computed the weights.
        kind: Whether the layer attended to its own sequence or to another sequence.
        weights: float tensor `(B, H, T, S)` or, if the layer has no heads, `(B, T, S)`.
    """

    layer: Any
    kind: AttentionKind
    weights: Any


_RECORDS: ContextVar[list[AttentionRecord] | None] = ContextVar("_RECORDS", default=None)


@contextmanager
def recorded_attention() -> Iterator[list[AttentionRecord]]:
    """Collects a record of each call of an attention layer within this context.

    Only calls in the same thread count. An `AttentionPattern` then is a mask of all scores.

    Yields:
        A list to which each call of an attention layer adds a record, in the order of the calls.
    """
    records: list[AttentionRecord] = []
    token = _RECORDS.set(records)
    try:
        yield records
    finally:
        _RECORDS.reset(token)


def is_recorded() -> bool:
    """Returns whether attention layers must compute all their weights and record them."""
    return _RECORDS.get() is not None


def record_attention(layer: Any, kind: AttentionKind, weights: Any) -> None:
    """Records the attention weights of a call, if `attention_maps` runs the model.

    An attention layer of your own calls this function at the end of its `call`.

    Args:
        layer: The layer.
        kind: `"encoder"` for self-attention to all positions, `"decoder"` for causal
            self-attention, `"cross"` for attention to another sequence.
        weights: float tensor `(B, H, T, S)` or, if the layer has no heads, `(B, T, S)`.
    """
    if (records := _RECORDS.get()) is not None:
        records.append(AttentionRecord(layer, kind, weights))


def self_attention_kind(use_causal_mask: bool) -> AttentionKind:
    """Returns the kind of a layer that attends to its own sequence."""
    return "decoder" if use_causal_mask else "encoder"
