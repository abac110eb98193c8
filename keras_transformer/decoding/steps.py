"""What beam search and sampling have in common."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras import ops

IMPOSSIBLE = float("-inf")


# Called with the log-probabilities `(B, N, V)` of the next token, the ids `(B, N, 1 + L)` and the
# number of tokens decoded so far, `()`; returns log-probabilities, minus infinity = forbidden.
TokenRule = Callable[[Any, Any, Any], Any]


class Request(NamedTuple):
    """What a search is asked for, sentence by sentence. What is None is not asked for.

    Attributes:
        source_ids: int32 `(B, S)`, padded at the end.
        max_lengths: int32 `(B,)`, longest hypothesis of each sentence in tokens, eos included.
        prefix_ids: int32 `(B, P)`, tokens that the hypotheses must begin with, padded at the end.
        forbidden_ids: int32 `(B, C, W)`, C sequences of up to W tokens for each sentence, padded at
            the end, that must not appear.
        required_ids: int32 `(B, C, W)`, sequences that must appear, see `required_words`. A
            hypothesis that is cut at its maximum length loses 1,000 of its score for each required
            token that it lacks. Beam search only.
        beam_sizes: int32 `(B,)`, beams of each sentence, from 1 to the search's `beam_size`. A
            sentence finds what a search with its own beam size finds. If it has fewer beams than
            `n_best`, its last hypotheses are empty. Beam search only, not with `required_ids`.
        length_penalties: float32 `(B,)`, the exponent of each sentence, in place of the option
            `length_penalty`. Beam search only.
        random_numbers: float32 `(B, N, L)` in [0, 1), one number for each token of each sample, see
            `random_numbers`. Sampling only.
    """

    source_ids: Any
    max_lengths: Any = None
    prefix_ids: Any = None
    forbidden_ids: Any = None
    required_ids: Any = None
    beam_sizes: Any = None
    length_penalties: Any = None
    random_numbers: Any = None

    def as_tensors(self, *max_lengths: Any) -> "Request":
        """Returns the request as tensors; `max_lengths` limit each sentence, None does not."""
        floats = ("length_penalties", "random_numbers")
        tensors = {
            name: ops.convert_to_tensor(x, dtype="float32" if name in floats else "int32")
            for name, x in self._asdict().items()
            if x is not None
        }
        batch = ops.shape(tensors["source_ids"])[0]
        limits = [tensors["max_lengths"]] if "max_lengths" in tensors else []
        limits += [ops.full((batch,), x, dtype="int32") for x in max_lengths if x is not None]
        return Request(**{**tensors, "max_lengths": functools.reduce(ops.minimum, limits)})


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


def empty_ids(shape: tuple[Any, ...], bos_id: int, pad_id: int) -> Any:
    """Returns int32 ids of a shape `(..., 1 + L)`: bos, then padding to be written over."""
    bos = ops.full((*shape[:-1], 1), bos_id, dtype="int32")
    return ops.concatenate([bos, ops.full((*shape[:-1], shape[-1] - 1), pad_id, "int32")], axis=-1)


def widen_ids(ids: Any, width: int, pad_id: int) -> Any:
    """Returns `ids` `(B, N, ...)` padded at the end to a width."""
    added = width - ids.shape[-1]
    return ops.pad(ids, ((0, 0), (0, 0), (0, added)), constant_values=pad_id)


def write_at(ids: Any, tokens: Any, position: Any) -> Any:
    """Returns `ids` `(..., L)` with `tokens` `(...)` at `position`, an int or 0-d int tensor."""
    columns = ops.arange(ops.shape(ids)[-1], dtype="int32")
    return ops.where(columns == position, ops.expand_dims(tokens, -1), ids)


def count_tokens(ids: Any, pad_id: int) -> Any:
    """Returns the int32 lengths `(...)` of ids `(..., L)`; no search ever chooses padding."""
    return ops.sum(ops.cast(ids != pad_id, "int32"), axis=-1)
