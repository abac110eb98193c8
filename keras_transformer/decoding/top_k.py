"""The best continuations of all hypotheses of a sentence."""

from typing import Any

from keras import ops

BLOCK = 64


def top_k_tokens(scores: Any, k: int, offsets: Any = None) -> tuple[Any, Any, Any]:
    """Finds the k best of all next tokens of all N hypotheses of each sentence.

    In two steps over a large vocabulary: the k best tokens lie in the k blocks of 64 tokens whose
    maxima are best. `ops.top_k` over all of them at once takes several times as long on a CPU.
    Equal scores are ordered as the backend's `top_k` orders them.

    Args:
        scores: float tensor `(B, N, V)`.
        k: How many to find, at most N * V: an int, or a 0-d tensor where shapes may be unknown.
        offsets: float tensor `(B, N)`, added to the scores of each hypothesis; few of them need
            it. Defaults to None: nothing.

    Returns:
        A tuple of three tensors `(B, k)`: the scores, descending; int32, the hypotheses that they
        continue; and int32, the tokens.
    """
    scores = ops.convert_to_tensor(scores)
    beam_size, vocabulary_size = ops.shape(scores)[1:]
    offsets = ops.zeros_like(scores[:, :, 0]) if offsets is None else ops.convert_to_tensor(offsets)
    if not isinstance(k, int) or vocabulary_size < 2 * k * BLOCK:
        totals = scores + offsets[:, :, None]
        values, columns = ops.top_k(ops.reshape(totals, (-1, beam_size * vocabulary_size)), k)
    else:
        columns, is_own = _best_blocks(scores, k, offsets)
        flat = ops.reshape(scores, (-1, beam_size * vocabulary_size))
        totals = take_columns(flat, columns) + take_columns(offsets, columns // vocabulary_size)
        values, chosen = ops.top_k(ops.where(is_own, totals, float("-inf")), k)
        columns = take_columns(columns, chosen)
    columns = ops.cast(columns, "int32")
    return values, columns // vocabulary_size, columns % vocabulary_size


def take_columns(x: Any, columns: Any) -> Any:
    """Takes `columns` `(B, M)` from `x` `(B, N, ...)` to give `(B, M, ...)`."""
    batch, num_columns = ops.shape(x)[:2]
    rows = ops.arange(batch, dtype="int32")[:, None] * num_columns
    return ops.take(
        ops.reshape(x, (-1, *ops.shape(x)[2:])), rows + ops.cast(columns, "int32"), axis=0
    )


def _best_blocks(scores: Any, k: int, offsets: Any) -> tuple[Any, Any]:
    """The columns `(B, k * 64)` of the k best blocks, ascending, and which of them are their own.

    Where the last tokens do not fill a block, theirs begins early and shares tokens with the one
    before, whose own they remain.
    """
    beam_size, vocabulary_size = scores.shape[1:]
    whole = vocabulary_size // BLOCK
    end = whole * BLOCK
    maxima = ops.max(ops.reshape(scores[:, :, :end], (-1, beam_size, whole, BLOCK)), axis=-1)
    if end < vocabulary_size:
        rest = ops.max(scores[:, :, end:], axis=-1, keepdims=True)
        maxima = ops.concatenate([maxima, rest], axis=-1)
    blocks = maxima.shape[-1]
    maxima = maxima + offsets[:, :, None]
    _, chosen = ops.top_k(ops.reshape(maxima, (-1, beam_size * blocks)), k)
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)
    beams, numbers = chosen // blocks, chosen % blocks
    starts = ops.minimum(numbers * BLOCK, vocabulary_size - BLOCK)
    tokens = starts[..., None] + ops.arange(BLOCK, dtype="int32")
    columns = beams[..., None] * vocabulary_size + tokens
    is_own = tokens >= numbers[..., None] * BLOCK
    return tuple(ops.reshape(x, (-1, k * BLOCK)) for x in (columns, is_own))
