"""Drawing translations at random from the model's distribution."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.cache import Cache
from keras_transformer.decoding.options import SamplingOptions
from keras_transformer.decoding.steps import (
    IMPOSSIBLE,
    Request,
    SearchResult,
    TokenRule,
    apply_rules,
    count_tokens,
    empty_ids,
    next_log_probabilities,
    widen_ids,
    write_at,
)
from keras_transformer.decoding.token_rules import rules_of_request
from keras_transformer.decoding.top_k import top_k_tokens

# Tokens are drawn in two stages, first one of the blocks of this many tokens, then one in it.
BLOCK_SIZE = 256
# Halvings of the range of log-weights from -87 to 0, until it is less than a float32 can resolve.
NUCLEUS_HALVINGS = 30
SMALLEST_LOG_WEIGHT = -87.0


class SampleState(NamedTuple):
    """What sampling carries from step to step, beside the model's cache.

    Attributes:
        position: int32 `()`, tokens drawn so far.
        ids: int32 `(B, N, 1 + L)`, bos first, padding where nothing is drawn yet.
        log_probabilities: float32 `(B, N)` of the tokens drawn so far; minus infinity = the sample
            could not go on, as the rules left it no token.
        is_open: bool `(B, N)`, False once the sample has ended.
    """

    position: Any
    ids: Any
    log_probabilities: Any
    is_open: Any


@dataclass(frozen=True)
class Sampling:
    """Draws N independent translations of each sentence, one token after another.

    The log-probabilities of the model go through the rules and are divided by the temperature. Of
    all tokens the `top_k` most probable are kept, then the nucleus of `top_p`: the fewest most
    probable tokens whose probabilities add up to `top_p`. Tokens that tie with the last one kept
    are kept too. The rest is renormalized. The token is where its cumulative distribution, in the
    order of the ids, passes the random number. So the same numbers give the same samples on every
    backend and in every batch, except where rounding moves a border between two tokens past a
    number: a chance of about 1e-7 for each token that shares in the probability.

    The nucleus is exact to float32 without sorting the vocabulary, which would take several times
    as long: bisection finds the smallest probability in it.

    Hypotheses come in the order of their random numbers, not of their scores. A score is the
    log-probability of the sample under the model, whatever temperature, `top_k`, `top_p` and rules
    it was drawn with. A sample that the rules leave no token is empty and scores minus infinity.

    Args:
        options: The search.
        rules: Token rules, applied in this order.
        bos_id: Id of the beginning of a sentence.
        eos_id: Id of the end of a sentence.
        pad_id: Id of padding.

    Source: Holtzman et al. 2020, for the nucleus; Fan et al. 2018, §5.2, for `top_k`.
    """

    options: SamplingOptions
    rules: tuple[TokenRule, ...]
    bos_id: int
    eos_id: int
    pad_id: int

    @property
    def num_beams(self) -> int:
        return self.options.num_samples

    @property
    def num_results(self) -> int:
        return self.options.num_samples

    def check(self, request: Request, max_length: int) -> None:
        """Raises a ValueError if the request has something that sampling can't do."""
        for name in ("required_ids", "beam_sizes", "length_penalties"):
            if getattr(request, name) is not None:
                raise ValueError(f"`{name}` is for beam search; sampling has no use for it.")
        numbers = request.random_numbers
        if numbers is None or tuple(numbers.shape[1:]) != (self.num_beams, max_length):
            raise ValueError(
                "`random_numbers` must have the shape (B, num_samples, max_length). Received: "
                f"random_numbers.shape={None if numbers is None else tuple(numbers.shape)}, "
                f"num_samples={self.num_beams}, max_length={max_length}"
            )

    def start(self, request: Request, max_length: int) -> SampleState:
        """Returns the state before the first token, with room for `max_length` of them."""
        shape = (ops.shape(request.source_ids)[0], self.num_beams)
        return SampleState(
            position=ops.convert_to_tensor(0, dtype="int32"),
            ids=empty_ids((*shape, 1 + max_length), self.bos_id, self.pad_id),
            log_probabilities=ops.zeros(shape, "float32"),
            is_open=ops.ones(shape, "bool"),
        )

    def widen(self, state: SampleState, max_length: int) -> SampleState:
        """Returns the state with room for `max_length` tokens."""
        return state._replace(ids=widen_ids(state.ids, 1 + max_length, self.pad_id))

    def is_open(self, state: SampleState) -> Any:
        """Returns which sentences have samples that are not finished, bool `(B,)`."""
        return ops.any(state.is_open, axis=-1)

    def advance(
        self, model: Any, request: Request, state: SampleState, cache: Cache
    ) -> tuple[SampleState, Cache]:
        """Decodes one token: returns the state and the model's cache after it."""
        options, rules = self.options, (*self.rules, *rules_of_request(request, self.pad_id))
        last = ops.take(state.ids, state.position, axis=-1)
        logits, cache = model.step(last, cache, state.position)
        of_model = next_log_probabilities(logits, self.pad_id, self.bos_id)
        allowed = apply_rules(of_model, state.ids, state.position, rules)
        weights = _weights(allowed / options.temperature, options.top_k, options.top_p)
        tokens = _draw(weights, ops.take(request.random_numbers, state.position, axis=-1))
        gains = ops.where(_take_last(weights, tokens) > 0, _take_last(of_model, tokens), IMPOSSIBLE)
        position = state.position + 1
        log_probabilities = state.log_probabilities + ops.where(state.is_open, gains, 0.0)
        ends = ops.logical_or(tokens == self.eos_id, position >= request.max_lengths[:, None])
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
        """Returns what is drawn so far."""
        exists = state.log_probabilities > IMPOSSIBLE
        ids = ops.where(exists[:, :, None], state.ids[:, :, 1:], self.pad_id)
        return SearchResult(
            ids=ids,
            scores=state.log_probabilities,
            log_probabilities=state.log_probabilities,
            lengths=count_tokens(ids, self.pad_id),
            steps=state.position,
        )


def random_numbers(
    seed: int, indices: Sequence[int], num_samples: int, max_length: int
) -> np.ndarray:
    """Draws what `sample` chooses tokens by: a number for each token of each sample.

    The numbers of a sample depend on the seed, the sentence's index and the sample's alone: more
    samples or a larger `max_length` leave those that were there, and it does not matter which
    sentences are drawn together. They come from the raw stream of Philox, which NumPy keeps the
    same from release to release.

    Args:
        seed: Integer from 0 to 2**64 - 1.
        indices: The index of each sentence in the whole text, integers from 0 to 2**64 - 1.
        num_samples: Samples N per sentence.
        max_length: Most tokens L of a sample.

    Returns:
        float32 array `(B, N, L)` of multiples of 2**-24 in [0, 1).

    Source: Salmon et al. 2011, for Philox.
    """
    numbers = np.empty((len(indices), num_samples, max_length), "float32")
    for row, index in enumerate(indices):
        for column in range(num_samples):
            key = np.array([seed, index], "uint64")
            raw = np.random.Philox(key=key, counter=[0, 0, 0, column]).random_raw(max_length)
            numbers[row, column] = (raw >> np.uint64(40)) * 2.0**-24
    return numbers


def _weights(log_probabilities: Any, top_k: int, top_p: float) -> Any:
    """Unnormalized probabilities `(B, N, V)`; 0 = not to be drawn, 1 = the most probable token.

    All are 0 where every log-probability is minus infinity.
    """
    highest = ops.max(log_probabilities, axis=-1, keepdims=True)
    weights = ops.exp(log_probabilities - ops.where(highest > IMPOSSIBLE, highest, 0.0))
    largest = weights
    if 0 < top_k < weights.shape[-1]:
        batch, beams, vocabulary_size = ops.shape(weights)
        rows = ops.reshape(weights, (batch * beams, 1, vocabulary_size))
        largest = ops.reshape(top_k_tokens(rows, top_k)[0], (batch, beams, top_k))
        # Not `largest[..., -1:]`: XLA would then sort all candidates.
        weights = ops.where(weights >= ops.min(largest, axis=-1, keepdims=True), weights, 0.0)
    if top_p < 1:
        weights = ops.where(weights >= _nucleus_border(largest, top_p), weights, 0.0)
    return weights


def _nucleus_border(weights: Any, top_p: float) -> Any:
    """The smallest weight `(B, N, 1)` in the nucleus, or so little less that none lies between.

    Args:
        weights: float32 `(B, N, K)` in [0, 1], in any order.
        top_p: Share of their sum that the nucleus has.
    """
    wanted = top_p * ops.sum(weights, axis=-1, keepdims=True)

    def halve(count: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
        middle = (low + high) / 2
        above = ops.where(weights >= ops.exp(middle), weights, 0.0)
        is_enough = ops.sum(above, axis=-1, keepdims=True) >= wanted
        low, high = ops.where(is_enough, middle, low), ops.where(is_enough, high, middle)
        return count + 1, low, high

    start = (
        ops.convert_to_tensor(0, dtype="int32"),
        ops.full_like(wanted, SMALLEST_LOG_WEIGHT),
        ops.zeros_like(wanted),
    )
    _, border, _ = ops.while_loop(lambda count, low, high: count < NUCLEUS_HALVINGS, halve, start)
    return ops.exp(border)


def _draw(weights: Any, numbers: Any) -> Any:
    """The tokens, int32 `(B, N)`, where the cumulative `weights` `(B, N, V)` pass the `numbers`.

    One running float32 sum over the whole vocabulary would lose the tokens that are less probable
    than its rounding errors; sums over blocks, then over the tokens of one, round far less.
    """
    batch, beams = ops.shape(numbers)
    vocabulary_size = weights.shape[-1]
    num_blocks = -(-vocabulary_size // BLOCK_SIZE)
    weights = ops.pad(weights, ((0, 0), (0, 0), (0, num_blocks * BLOCK_SIZE - vocabulary_size)))
    blocks = ops.reshape(weights, (-1, BLOCK_SIZE))
    sums = ops.reshape(ops.sum(blocks, axis=-1), (batch, beams, num_blocks))
    cumulative = ops.cumsum(sums, axis=-1)
    wanted = numbers * cumulative[..., -1]
    block = _first_above(sums, cumulative, wanted)
    rows = ops.reshape(ops.arange(batch * beams, dtype="int32"), (batch, beams))
    chosen = ops.take(blocks, rows * num_blocks + block, axis=0)
    below = _take_last(cumulative, block) - _take_last(sums, block)
    return block * BLOCK_SIZE + _first_above(chosen, ops.cumsum(chosen, axis=-1), wanted - below)


def _first_above(weights: Any, cumulative: Any, wanted: Any) -> Any:
    """Index `(B, N)` of the first weight that is not 0 and whose cumulative sum is above `wanted`.

    Where rounding leaves none, the last weight that is not 0. A cumulative sum that is computed
    in parallel need not even ascend, so that a weight of 0 must be ruled out by itself.
    """
    size = weights.shape[-1]
    indices = ops.arange(size, dtype="int32")
    is_above = ops.logical_and(weights > 0, cumulative > ops.expand_dims(wanted, -1))
    ranks = ops.where(weights > 0, indices, -1)
    return ops.cast(ops.argmax(ops.where(is_above, 2 * size - indices, ranks), axis=-1), "int32")


def _take_last(x: Any, indices: Any) -> Any:
    """Takes from each row of `x` `(B, N, K)` the element at `indices` `(B, N)`."""
    return ops.squeeze(ops.take_along_axis(x, ops.expand_dims(indices, -1), axis=-1), axis=-1)
