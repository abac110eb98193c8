"""Beam search with a length penalty over cached keys and values."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.hypothesis_score import (
    LENGTH_PENALTY_FORMS,
    LengthPenaltyForm,
    coverage_score,
    length_divisor,
)
from keras_transformer.decoding.required_words import (
    allocate_beams,
    constrained_candidates,
    num_required_tokens,
)
from keras_transformer.decoding.search import (
    IMPOSSIBLE,
    SearchResult,
    TokenRule,
    apply_rules,
    count_tokens,
    empty_ids,
    limits_of,
    log_normalizer,
    next_log_probabilities,
    run_search,
    write_at,
)
from keras_transformer.decoding.token_rules import forbid_sequences, force_prefix
from keras_transformer.decoding.top_k import block_maxima, take_columns, top_k_tokens

# Taken from the score of a hypothesis for each required token that it lacks.
LACKING = 1000.0


class Sentences(NamedTuple):
    """What a search is asked for, sentence by sentence.

    Attributes:
        source_ids: int32 `(B, S)`.
        limits: int32 `(B,)`, most tokens of its hypotheses.
        prefix_ids: int32 `(B, P)`, or None, as in `beam_search`; so are the others.
        forbidden_ids: int32 `(B, C, W)`, or None.
        required_ids: int32 `(B, C, W)`, or None.
        beam_sizes: int32 `(B,)`, or None.
        length_penalties: float32 `(B,)`, or None.
    """

    source_ids: Any
    limits: Any
    prefix_ids: Any = None
    forbidden_ids: Any = None
    required_ids: Any = None
    beam_sizes: Any = None
    length_penalties: Any = None


class Live(NamedTuple):
    """The N hypotheses of each sentence that may go on.

    Attributes:
        ids: int32 `(B, N, 1 + L)`, bos first, padding where nothing is decoded yet.
        log_probabilities: float32 `(B, N)`, descending; minus infinity = no hypothesis. All are
            minus infinity once the sentence is closed, and nothing can follow from them.
        coverage: float32 `(B, N, S)`, the attention that each source token got from all tokens
            of a hypothesis; zeros `(B, N, 1)` where there is no coverage penalty.
    """

    ids: Any
    log_probabilities: Any
    coverage: Any


class Finished(NamedTuple):
    """The best hypotheses of each sentence that have ended, as many as are asked for (M).

    Attributes:
        ids: int32 `(B, M, 1 + L)`, bos first, padding after the end.
        log_probabilities: float32 `(B, M)`.
        scores: float32 `(B, M)`, descending; minus infinity = no hypothesis.
    """

    ids: Any
    log_probabilities: Any
    scores: Any


class BeamState(NamedTuple):
    """What beam search carries from step to step, beside the model's cache.

    Attributes:
        position: int32 `()`, tokens decoded so far.
        live: The hypotheses that may go on.
        finished: The best hypotheses that have ended.
        num_finished: int32 `(B,)`, how many have ended, also those no longer among the best.
    """

    position: Any
    live: Live
    finished: Finished
    num_finished: Any


class Candidates(NamedTuple):
    """Continuations of the live hypotheses by one token, M of them per sentence.

    Attributes:
        ids: int32 `(B, M, 1 + L)`.
        log_probabilities: float32 `(B, M)`, descending where there are no banks.
        parents: int32 `(B, M)`, the beams that they continue.
        banks: int32 `(B, M)`, how many of the required tokens they have; None where none are.
        missing: int32 `(B, M)`, how many they have not; None where none are required.
    """

    ids: Any
    log_probabilities: Any
    parents: Any
    banks: Any = None
    missing: Any = None


def beam_search(
    model: Any,
    source_ids: Any,
    max_lengths: Any = None,
    prefix_ids: Any = None,
    forbidden_ids: Any = None,
    required_ids: Any = None,
    beam_sizes: Any = None,
    length_penalties: Any = None,
    *,
    max_length: int,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    length_penalty_form: LengthPenaltyForm = "wu",
    coverage_penalty: float = 0.0,
    n_best: int = 1,
    rules: Sequence[TokenRule] = (),
    bos_id: int = 2,
    eos_id: int = 3,
    pad_id: int = 0,
) -> SearchResult:
    """Finds the translations of the highest score by following N of them at a time (§6.1).

    At every step the 2N most probable continuations of a sentence are its candidates. Those among
    the first N that end with eos are finished; the first N of the others go on. A sentence is
    closed as soon as N hypotheses have finished, or none that goes on can still enter the
    `n_best`: log-probabilities only fall, so the score of a live hypothesis is bounded by its
    log-probability now over the largest penalty it could reach. At its maximum length every
    candidate ends, with or without eos, so each sentence has a result. One beam is greedy search.

    The score of a hypothesis is its log-probability divided by `length_divisor`, plus
    `coverage_penalty` times `coverage_score`.

    A function of tensors alone, for any backend; `compile_function` makes it fast. Padding and
    bos are never chosen; unk may be. Candidates of equal score keep the order of the backend's
    `top_k`: for one backend and machine the result is always the same.

    Example:

    >>> result = beam_search(model, source_ids, max_length=60, beam_size=4, n_best=2)
    >>> result.ids[:, 0]                                                        # (B, 60), the best

    Args:
        model: Has `init_cache` and `step`, as `Transformer` documents them.
        source_ids: int tensor `(B, S)`.
        max_lengths: int tensor `(B,)`, most tokens of each sentence's hypotheses, at most
            `max_length`. Defaults to None: `max_length` for all.
        prefix_ids: int tensor `(B, P)`, tokens that each sentence's hypotheses must begin with,
            padded at the end. Defaults to None: none.
        forbidden_ids: int tensor `(B, C, W)`, C sequences of up to W tokens for each sentence,
            padded at the end, that must not appear. Defaults to None: none.
        required_ids: int tensor `(B, C, W)`, the same for sequences that must appear, see
            `required_words`. Of a hypothesis that is cut at its maximum length, 1,000 is taken
            from the score for each token that it lacks. Defaults to None: none.
        beam_sizes: int tensor `(B,)`, beams of each sentence, from 1 to `beam_size`; of a sentence
            that has fewer than `n_best`, the last hypotheses are empty. It finds what a search with
            this `beam_size` would find, not with `required_ids`. Defaults to None: `beam_size`.
        length_penalties: float tensor `(B,)`, the exponent of each sentence, in place of
            `length_penalty`. Defaults to None.
        max_length: Most tokens L of any hypothesis, eos included. `max_length`, `beam_size` and
            `n_best` may be 0-d int tensors where a loop's shapes may be unknown: in a TensorFlow
            graph without XLA, with a model whose cache grows.
        beam_size: Beams N per sentence. Defaults to 4.
        length_penalty: Exponent of the length penalty, at least 0. The larger, the longer the
            translations; 0 compares log-probabilities. Defaults to 0.6.
        length_penalty_form: `"wu"` or `"power"`, see `length_divisor`. Defaults to `"wu"`.
        coverage_penalty: Weight of the coverage, at least 0. The larger, the less of the source is
            left out. Above 0 it needs a model whose `step` returns attention weights. Defaults to
            0.
        n_best: Hypotheses to return per sentence, from 1 to `beam_size`. Defaults to 1.
        rules: Token rules, applied in this order, such as `NoRepeatNgrams`. A hypothesis that they
            leave no token dies. Defaults to none.
        bos_id: Id of the beginning of a sentence. Defaults to 2.
        eos_id: Id of the end of a sentence. Defaults to 3.
        pad_id: Id of padding. Defaults to 0.

    Returns:
        A `SearchResult` with `n_best` hypotheses per sentence. Where fewer exist (a tiny
        vocabulary, strict rules), the last ones are empty and score minus infinity.

    Raises:
        ValueError: If an option is out of its range.

    Source: Vaswani et al. 2017, §6.1; Wu et al. 2016, eq. 14, for the penalties.
    """
    search = BeamSearch(
        beam_size=beam_size,
        length_penalty=length_penalty,
        length_penalty_form=length_penalty_form,
        coverage_penalty=coverage_penalty,
        n_best=n_best,
        rules=tuple(rules),
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
    )
    sentences = search.sentences(
        source_ids,
        max_lengths,
        prefix_ids,
        forbidden_ids,
        required_ids,
        beam_sizes,
        length_penalties,
        max_length=max_length,
    )
    end = run_search(
        model,
        lambda length: model.init_cache(sentences.source_ids, length, beam_size),
        functools.partial(search.advance, model, sentences),
        lambda state: ops.any(search.is_open(state)),
        search.start(sentences, max_length),
        max_length,
    )
    return search.result(sentences, end)


@dataclass(frozen=True)
class BeamSearch:
    """The options of `beam_search`, and the parts that it is made of.

    Raises:
        ValueError: If an option is out of its range.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    length_penalty_form: LengthPenaltyForm = "wu"
    coverage_penalty: float = 0.0
    n_best: int = 1
    rules: tuple[TokenRule, ...] = ()
    bos_id: int = 2
    eos_id: int = 3
    pad_id: int = 0

    def __post_init__(self) -> None:
        if not ops.is_tensor(self.beam_size) and not 1 <= self.n_best <= self.beam_size:
            raise ValueError(
                "`n_best` must be at least 1 and at most `beam_size`. "
                f"Received: n_best={self.n_best}, beam_size={self.beam_size}"
            )
        if self.length_penalty < 0:
            raise ValueError(
                "`length_penalty` must not be negative. "
                f"Received: length_penalty={self.length_penalty}"
            )
        if self.length_penalty_form not in LENGTH_PENALTY_FORMS:
            raise ValueError(
                f"`length_penalty_form` must be one of {list(LENGTH_PENALTY_FORMS)}. "
                f"Received: length_penalty_form={self.length_penalty_form!r}"
            )
        if self.coverage_penalty < 0:
            raise ValueError(
                "`coverage_penalty` must not be negative. "
                f"Received: coverage_penalty={self.coverage_penalty}"
            )

    def sentences(
        self,
        source_ids: Any,
        max_lengths: Any = None,
        prefix_ids: Any = None,
        forbidden_ids: Any = None,
        required_ids: Any = None,
        beam_sizes: Any = None,
        length_penalties: Any = None,
        *,
        max_length: int,
    ) -> Sentences:
        """Returns what is asked for, of the arguments of `beam_search`."""
        source_ids = ops.convert_to_tensor(source_ids, dtype="int32")
        batch = ops.shape(source_ids)[0]
        return Sentences(
            source_ids,
            limits_of(max_lengths, batch, max_length),
            prefix_ids,
            forbidden_ids,
            required_ids,
            None if beam_sizes is None else ops.cast(beam_sizes, "int32"),
            None if length_penalties is None else ops.cast(length_penalties, "float32"),
        )

    def start(self, sentences: Sentences, max_length: int) -> BeamState:
        """Returns the state before the first token, with room for `max_length` of them."""
        batch, source_length = ops.shape(sentences.source_ids)
        live, best = (batch, self.beam_size), (batch, self.n_best)
        empty = functools.partial(empty_ids, bos_id=self.bos_id, pad_id=self.pad_id)
        coverage = (*live, source_length if self.coverage_penalty else 1)
        return BeamState(
            position=ops.convert_to_tensor(0, dtype="int32"),
            live=Live(
                ids=empty((*live, 1 + max_length)),
                log_probabilities=_first_beam_only(*live),
                coverage=ops.zeros(coverage),
            ),
            finished=Finished(
                ids=empty((*best, 1 + max_length)),
                log_probabilities=ops.full(best, IMPOSSIBLE, "float32"),
                scores=ops.full(best, IMPOSSIBLE, "float32"),
            ),
            num_finished=ops.zeros((batch,), "int32"),
        )

    def is_open(self, state: BeamState) -> Any:
        """Returns for which sentences there is anything left to do, bool `(B,)`."""
        return ops.any(state.live.log_probabilities > IMPOSSIBLE, axis=-1)

    def advance(
        self, model: Any, sentences: Sentences, state: BeamState, cache: Any
    ) -> tuple[BeamState, Any]:
        """Decodes one token: returns the state and the model's cache after it."""
        live, position = state.live, state.position
        last = ops.take(live.ids, position, axis=-1)
        options = {"return_attention_weights": True} if self.coverage_penalty else {}
        logits, cache, *attention = model.step(last, cache, position, **options)
        bonus = ops.zeros_like(live.log_probabilities)
        if self.coverage_penalty:
            live = live._replace(coverage=live.coverage + attention[0])
            padding_mask = sentences.source_ids != self.pad_id
            bonus = self.coverage_penalty * coverage_score(live.coverage, padding_mask)
        candidates = self._candidates(live, logits, position, sentences)
        state = state._replace(live=live)
        state, beams = _select(
            state, candidates, bonus, sentences, self._divisor(sentences), self.eos_id
        )
        return state, cache.reorder(beams)

    def result(self, sentences: Sentences, state: BeamState) -> SearchResult:
        """Returns what was found."""
        finished, beam_sizes = state.finished, sentences.beam_sizes
        scores = _first(finished.scores, beam_sizes)
        exists = scores > IMPOSSIBLE
        ids = ops.where(exists[:, :, None], finished.ids[:, :, 1:], self.pad_id)
        return SearchResult(
            ids=ids,
            scores=scores,
            log_probabilities=_first(finished.log_probabilities, beam_sizes),
            lengths=count_tokens(ids, self.pad_id),
            steps=state.position,
        )

    def _divisor(self, sentences: Sentences) -> Callable[[Any], Any]:
        own = sentences.length_penalties
        return functools.partial(
            length_divisor,
            length_penalty=self.length_penalty if own is None else own[:, None],
            form=self.length_penalty_form,
        )

    def _candidates(
        self, live: Live, logits: Any, position: Any, sentences: Sentences
    ) -> Candidates:
        rules = [*self.rules, *_rules_of(sentences, self.pad_id)]
        if not rules and sentences.required_ids is None:
            # What all tokens of a hypothesis have in common need not be added to each of them.
            maxima = block_maxima(logits)
            normalizer = log_normalizer(logits, ops.max(maxima, axis=-1, keepdims=True))
            return _most_probable(
                live,
                live.log_probabilities - normalizer,
                logits,
                position + 1,
                excluded=(self.pad_id, self.bos_id),
                maxima=maxima,
            )
        tokens = next_log_probabilities(logits, self.pad_id, self.bos_id)
        tokens = apply_rules(tokens, live.ids, position, rules)
        if sentences.required_ids is None:
            return _most_probable(live, live.log_probabilities, tokens, position + 1)
        return _constrained(
            live, tokens, position, sentences.required_ids, self.eos_id, self.pad_id
        )


def _rules_of(sentences: Sentences, pad_id: int) -> list[TokenRule]:
    """What the sentences demand, as token rules."""
    demands = ((force_prefix, sentences.prefix_ids), (forbid_sequences, sentences.forbidden_ids))
    return [
        lambda *state, rule=rule, demanded=demanded: rule(*state, demanded, pad_id)
        for rule, demanded in demands
        if demanded is not None
    ]


def _first_beam_only(batch: Any, beam_size: int) -> Any:
    """One empty hypothesis per sentence; as many as there are beams would only repeat it."""
    beams = ops.arange(beam_size, dtype="int32")
    log_probabilities = ops.where(beams == 0, 0.0, IMPOSSIBLE)
    return ops.zeros((batch, 1), "float32") + ops.cast(log_probabilities, "float32")


def _select(
    state: BeamState,
    candidates: Candidates,
    bonus: Any,
    sentences: Sentences,
    divisor: Callable[[Any], Any],
    eos_id: int,
) -> tuple[BeamState, Any]:
    """One step of the search: the next state, and the beams `(B, N)` that its live ones continue.

    Args:
        state: The hypotheses of `state.position` tokens.
        candidates: Their continuations.
        bonus: float32 `(B, N)`, at most 0, added to the scores of what ends here.
        sentences: How many tokens and beams each may have.
        divisor: Length penalty of a number of tokens.
        eos_id: Id of the end of a sentence.
    """
    limits, beam_sizes = sentences.limits, sentences.beam_sizes
    beam_size = ops.shape(state.live.log_probabilities)[1]
    n_best = ops.shape(state.finished.scores)[1]
    own_size = beam_size if beam_sizes is None else beam_sizes[:, None]
    position = state.position + 1
    is_eos = ops.take(candidates.ids, position, axis=-1) == eos_id
    ends = ops.logical_or(is_eos, position >= limits[:, None])
    log_probabilities = ops.where(ends, IMPOSSIBLE, candidates.log_probabilities)
    log_probabilities, chosen = _choose(log_probabilities, candidates.banks, beam_size)
    log_probabilities = _first(log_probabilities, beam_sizes)
    beams = take_columns(candidates.parents, chosen)
    ended = _end(candidates, ends, own_size, divisor(position), bonus)
    finished = _best_of(state.finished, ended, n_best)
    newly_finished = ops.sum(ops.cast(ended.scores > IMPOSSIBLE, "int32"), axis=-1)
    num_finished = state.num_finished + newly_finished
    bound = log_probabilities[:, 0] / divisor(limits[:, None])[:, 0]
    is_open = ops.logical_and(
        bound > finished.scores[:, -1],
        num_finished < (beam_size if beam_sizes is None else beam_sizes),
    )
    live = Live(
        ids=take_columns(candidates.ids, chosen),
        log_probabilities=ops.where(is_open[:, None], log_probabilities, IMPOSSIBLE),
        coverage=take_columns(state.live.coverage, beams),
    )
    return BeamState(position, live, finished, num_finished), beams


def _most_probable(
    live: Live, totals: Any, next_tokens: Any, position: Any, **of_tokens: Any
) -> Candidates:
    """The 2N likeliest continuations, now of `position` tokens, by `totals + next_tokens`."""
    count = 2 * ops.shape(next_tokens)[1]
    log_probabilities, parents, tokens = top_k_tokens(next_tokens, count, totals, **of_tokens)
    ids = write_at(take_columns(live.ids, parents), tokens, position)
    return Candidates(ids, log_probabilities, parents)


def _constrained(
    live: Live, next_tokens: Any, position: Any, required_ids: Any, eos_id: int, pad_id: int
) -> Candidates:
    """The most probable continuations, and those that have more of what is required."""
    found = constrained_candidates(
        live.ids,
        live.log_probabilities,
        next_tokens,
        position,
        required_ids,
        eos_id=eos_id,
        pad_id=pad_id,
    )
    missing = num_required_tokens(required_ids, pad_id)[:, None] - found.banks
    return Candidates(*found, missing)


def _choose(log_probabilities: Any, banks: Any, beam_size: int) -> tuple[Any, Any]:
    """The N candidates that go on, descending: their log-probabilities, and which they are."""
    if banks is None:
        return ops.top_k(log_probabilities, beam_size)
    chosen = allocate_beams(log_probabilities, banks, beam_size)
    return take_columns(log_probabilities, chosen), chosen


def _end(candidates: Candidates, ends: Any, beam_size: Any, divisor: Any, bonus: Any) -> Finished:
    """The candidates that end, of the first N where nothing is required; others score -inf.

    Cutting off the others would be natural, but XLA then sorts where it would pick the largest.
    """
    if candidates.banks is None:
        columns = ops.arange(ops.shape(ends)[1], dtype="int32")
        ends = ops.logical_and(ends, columns < beam_size)
    log_probabilities = ops.where(ends, candidates.log_probabilities, IMPOSSIBLE)
    scores = log_probabilities / divisor + take_columns(bonus, candidates.parents)
    if candidates.missing is not None:
        scores = scores - LACKING * ops.cast(candidates.missing, "float32")
    return Finished(candidates.ids, log_probabilities, scores)


def _best_of(finished: Finished, ended: Finished, n_best: int) -> Finished:
    both = [ops.concatenate(pair, axis=1) for pair in zip(finished, ended, strict=True)]
    scores, chosen = ops.top_k(both[-1], n_best)
    return Finished(take_columns(both[0], chosen), take_columns(both[1], chosen), scores)


def _first(log_probabilities: Any, beam_sizes: Any) -> Any:
    """Those of the first beams of each sentence; minus infinity for the others."""
    if beam_sizes is None:
        return log_probabilities
    columns = ops.arange(ops.shape(log_probabilities)[1], dtype="int32")
    return ops.where(columns < beam_sizes[:, None], log_probabilities, IMPOSSIBLE)
