"""What greedy and beam search have in common."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras import ops

IMPOSSIBLE = float("-inf")

# Tokens for which a search lays out the cache at first, at most.
LONGEST_FIRST_CACHE = 24


# Called with the log-probabilities `(B, N, V)` of the next token, the ids `(B, N, 1 + L)` and the
# number of tokens decoded so far, `()`; returns log-probabilities, minus infinity = forbidden.
TokenRule = Callable[[Any, Any, Any], Any]


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
    logits = ops.convert_to_tensor(logits)
    ids = ops.arange(logits.shape[-1], dtype="int32")
    is_possible = ops.logical_and(ids != pad_id, ids != bos_id)
    return ops.where(is_possible, logits - log_normalizer(logits)[..., None], IMPOSSIBLE)


def log_normalizer(logits: Any, largest: Any = None) -> Any:
    """Returns what is to be taken from logits `(B, N, V)` for log-probabilities, `(B, N)`.

    Args:
        logits: float32 `(B, N, V)`.
        largest: Their maxima `(B, N, 1)`, for whoever has them already. Defaults to None.
    """
    if largest is None:
        largest = ops.max(logits, axis=-1, keepdims=True)
    total = ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    return (largest + ops.log(total))[..., 0]


def apply_rules(log_probabilities: Any, ids: Any, position: Any, rules: Sequence[TokenRule]) -> Any:
    """Returns the log-probabilities `(B, N, V)` after all rules, applied in their order."""
    for rule in rules:
        log_probabilities = rule(log_probabilities, ids, position)
    return log_probabilities


def best_token(log_probabilities: Any) -> tuple[Any, Any]:
    """Finds the most probable token, the first of several that are equal.

    As a maximum and a minimum, which compilers turn into vector instructions; `ops.argmax` takes
    the time of the whole projection to the vocabulary under XLA on a CPU.

    Args:
        log_probabilities: float32 `(B, N, V)`.

    Returns:
        A tuple of its log-probability, float32 `(B, N)`, and its id, int32 `(B, N)`.
    """
    vocabulary_size = log_probabilities.shape[-1]
    best = ops.max(log_probabilities, axis=-1, keepdims=True)
    ids = ops.arange(vocabulary_size, dtype="int32")
    tokens = ops.min(ops.where(log_probabilities == best, ids, vocabulary_size - 1), axis=-1)
    return best[..., 0], tokens


def run_search(
    model: Any,
    init_cache: Callable[[int], Any],
    advance: Callable[[Any, Any], tuple[Any, Any]],
    is_live: Callable[[Any], Any],
    state: Any,
    max_length: int,
) -> Any:
    """Asks the model for one token after another, until nothing is live or the length is reached.

    A model with `extend_cache` begins with a short cache, which is doubled whenever it is full:
    the cost of a token is that of attention over the tokens there are, not over `max_length`.

    Args:
        model: Has perhaps `extend_cache`.
        init_cache: Makes the cache for a number of positions.
        advance: One step, from state and cache to state and cache.
        is_live: Whether anything is left to do, from a state to a bool tensor `()`.
        state: At the beginning. `state.position` counts the tokens decoded.
        max_length: Most tokens.

    Returns:
        The state at the end.
    """
    if not isinstance(max_length, int):
        lengths = [None]
    else:
        lengths = [max_length]
    while (
        isinstance(max_length, int)
        and hasattr(model, "extend_cache")
        and lengths[0] > LONGEST_FIRST_CACHE
    ):
        lengths.insert(0, -(-lengths[0] // 2))
    cache = init_cache(lengths[0])
    lengths[-1] = max_length
    for stage, length in enumerate(lengths):
        if stage > 0:
            cache = model.extend_cache(cache, length)
        state, cache = ops.while_loop(
            lambda state, cache, length=length: ops.logical_and(
                is_live(state), state.position < length
            ),
            advance,
            (state, cache),
        )
    return state


def empty_ids(shape: tuple[Any, ...], bos_id: int, pad_id: int) -> Any:
    """Returns int32 ids of a shape `(..., 1 + L)`: bos, then padding to be written over."""
    bos = ops.full((*shape[:-1], 1), bos_id, dtype="int32")
    return ops.concatenate([bos, ops.full((*shape[:-1], shape[-1] - 1), pad_id, "int32")], axis=-1)


def write_at(ids: Any, tokens: Any, position: Any) -> Any:
    """Returns `ids` `(..., L)` with `tokens` `(...)` at `position`, an int or 0-d int tensor."""
    columns = ops.arange(ops.shape(ids)[-1], dtype="int32")
    return ops.where(columns == position, ops.expand_dims(tokens, -1), ids)


def limits_of(max_lengths: Any, batch: Any, max_length: int) -> Any:
    """Returns how many tokens each sentence may have, int32 `(B,)`, `max_length` by default."""
    if max_lengths is None:
        return ops.full((batch,), max_length, dtype="int32")
    return ops.minimum(ops.cast(max_lengths, "int32"), max_length)


def count_tokens(ids: Any, pad_id: int) -> Any:
    """Returns the int32 lengths `(...)` of ids `(..., L)`; no search ever chooses padding."""
    return ops.sum(ops.cast(ids != pad_id, "int32"), axis=-1)
