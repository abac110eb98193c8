"""Draws random translations from the model's distribution."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer._backend.types import Tensor
from keras_transformer.decoding.next_tokens import (
    apply_rules,
    next_log_probabilities,
    take_at,
    top_k_tokens,
    write_at,
)
from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.decoding.request import Request, SearchResult, SearchStrategy
from keras_transformer.decoding.token_rules import rules_of_request
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.models.protocol import Searchable

# Sampling first chooses a block of this many tokens, and then a token of this block.
BLOCK_SIZE = 256
# Bisection between -87 and 0 finds the smallest log-weight in the nucleus in float32 precision.
NUCLEUS_BISECTIONS = 30
SMALLEST_LOG_WEIGHT = -87.0


class SampleState(NamedTuple):
    """The state of sampling between two steps, without the model's cache."""

    position: Any  # int32 `()`, number of tokens drawn so far
    ids: Any  # int32 `(B, N, 1 + L)`, bos first, padding where nothing is drawn yet
    log_probabilities: Any  # float32 `(B, N)`; minus infinity if the rules allowed no token
    is_open: Any  # bool `(B, N)`, False once the sample has ended


class Sampling(SearchStrategy):
    """Draws N independent translations of each sentence, token by token.

    Each step applies the token rules to the model's log-probabilities and divides the results by
    the temperature. It keeps the `top_k` most probable tokens and renormalizes their probabilities.
    Of these tokens, it keeps the nucleus: the smallest set of most probable tokens whose
    probabilities add up to at least `top_p`, and tokens that are exactly as probable as the last of
    them. It then adds up the probabilities in the order of token ids, and chooses the first token
    whose cumulative probability exceeds the random number. So the same random numbers give the same
    samples on every backend and in every batch, except for rounding errors.

    Sample n of each sentence uses `request.random_numbers[:, n]`. The score of a sample is its
    log-probability under the model, before temperature, `top_k`, `top_p` and rules. If the rules
    allow no token, the sample is empty and its score is minus infinity. For the sources, see
    `SamplingOptions`.
    """

    needs = (
        "`random_numbers` of the shape (B, num_samples, max_length), and no `required_ids`, "
        "`beam_sizes` or `length_penalties`"
    )

    def supports(self, request: Request, max_length: int | Tensor) -> bool:
        of_beams = (request.required_ids, request.beam_sizes, request.length_penalties)
        numbers = request.random_numbers
        is_drawn = numbers is not None and tuple(numbers.shape)[1:] == (self.num_beams, max_length)
        return is_drawn and all(x is None for x in of_beams)

    def start(self, request: Request, max_length: int | Tensor) -> SampleState:
        shape = (ops.shape(request.source_ids)[0], self.num_beams)
        return SampleState(
            position=ops.convert_to_tensor(0, dtype="int32"),
            ids=self.empty_ids(shape, max_length),
            log_probabilities=ops.zeros(shape, "float32"),
            is_open=ops.ones(shape, "bool"),
        )

    def widen(self, state: SampleState, max_length: int) -> SampleState:
        return state._replace(ids=self.widen_ids(state.ids, max_length))

    def is_open(self, state: SampleState) -> Any:
        """Returns a bool mask `(B,)`, True for sentences with unfinished samples."""
        return ops.any(state.is_open, axis=-1)

    def advance(
        self, model: Searchable, request: Request, state: SampleState, cache: Cache
    ) -> tuple[SampleState, Cache]:
        """Draws one token per sample, and returns the new state and the model's new cache."""
        options, rules = self.options, (*self.rules, *rules_of_request(request, self.pad_id))
        last = ops.take(state.ids, state.position, axis=-1)
        logits, cache = model.step(last, cache, state.position)
        unchanged = next_log_probabilities(logits, self.pad_id, self.bos_id)
        allowed = apply_rules(unchanged, state.ids, state.position, rules)
        weights = _weights(allowed / options.temperature, options.top_k, options.top_p)
        tokens = _draw(weights, ops.take(request.random_numbers, state.position, axis=-1))
        is_allowed = take_at(weights, tokens) > 0
        gains = ops.where(is_allowed, take_at(unchanged, tokens), IMPOSSIBLE)
        position = state.position + 1
        log_probabilities = state.log_probabilities + ops.where(state.is_open, gains, 0.0)
        ends = self.ends(tokens, position, request)
        ends = ops.logical_or(ends, log_probabilities == IMPOSSIBLE)
        tokens = ops.where(state.is_open, tokens, self.pad_id)
        state = SampleState(
            position=position,
            ids=write_at(state.ids, tokens, position),
            log_probabilities=log_probabilities,
            is_open=ops.logical_and(state.is_open, ops.logical_not(ends)),
        )
        return state, cache

    def result(self, request: Request, state: SampleState) -> SearchResult:
        scores = state.log_probabilities
        return self.found(state.ids, scores, scores, state.position)


def random_numbers(
    seed: int,
    indices: Sequence[int],
    num_samples: int,
    max_length: int,
    num_rows: int | None = None,
) -> np.ndarray:
    """Draws one random number per token of each sample. Sampling uses them to choose the tokens.

    The random numbers of a sample depend only on the seed, the index of the sentence and the index
    of the sample. They come from the raw output of the Philox generator, which is the same in all
    releases of NumPy.

    Args:
        seed: Integer from 0 to 2**64 - 1.
        indices: Indices of the sentences in the whole text, integers from 0 to 2**64 - 1.
        num_samples: Number N of samples per sentence.
        max_length: Maximum number L of tokens per sample.
        num_rows: Number of rows B. Rows without a sentence are 0. Defaults to one per sentence.

    Returns:
        float32 array `(B, N, L)` of multiples of 2**-24 in [0, 1).

    Source: Salmon et al. 2011, for Philox.
    """
    numbers = np.zeros((num_rows or len(indices), num_samples, max_length), "float32")
    for row, column in np.ndindex(len(indices), num_samples):
        key = np.array([seed, indices[row]], "uint64")
        raw = np.random.Philox(key=key, counter=[0, 0, 0, column]).random_raw(max_length)
        numbers[row, column] = (raw >> np.uint64(40)) * 2.0**-24
    return numbers


def _weights(log_probabilities: Tensor, top_k: int, top_p: float) -> Any:
    """Returns unnormalized probabilities `(B, N, V)`: at most 1, and 0 for excluded tokens."""
    highest = ops.max(log_probabilities, axis=-1, keepdims=True)
    weights = ops.exp(log_probabilities - ops.where(highest > IMPOSSIBLE, highest, 0.0))
    largest = weights
    if 0 < top_k < weights.shape[-1]:
        batch, beams, vocabulary_size = ops.shape(weights)
        rows = ops.reshape(weights, (batch * beams, 1, vocabulary_size))
        largest = ops.reshape(top_k_tokens(rows, top_k)[0], (batch, beams, top_k))
        # With `largest[..., -1:]` instead of `ops.min`, XLA would sort all candidates.
        weights = ops.where(weights >= ops.min(largest, axis=-1, keepdims=True), weights, 0.0)
    if top_p < 1:
        weights = ops.where(weights >= _nucleus_border(largest, top_p), weights, 0.0)
    return weights


def _nucleus_border(weights: Tensor, top_p: float) -> Any:
    """Returns the smallest weight in the nucleus, `(B, N, 1)`, with float32 precision.

    `weights` `(B, N, K)` are unnormalized probabilities in [0, 1], in any order. Sorting them
    would be several times slower than bisection.
    """
    target = top_p * ops.sum(weights, axis=-1, keepdims=True)

    def bisect(_: Any, limits: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = limits
        middle = (low + high) / 2
        above = ops.where(weights >= ops.exp(middle), weights, 0.0)
        is_enough = ops.sum(above, axis=-1, keepdims=True) >= target
        return ops.where(is_enough, middle, low), ops.where(is_enough, high, middle)

    limits = ops.full_like(target, SMALLEST_LOG_WEIGHT), ops.zeros_like(target)
    return ops.exp(ops.fori_loop(0, NUCLEUS_BISECTIONS, bisect, limits)[0])


def _draw(weights: Tensor, numbers: Tensor) -> Any:
    """Returns the first tokens, int32 `(B, N)`, whose cumulative probabilities exceed `numbers`.

    Adds up the sums of blocks of `weights` `(B, N, V)`, and then the weights in the block of the
    token. With a single float32 sum, tokens less probable than its rounding error would never be
    chosen.
    """
    batch, beams = ops.shape(numbers)
    vocabulary_size = weights.shape[-1]
    num_blocks = -(-vocabulary_size // BLOCK_SIZE)
    weights = ops.pad(weights, ((0, 0), (0, 0), (0, num_blocks * BLOCK_SIZE - vocabulary_size)))
    blocks = ops.reshape(weights, (batch, beams, num_blocks, BLOCK_SIZE))
    sums = ops.sum(blocks, axis=-1)
    cumulative = ops.cumsum(sums, axis=-1)
    target = numbers * cumulative[..., -1]
    block = _first_above(sums, cumulative, target)
    chosen = ops.take_along_axis(blocks, block[..., None, None], axis=2)[:, :, 0]
    below = take_at(cumulative, block) - take_at(sums, block)
    return block * BLOCK_SIZE + _first_above(chosen, ops.cumsum(chosen, axis=-1), target - below)


def _first_above(weights: Tensor, cumulative: Tensor, target: Tensor) -> Any:
    """Returns the index `(B, N)` of the first weight above 0 where `cumulative` exceeds `target`.

    If rounding errors leave no such weight, returns the index of the last weight above 0.
    """
    size = weights.shape[-1]
    indices = ops.arange(size, dtype="int32")
    is_above = ops.logical_and(weights > 0, cumulative > ops.expand_dims(target, -1))
    ranks = ops.where(weights > 0, indices, -1)
    return ops.cast(ops.argmax(ops.where(is_above, 2 * size - indices, ranks), axis=-1), "int32")
