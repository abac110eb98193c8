"""What greedy and beam search have in common."""

from typing import Any, NamedTuple

from keras import ops

IMPOSSIBLE = float("-inf")


class SearchResult(NamedTuple):
    """The hypotheses that a search found, best first; N of them per sentence.

    Attributes:
        ids: int32 `(B, N, L)`, without bos; each ends with eos unless it was cut at its maximum
            length, then padding.
        scores: float32 `(B, N)`, descending: the log-probability, divided by the length penalty
            where there is one.
        log_probabilities: float32 `(B, N)`, nats per hypothesis, eos included.
        lengths: int32 `(B, N)`, tokens, eos included.
        steps: int32 `()`, how often the model was asked.
    """

    ids: Any
    scores: Any
    log_probabilities: Any
    lengths: Any
    steps: Any


def next_log_probabilities(logits: Any, pad_id: int, bos_id: int) -> Any:
    """Returns the log-probabilities of the next token, minus infinity for padding and bos.

    The model's distribution is not renormalized over the tokens that are left, so that a
    hypothesis keeps the log-probability that the model gives it.

    Args:
        logits: float32 `(B, N, V)`.
        pad_id: Id of padding.
        bos_id: Id of the beginning of a sentence.

    Returns:
        A float32 tensor `(B, N, V)`.
    """
    ids = ops.arange(logits.shape[-1], dtype="int32")
    allowed = ops.logical_and(ids != pad_id, ids != bos_id)
    return ops.where(allowed, ops.log_softmax(logits, axis=-1), IMPOSSIBLE)


def empty_ids(shape: tuple[Any, ...], bos_id: int, pad_id: int) -> Any:
    """Returns int32 ids of a shape `(..., 1 + L)`: bos, then padding to be written over."""
    bos = ops.full((*shape[:-1], 1), bos_id, dtype="int32")
    return ops.concatenate([bos, ops.full((*shape[:-1], shape[-1] - 1), pad_id, "int32")], axis=-1)


def write_at(ids: Any, tokens: Any, position: Any) -> Any:
    """Returns `ids` `(..., L)` with `tokens` `(...)` at `position`, an int or 0-d int tensor."""
    columns = ops.arange(ids.shape[-1], dtype="int32")
    return ops.where(columns == position, ops.expand_dims(tokens, -1), ids)


def limits_of(max_lengths: Any, batch: Any, max_length: int) -> Any:
    """Returns how many tokens each sentence may have, int32 `(B,)`, `max_length` by default."""
    if max_lengths is None:
        return ops.full((batch,), max_length, dtype="int32")
    return ops.minimum(ops.cast(max_lengths, "int32"), max_length)


def count_tokens(ids: Any, pad_id: int) -> Any:
    """Returns the int32 lengths `(...)` of ids `(..., L)`; no search ever chooses padding."""
    return ops.sum(ops.cast(ids != pad_id, "int32"), axis=-1)
