"""Defines requests, results and operations on ids and logits, for beam search and sampling."""

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.layers.attention.cache import take_columns

# Number of tokens in a block of `top_k_tokens`.
BLOCK = 64

# The module `token_rules` describes the call arguments and the result.
TokenRule = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class SearchStrategy:
    """What beam search and sampling have in common. See `make_strategy` for the fields."""

    options: Any
    rules: tuple[TokenRule, ...]
    num_beams: Any
    num_results: Any
    bos_id: int
    eos_id: int
    pad_id: int

    def ends(self, tokens: Any, position: Any, request: "Request") -> Any:
        """Returns a bool mask, True for hypotheses with eos or with the maximum length."""
        return ops.logical_or(tokens == self.eos_id, position >= request.max_lengths[:, None])


class Request(NamedTuple):
    """The input of a search. Fields that are None have no effect.

    Attributes:
        source_ids: int32 `(B, S)`, padded at the end, or float features `(B, S, F)`.
        max_lengths: int32 `(B,)`, maximum length of each sentence's hypotheses, eos included.
        prefix_ids: int32 `(B, P)`, tokens that every hypothesis begins with, padded at the end.
        forbidden_ids: int32 `(B, C, W)`, padded at the end. The hypotheses of a sentence must not
            contain any of its C token sequences.
        required_ids: int32 `(B, C, W)`, padded at the end. The hypotheses of a sentence must
            contain all of its C token sequences, see `token_rules`. If a hypothesis is truncated
            at its maximum length, its score is reduced by 1,000 for each missing required token.
            Beam search only.
        beam_sizes: int32 `(B,)`, number of beams of each sentence, from 1 to the search's
            `beam_size`. A sentence with fewer beams than `n_best` has empty hypotheses at the end.
            Beam search only, and not together with `required_ids`.
        length_penalties: float32 `(B,)`, one exponent per sentence, used instead of the option
            `length_penalty`. Beam search only.
        random_numbers: float32 `(B, N, L)` in [0, 1), one number per token of each sample. The
            function `random_numbers` draws them. Sampling only.
        shortlist: int32 `(B, K)`, the only tokens that each sentence's hypotheses may contain, in
            any order. Padding is ignored. The search adds the tokens of the other fields and all
            ids up to the largest id of pad, bos and eos. Can't be combined with `rules`. Needs a
            model with `limit_vocabulary`.
    """

    source_ids: Any
    max_lengths: Any = None
    prefix_ids: Any = None
    forbidden_ids: Any = None
    required_ids: Any = None
    beam_sizes: Any = None
    length_penalties: Any = None
    random_numbers: Any = None
    shortlist: Any = None

    def as_tensors(self, *max_lengths: Any) -> "Request":
        """Returns the request as tensors, and None for a constraint without any token.

        The maximum length of a sentence becomes the minimum of its own and of `max_lengths`, which
        are limits for all sentences, or None.
        """
        features = ("source_ids",) if ops.ndim(self.source_ids) > 2 else ()
        floats = ("length_penalties", "random_numbers", *features)
        tensors = {
            name: ops.convert_to_tensor(x, dtype="float32" if name in floats else "int32")
            for name, x in self._asdict().items()
            if x is not None
        }
        for name in ("prefix_ids", "forbidden_ids", "required_ids"):
            if name in tensors and 0 in tensors[name].shape[1:]:
                del tensors[name]
        shape = ops.shape(tensors["source_ids"])[:1]
        limits = [ops.full(shape, x, dtype="int32") for x in max_lengths if x is not None]
        limits += [tensors["max_lengths"]] if "max_lengths" in tensors else []
        return Request(**{**tensors, "max_lengths": functools.reduce(ops.minimum, limits)})


class SearchResult(NamedTuple):
    """N hypotheses per sentence, found by a search. Beam search sorts the hypotheses, best first.

    Attributes:
        ids: int32 `(B, N, L)`, without bos, padded at the end. Each hypothesis ends with eos,
            unless it was truncated at its maximum length.
        scores: float32 `(B, N)`. In beam search, a score is the log-probability divided by the
            length penalty, plus the coverage penalty. In sampling, it is the log-probability.
        log_probabilities: float32 `(B, N)`, nats per hypothesis, eos included.
        lengths: int32 `(B, N)`, number of tokens of each hypothesis, eos included.
        steps: int32 `()`, number of decoding steps.
    """

    ids: Any
    scores: Any
    log_probabilities: Any
    lengths: Any
    steps: Any


def next_log_probabilities(logits: Any, pad_id: int, bos_id: int) -> Any:
    """Returns the log-softmax `(B, N, V)` of logits, with minus infinity for padding and bos."""
    logits = ops.convert_to_tensor(logits)
    ids = ops.arange(ops.shape(logits)[-1], dtype="int32")
    is_possible = ops.logical_and(ids != pad_id, ids != bos_id)
    return ops.where(is_possible, logits - log_normalizer(logits)[..., None], IMPOSSIBLE)


def log_normalizer(logits: Any, largest: Any = None) -> Any:
    """Returns log(sum(exp(logits))), `(B, N)`, for logits `(B, N, V)` and their `largest`."""
    if largest is None:
        largest = ops.max(logits, axis=-1, keepdims=True)
    total = ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    return (largest + ops.log(total))[..., 0]


def apply_rules(log_probabilities: Any, ids: Any, position: Any, rules: Sequence[TokenRule]) -> Any:
    """Applies all rules in their order, and returns the new log-probabilities `(B, N, V)`."""
    for rule in rules:
        log_probabilities = rule(log_probabilities, ids, position)
    return log_probabilities


def best_token(log_probabilities: Any) -> tuple[Any, Any]:
    """Returns the log-probability and int32 id, `(B, N)`, of the first most probable token.

    With XLA on a CPU, `ops.argmax` would take as long as the whole output projection.
    """
    vocabulary_size = ops.shape(log_probabilities)[-1]
    best = ops.max(log_probabilities, axis=-1, keepdims=True)
    ids = ops.arange(vocabulary_size, dtype="int32")
    tokens = ops.min(ops.where(log_probabilities == best, ids, vocabulary_size - 1), axis=-1)
    return best[..., 0], tokens


def empty_ids(shape: tuple[Any, ...], bos_id: int, pad_id: int) -> Any:
    """Returns int32 ids of shape `(..., 1 + L)` with bos first and then padding."""
    bos = ops.full((*shape[:-1], 1), bos_id, dtype="int32")
    return ops.concatenate([bos, ops.full((*shape[:-1], shape[-1] - 1), pad_id, "int32")], axis=-1)


def widen_ids(ids: Any, width: int, pad_id: int) -> Any:
    """Returns `ids` `(B, N, L)`, padded at the end to length `width`."""
    added = width - ids.shape[-1]
    return ops.pad(ids, ((0, 0), (0, 0), (0, added)), constant_values=pad_id)


def write_at(ids: Any, tokens: Any, position: Any) -> Any:
    """Returns `ids` `(..., L)` with `tokens` `(...)` at `position`, an int or 0-d int tensor."""
    columns = ops.arange(ops.shape(ids)[-1], dtype="int32")
    return ops.where(columns == position, ops.expand_dims(tokens, -1), ids)


def take_at(x: Any, indices: Any) -> Any:
    """Takes from each row of `x` `(..., K)` the element at `indices` `(...)`."""
    return ops.take_along_axis(x, ops.expand_dims(indices, -1), axis=-1)[..., 0]


def count_tokens(ids: Any, pad_id: int) -> Any:
    """Returns the number of tokens in `ids` `(..., L)` that are not padding, int32 `(...)`."""
    return ops.sum(ops.cast(ids != pad_id, "int32"), axis=-1)


def search_result(
    ids: Any, scores: Any, log_probabilities: Any, position: Any, pad_id: int
) -> SearchResult:
    """Returns a `SearchResult` without bos. Ids become padding if the score is minus infinity."""
    exists = scores > IMPOSSIBLE
    ids = ops.where(exists[:, :, None], ids[:, :, 1:], pad_id)
    return SearchResult(ids, scores, log_probabilities, count_tokens(ids, pad_id), position)


def top_k_tokens(
    scores: Any, k: int, offsets: Any = None, excluded: Collection[int] = (), maxima: Any = None
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


def block_maxima(scores: Any) -> Any:
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


def _maxima_without(excluded: Collection[int], maxima: Any, scores: Any) -> Any:
    """Computes the maxima of blocks with excluded tokens again, without these tokens."""
    numbers = ops.arange(maxima.shape[-1], dtype="int32")
    for block in {token // BLOCK for token in excluded if token >= 0}:
        start = block * BLOCK
        own = tokens_without(excluded, scores[:, :, start : start + BLOCK], start)
        maxima = ops.where(numbers == block, ops.max(own, axis=-1, keepdims=True), maxima)
    return maxima


def _best_blocks(
    maxima: Any, k: int, vocabulary_size: int, excluded: Collection[int]
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


def tokens_without(excluded: Collection[int], scores: Any, first: int = 0) -> Any:
    """Sets the `scores` of excluded tokens to minus infinity. Column 0 is the token `first`."""
    tokens = ops.arange(first, first + ops.shape(scores)[-1], dtype="int32")
    for token in excluded:
        scores = ops.where(tokens == token, IMPOSSIBLE, scores)
    return scores
