"""Operations on logits and ids: probabilities of the next tokens, the best tokens, writing them."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from keras import ops

from keras_transformer._backend.types import Ids, Tensor
from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.layers.attention.cache import take_columns

# Number of tokens in a block of `top_k_tokens`.
BLOCK = 64

# The module `token_rules` describes the call arguments and the result.
TokenRule = Callable[[Any, Any, Any], Any]


def next_log_probabilities(logits: Tensor, pad_id: int, bos_id: int) -> Any:
    """Returns the log-softmax `(B, N, V)` of logits, with minus infinity for padding and bos."""
    logits = ops.convert_to_tensor(logits)
    ids = ops.arange(ops.shape(logits)[-1], dtype="int32")
    is_possible = ops.logical_and(ids != pad_id, ids != bos_id)
    return ops.where(is_possible, logits - log_normalizer(logits)[..., None], IMPOSSIBLE)


def log_normalizer(logits: Tensor, largest: Tensor | None = None) -> Any:
    """Returns log(sum(exp(logits))), `(B, N)`, for logits `(B, N, V)` and their `largest`."""
    if largest is None:
        largest = ops.max(logits, axis=-1, keepdims=True)
    total = ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    return (largest + ops.log(total))[..., 0]


def apply_rules(
    log_probabilities: Tensor, ids: Ids, position: Tensor, rules: Sequence[TokenRule]
) -> Any:
    """Applies all rules in their order, and returns the new log-probabilities `(B, N, V)`."""
    for rule in rules:
        log_probabilities = rule(log_probabilities, ids, position)
    return log_probabilities


def best_token(log_probabilities: Tensor) -> tuple[Any, Any]:
    """Returns the log-probability and int32 id, `(B, N)`, of the first most probable token.

    With XLA on a CPU, `ops.argmax` would take as long as the whole output projection.
    """
    vocabulary_size = ops.shape(log_probabilities)[-1]
    best = ops.max(log_probabilities, axis=-1, keepdims=True)
    ids = ops.arange(vocabulary_size, dtype="int32")
    tokens = ops.min(ops.where(log_probabilities == best, ids, vocabulary_size - 1), axis=-1)
    return best[..., 0], tokens


def write_at(ids: Ids, tokens: Ids, position: Tensor) -> Any:
    """Returns `ids` `(..., L)` with `tokens` `(...)` at `position`, an int or 0-d int tensor."""
    columns = ops.arange(ops.shape(ids)[-1], dtype="int32")
    return ops.where(columns == position, ops.expand_dims(tokens, -1), ids)


def take_at(x: Tensor, indices: Ids) -> Any:
    """Takes from each row of `x` `(..., K)` the element at `indices` `(...)`."""
    return ops.take_along_axis(x, ops.expand_dims(indices, -1), axis=-1)[..., 0]


def count_tokens(ids: Ids, pad_id: int) -> Any:
    """Returns the number of tokens in `ids` `(..., L)` that are not padding, int32 `(...)`."""
    return ops.sum(ops.cast(ids != pad_id, "int32"), axis=-1)


def top_k_tokens(
    scores: Tensor, k: int, offsets: Any = None, excluded: Collection[int] = (), maxima: Any = None
) -> tuple[Any, Any, Any]:
    """Finds the k best next tokens over all N hypotheses of each sentence.

    If the vocabulary is large, the function first finds the k blocks of 64 tokens whose best tokens
    have the highest scores, and then the k best tokens in these blocks. A single `ops.top_k` takes
    several times as long on a CPU.

    `scores` are float `(B, N, V)`. `offsets` `(B, N)` are added to the scores of each hypothesis.
    `excluded` tokens get the score minus infinity. Pass `maxima` if `block_maxima(scores)` is
    already known. `k` is an int, or a 0-d int tensor if it is known only at run time.

    Returns three tensors `(B, k)`: the scores, descending, and the int32 index of each token's
    hypothesis, and the int32 token ids.
    """
    scores = ops.convert_to_tensor(scores)
    beam_size, vocabulary_size = ops.shape(scores)[1:]
    offsets = ops.zeros_like(scores[:, :, 0]) if offsets is None else ops.convert_to_tensor(offsets)
    is_known = isinstance(k, int) and isinstance(vocabulary_size, int)
    if not is_known or vocabulary_size < 2 * k * BLOCK:
        totals = tokens_without(excluded, scores, 0) + offsets[:, :, None]
        values, columns = ops.top_k(ops.reshape(totals, (-1, beam_size * vocabulary_size)), k)
    else:
        maxima = block_maxima(scores) if maxima is None else maxima
        maxima = _maxima_without(excluded, maxima, scores) + offsets[:, :, None]
        columns, counts = _best_blocks(maxima, k, vocabulary_size, excluded)
        flat = ops.reshape(scores, (-1, beam_size * vocabulary_size))
        totals = take_columns(flat, columns) + take_columns(offsets, columns // vocabulary_size)
        values, chosen = ops.top_k(ops.where(counts, totals, IMPOSSIBLE), k)
        columns = take_columns(columns, chosen)
    columns = ops.cast(columns, "int32")
    return values, columns // vocabulary_size, columns % vocabulary_size


def block_maxima(scores: Tensor) -> Any:
    """Returns the highest score of each block of at most 64 tokens, `(B, N, ceil(V / 64))`.

    If V is known only at run time, there is one block.
    """
    *rows, vocabulary_size = ops.shape(scores)
    if not isinstance(vocabulary_size, int) or vocabulary_size < BLOCK:
        return ops.max(scores, axis=-1, keepdims=True)
    whole, rest = divmod(vocabulary_size, BLOCK)
    end = whole * BLOCK
    maxima = ops.max(ops.reshape(scores[:, :, :end], (*rows, whole, BLOCK)), axis=-1)
    last = ops.max(scores[:, :, end:], axis=-1, keepdims=True) if rest else maxima[:, :, :0]
    return ops.concatenate([maxima, last], axis=-1)


def _maxima_without(excluded: Collection[int], maxima: Tensor, scores: Tensor) -> Any:
    """Computes the maxima of blocks with excluded tokens again, without these tokens."""
    numbers = ops.arange(maxima.shape[-1], dtype="int32")
    for block in {token // BLOCK for token in excluded if token >= 0}:
        start = block * BLOCK
        own = tokens_without(excluded, scores[:, :, start : start + BLOCK], start)
        maxima = ops.where(numbers == block, ops.max(own, axis=-1, keepdims=True), maxima)
    return maxima


def _best_blocks(
    maxima: Tensor, k: int, vocabulary_size: int, excluded: Collection[int]
) -> tuple[Any, Any]:
    """Finds the k blocks with the largest `maxima`, and returns the columns of their tokens.

    The column of a token is n * `vocabulary_size` + token id, where n is the index of the token's
    hypothesis. The last block is filled up with tokens of the block before. The function also
    returns a bool mask, False for these and for excluded tokens. Other columns are ascending.
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


def tokens_without(excluded: Collection[int], scores: Tensor, first: int = 0) -> Any:
    """Sets the `scores` of excluded tokens to minus infinity. Column 0 is the token `first`."""
    tokens = ops.arange(first, first + ops.shape(scores)[-1], dtype="int32")
    for token in excluded:
        scores = ops.where(tokens == token, IMPOSSIBLE, scores)
    return scores
