"""The best continuations of all hypotheses of a sentence."""

from collections.abc import Collection
from typing import Any

from keras import ops

BLOCK = 64


def top_k_tokens(
    scores: Any,
    k: int,
    offsets: Any = None,
    excluded: Collection[int] = (),
    maxima: Any = None,
) -> tuple[Any, Any, Any]:
    """Finds the k best of all next tokens of all N hypotheses of each sentence.

    In two steps over a large vocabulary: the k best tokens lie in the k blocks of 64 tokens whose
    maxima are best. `ops.top_k` over all of them at once takes several times as long on a CPU.
    Equal scores are ordered as the backend's `top_k` orders them.

    Args:
        scores: float tensor `(B, N, V)`.
        k: How many to find, at most N * V: an int, or a 0-d tensor where shapes may be unknown.
        offsets: float tensor `(B, N)`, added to the scores of each hypothesis; few of them need
            it. Defaults to None: nothing.
        excluded: Ids of tokens whose scores count as minus infinity. Defaults to none.
        maxima: `block_maxima(scores)` for whoever has it already. Defaults to None.

    Returns:
        A tuple of three tensors `(B, k)`: the scores, descending; int32, the hypotheses that they
        continue; and int32, the tokens.
    """
    scores = ops.convert_to_tensor(scores)
    beam_size, vocabulary_size = ops.shape(scores)[1:]
    offsets = ops.zeros_like(scores[:, :, 0]) if offsets is None else ops.convert_to_tensor(offsets)
    if not isinstance(k, int) or vocabulary_size < 2 * k * BLOCK:
        totals = without(excluded, scores, 0) + offsets[:, :, None]
        values, columns = ops.top_k(ops.reshape(totals, (-1, beam_size * vocabulary_size)), k)
    else:
        maxima = block_maxima(scores) if maxima is None else maxima
        maxima = _maxima_without(excluded, maxima, scores) + offsets[:, :, None]
        columns, counts = _best_blocks(maxima, k, vocabulary_size, excluded)
        flat = ops.reshape(scores, (-1, beam_size * vocabulary_size))
        totals = take_columns(flat, columns) + take_columns(offsets, columns // vocabulary_size)
        values, chosen = ops.top_k(ops.where(counts, totals, float("-inf")), k)
        columns = take_columns(columns, chosen)
    columns = ops.cast(columns, "int32")
    return values, columns // vocabulary_size, columns % vocabulary_size


def take_columns(x: Any, columns: Any) -> Any:
    """Takes `columns` `(B, M)` from `x` `(B, N, ...)` to give `(B, M, ...)`."""
    if x.shape[1] == columns.shape[1] == 1:
        return x
    batch, num_columns = ops.shape(x)[:2]
    rows = ops.arange(batch, dtype="int32")[:, None] * num_columns
    return ops.take(
        ops.reshape(x, (-1, *ops.shape(x)[2:])), rows + ops.cast(columns, "int32"), axis=0
    )


def block_maxima(scores: Any) -> Any:
    """Returns the maxima `(B, N, V / 64)` of blocks of tokens, the last of which may have fewer."""
    *rows, vocabulary_size = ops.shape(scores)
    whole = vocabulary_size // BLOCK
    end = whole * BLOCK
    parts = []
    if whole:
        parts.append(ops.max(ops.reshape(scores[:, :, :end], (*rows, whole, BLOCK)), axis=-1))
    if end < vocabulary_size:
        parts.append(ops.max(scores[:, :, end:], axis=-1, keepdims=True))
    return ops.concatenate(parts, axis=-1)


def _maxima_without(excluded: Collection[int], maxima: Any, scores: Any) -> Any:
    """A mask over all scores would be one more pass over them; a few tokens are in a few blocks."""
    numbers = ops.arange(maxima.shape[-1], dtype="int32")
    for block in {token // BLOCK for token in excluded}:
        start = block * BLOCK
        own = without(excluded, scores[:, :, start : start + BLOCK], start)
        maxima = ops.where(numbers == block, ops.max(own, axis=-1, keepdims=True), maxima)
    return maxima


def _best_blocks(
    maxima: Any, k: int, vocabulary_size: int, excluded: Collection[int]
) -> tuple[Any, Any]:
    """The columns `(B, k * 64)` of the k best blocks, ascending, and which of them count.

    Where the last tokens do not fill a block, theirs begins early and shares tokens with the one
    before, for which they count.
    """
    beam_size, blocks = maxima.shape[1:]
    _, chosen = ops.top_k(ops.reshape(maxima, (-1, beam_size * blocks)), k)
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)
    beams, numbers = chosen // blocks, chosen % blocks
    starts = ops.minimum(numbers * BLOCK, vocabulary_size - BLOCK)
    tokens = starts[..., None] + ops.arange(BLOCK, dtype="int32")
    columns = beams[..., None] * vocabulary_size + tokens
    counts = tokens >= numbers[..., None] * BLOCK
    for token in excluded:
        counts = ops.logical_and(counts, tokens != token)
    return tuple(ops.reshape(x, (-1, k * BLOCK)) for x in (columns, counts))


def without(excluded: Collection[int], scores: Any, first: int = 0) -> Any:
    """Scores of tokens from `first` on, minus infinity for the excluded ones."""
    tokens = ops.arange(first, first + scores.shape[-1], dtype="int32")
    for token in excluded:
        scores = ops.where(tokens == token, float("-inf"), scores)
    return scores
