"""Beam search with a length penalty and a cache of keys and values."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer._backend.types import Mask, Tensor
from keras_transformer.decoding.next_tokens import (
    apply_rules,
    best_token,
    block_maxima,
    log_normalizer,
    next_log_probabilities,
    tokens_without,
    top_k_tokens,
    write_at,
)
from keras_transformer.decoding.options import IMPOSSIBLE, length_penalty_base
from keras_transformer.decoding.request import Request, SearchResult, SearchStrategy
from keras_transformer.decoding.token_rules import (
    Candidates,
    allocate_beams,
    constrained_candidates,
    rules_of_request,
)
from keras_transformer.layers.attention.cache import Cache, take_columns
from keras_transformer.models.protocol import Searchable

# Subtracted from the score of a hypothesis for each required token that is missing.
MISSING_TOKEN_PENALTY = 1000.0
# Lower limit for the attention to a source token, so that its logarithm is finite.
MIN_COVERAGE = 1e-6


class Live(NamedTuple):
    """The unfinished hypotheses, N per sentence."""

    ids: Any  # int32 `(B, N, 1 + L)`, bos first, padding where nothing is decoded yet
    # float32 `(B, N)`, descending; minus infinity = no hypothesis, or the sentence is finished
    log_probabilities: Any
    # float32 `(B, N, S)`, total attention to each source token; `(B, N, 1)` if not needed
    coverage: Any


class Finished(NamedTuple):
    """The M best finished hypotheses of each sentence."""

    ids: Any  # int32 `(B, M, 1 + L)`, bos first, padding after the end
    log_probabilities: Any  # float32 `(B, M)`
    scores: Any  # float32 `(B, M)`, descending; minus infinity = no hypothesis


class BeamState(NamedTuple):
    """The state of beam search between two steps, without the model's cache."""

    position: Any  # int32 `()`, number of tokens decoded so far
    live: Live
    finished: Finished
    num_finished: Any  # int32 `(B, G)`, number of finished hypotheses of each of G beam groups


class BeamSearch(SearchStrategy):
    """Finds the translations with the best scores by beam search with N beams (§6.1).

    The candidates of a step are the 2N most probable continuations of the live (not finished)
    hypotheses. If one of the N best candidates ends with eos, this candidate is finished. The N
    best candidates without eos become the next live hypotheses. The search of a sentence ends when
    N hypotheses are finished, or when no live hypothesis can become one of the `n_best` results: a
    further token never raises the log-probability, so the final score is at most the present
    log-probability divided by the length penalty of the maximum length. At the maximum length, all
    candidates are finished, even without eos. So each sentence has a result. The score of a
    hypothesis is its log-probability divided by the length penalty, plus `coverage_penalty` times
    the coverage score. The backend's `top_k` orders candidates with equal scores.

    With several beam groups, each group is searched separately, and the groups choose the tokens of
    a step one after another. `num_beams` and `num_results` may be 0-d int tensors.

    Source: Vaswani et al. 2017, §6.1; Wu et al. 2016, eq. 14, for the penalties; Vijayakumar et al.
        2016, algorithm 1, for groups.
    """

    needs = "no `random_numbers`, and no `beam_sizes` with `required_ids` or `num_beam_groups`"

    def supports(self, request: Request, max_length: int | Tensor) -> bool:
        """Returns whether the request has what beam search `needs`."""
        shares_beams = request.required_ids is not None or self.options.num_beam_groups > 1
        has_sizes = request.beam_sizes is not None
        return request.random_numbers is None and not (shares_beams and has_sizes)

    def start(self, request: Request, max_length: int | Tensor) -> BeamState:
        """Returns the state before the first token, with room for `max_length` tokens."""
        batch, source_length = ops.shape(request.source_ids)[:2]
        groups = self.options.num_beam_groups
        live = (batch, self.num_beams)
        best = live if groups > 1 else (batch, self.num_results)
        is_first = ops.arange(self.num_beams, dtype="int32") % (self.num_beams // groups) == 0
        first = ops.cast(ops.where(is_first, 0.0, IMPOSSIBLE), "float32")  # first of each group
        totals = ops.zeros((batch, 1), "float32") + first
        width = source_length if self.options.coverage_penalty else 1
        coverage, none = ops.zeros((*live, width), "float32"), ops.full(best, IMPOSSIBLE, "float32")
        return BeamState(
            position=ops.convert_to_tensor(0, dtype="int32"),
            live=Live(self.empty_ids(live, max_length), totals, coverage),
            finished=Finished(self.empty_ids(best, max_length), none, none),
            num_finished=ops.zeros((batch, groups), "int32"),
        )

    def widen(self, state: BeamState, max_length: int) -> BeamState:
        """Returns the state with room for `max_length` tokens."""
        live, finished = state.live, state.finished
        return state._replace(
            live=live._replace(ids=self.widen_ids(live.ids, max_length)),
            finished=finished._replace(ids=self.widen_ids(finished.ids, max_length)),
        )

    def is_open(self, state: BeamState) -> Any:
        """Returns a bool mask `(B,)`, True for sentences whose search is not finished."""
        return ops.any(state.live.log_probabilities > IMPOSSIBLE, axis=-1)

    def advance(
        self, model: Searchable, request: Request, state: BeamState, cache: Cache
    ) -> tuple[BeamState, Cache]:
        """Decodes one token per hypothesis, and returns the new state and the model's new cache."""
        live = state.live
        last = ops.take(live.ids, state.position, axis=-1)
        arguments = {"return_attention_weights": True} if self.options.coverage_penalty else {}
        logits, cache, *attention = model.step(last, cache, state.position, **arguments)
        logits = ops.convert_to_tensor(logits)  # A model that is not compiled may return NumPy.
        if self.options.coverage_penalty:
            live = live._replace(coverage=ops.add(live.coverage, attention[0]))
        state, beams = self._select_groups(state._replace(live=live), logits, request)
        return state, cache.reorder(beams)

    def _select_groups(
        self, state: BeamState, logits: Tensor, request: Request
    ) -> tuple[BeamState, Any]:
        """Calls `_candidates` and `_select` for each group of beams, and joins the results."""
        groups, position = self.options.num_beam_groups, state.position
        if groups == 1:
            candidates = self._candidates(state.live, logits, position, request)
            return self._select(state, candidates, request)
        size, parts, beams = self.num_beams // groups, [], []
        penalties = ops.zeros_like(logits[:, :1])
        for group in range(groups):
            begin, end = group * size, (group + 1) * size
            own = Live(*(x[:, begin:end] for x in state.live))
            candidates = self._candidates(own, logits[:, begin:end], position, request, penalties)
            finished = Finished(*(x[:, begin:end] for x in state.finished))
            part = BeamState(position, own, finished, state.num_finished[:, group : group + 1])
            part, parents = self._select(part, candidates, request)
            counts = self._count_chosen(candidates, position + 1, size, ops.shape(logits)[-1])
            penalties = penalties + self.options.diversity_penalty * counts
            parts.append(part._replace(position=position[None, None]))
            beams.append(parents + begin)
        joined = keras.tree.map_structure(lambda *x: ops.concatenate(x, axis=1), *parts)
        return joined._replace(position=position + 1), ops.concatenate(beams, axis=1)

    def _count_chosen(
        self, candidates: Candidates, position: Tensor, size: int, vocabulary_size: int
    ) -> Any:
        """Counts each token in the `size` best candidates without eos, float32 `(B, 1, V)`."""
        tokens = ops.take(candidates.ids, position, axis=-1)
        going_on = ops.where(tokens == self.eos_id, IMPOSSIBLE, candidates.log_probabilities)
        going_on, chosen = _top_candidates(going_on, candidates.banks, size)
        is_chosen = ops.cast(going_on > IMPOSSIBLE, "float32")[..., None]
        one_hot = ops.one_hot(take_columns(tokens, chosen), vocabulary_size, dtype="float32")
        return ops.sum(is_chosen * one_hot, axis=1, keepdims=True)

    def result(self, request: Request, state: BeamState) -> SearchResult:
        """Returns the hypotheses that are finished so far."""
        ids, *values = state.finished
        if self.options.num_beam_groups > 1:
            ids, *values = _best_finished(state.finished, self.num_results)
        log_probabilities, scores = (_mask_unused_beams(x, request.beam_sizes) for x in values)
        return self.found(ids, scores, log_probabilities, state.position)

    def _divisor(self, request: Request, length: Tensor) -> Any:
        """Returns the length penalty of hypotheses with `length` tokens (eos included), float32."""
        own = request.length_penalties
        exponent = self.options.length_penalty if own is None else own[:, None]
        base = length_penalty_base(ops.cast(length, "float32"), self.options.length_penalty_form)
        return ops.power(base, ops.cast(exponent, "float32"))

    def _candidates(
        self, live: Live, logits: Tensor, position: Tensor, request: Request, penalties: Any = None
    ) -> Candidates:
        """Returns the best continuations of the live hypotheses by one token.

        `penalties` `(B, 1, V)` are subtracted from the log-probabilities of the next tokens.
        """
        rules = (*self.rules, *rules_of_request(request, self.pad_id))
        if not rules and request.required_ids is None and penalties is None:
            # Normalizing the totals instead of the logits saves a pass over all tokens.
            maxima, tokens = block_maxima(logits), logits
            excluded: tuple[int, ...] = (self.pad_id, self.bos_id)
            normalizer = log_normalizer(logits, ops.max(maxima, axis=-1, keepdims=True))
            totals = live.log_probabilities - normalizer
        else:
            maxima, excluded, totals = None, (), live.log_probabilities
            tokens = next_log_probabilities(logits, self.pad_id, self.bos_id)
            tokens = tokens if penalties is None else tokens - penalties
            tokens = apply_rules(tokens, live.ids, position, rules)
        if request.required_ids is not None:
            ids = self.eos_id, self.pad_id
            return constrained_candidates(live, tokens, position, request.required_ids, *ids)
        if logits.shape[1] == 1 and penalties is None:
            log_probabilities, chosen = best_token(tokens_without(excluded, tokens))
            log_probabilities, parents = log_probabilities + totals, ops.zeros_like(chosen)
        else:
            log_probabilities, parents, chosen = top_k_tokens(
                tokens, 2 * ops.shape(tokens)[1], totals, excluded, maxima
            )
        ids = write_at(take_columns(live.ids, parents), chosen, position + 1)
        return Candidates(ids, log_probabilities, parents)

    def _select_single(
        self, state: BeamState, candidates: Candidates, request: Request
    ) -> tuple[BeamState, Any]:
        """Does the same as `_select` for one beam, whose first finished hypothesis is final.

        One sentence takes 3 to 5 % less time on TensorFlow and PyTorch than with `_select`.
        """
        totals, before = candidates.log_probabilities, state.finished
        ends = self._ends(candidates, state.position + 1, request)
        ends = ops.logical_and(ends, totals > IMPOSSIBLE)
        finished = Finished(
            ops.where(ends[..., None], candidates.ids, before.ids),
            ops.where(ends, totals, before.log_probabilities),
            ops.where(ends, self._scores(state, candidates, totals, request), before.scores),
        )
        live = Live(candidates.ids, ops.where(ends, IMPOSSIBLE, totals), state.live.coverage)
        state = state._replace(position=state.position + 1, live=live, finished=finished)
        return state, candidates.parents

    def _select(
        self, state: BeamState, candidates: Candidates, request: Request
    ) -> tuple[BeamState, Any]:
        """Chooses the next live hypotheses and the finished hypotheses from the candidates.

        Returns the next state, and the beam that each live hypothesis continues, int32 `(B, N)`.
        """
        if candidates.parents.shape[1] == 1:
            return self._select_single(state, candidates, request)
        limits, beam_sizes = request.max_lengths, request.beam_sizes
        beams, n_best = (ops.shape(x)[1] for x in (state.live.ids, state.finished.ids))
        position = state.position + 1
        ends = self._ends(candidates, position, request)
        log_probabilities = ops.where(ends, IMPOSSIBLE, candidates.log_probabilities)
        log_probabilities, chosen = _top_candidates(log_probabilities, candidates.banks, beams)
        log_probabilities = _mask_unused_beams(log_probabilities, beam_sizes)
        parents = take_columns(candidates.parents, chosen)
        ended = self._ended(state, candidates, ends, request)
        both = zip(state.finished, ended, strict=True)
        finished = _best_finished(Finished(*(ops.concatenate(x, axis=1) for x in both)), n_best)
        newly_finished = ops.sum(ops.cast(ended.scores > IMPOSSIBLE, "int32"), axis=-1)
        num_finished = state.num_finished + newly_finished[:, None]
        bound = log_probabilities[:, 0] / self._divisor(request, limits[:, None])[:, 0]
        has_room = num_finished[:, 0] < (beams if beam_sizes is None else beam_sizes)
        is_open = ops.logical_and(bound > finished.scores[:, -1], has_room)
        log_probabilities = ops.where(is_open[:, None], log_probabilities, IMPOSSIBLE)
        ids, coverage = take_columns(candidates.ids, chosen), state.live.coverage
        live = Live(ids, log_probabilities, take_columns(coverage, parents))
        return BeamState(position, live, finished, num_finished), parents

    def _ends(self, candidates: Candidates, position: Tensor, request: Request) -> Any:
        return self.ends(ops.take(candidates.ids, position, axis=-1), position, request)

    def _ended(
        self, state: BeamState, candidates: Candidates, ends: Mask, request: Request
    ) -> Finished:
        """Returns all candidates as `Finished`. Only those that finish now have finite scores.

        If candidates were removed by slicing, XLA would sort all scores to find the largest.
        """
        beam_sizes = request.beam_sizes
        beams = ops.shape(state.live.ids)[1] if beam_sizes is None else beam_sizes[:, None]
        ends = ops.logical_and(ends, _may_finish(candidates, beams))
        log_probabilities = ops.where(ends, candidates.log_probabilities, IMPOSSIBLE)
        scores = self._scores(state, candidates, log_probabilities, request)
        if candidates.missing is not None:
            scores = scores - MISSING_TOKEN_PENALTY * ops.cast(candidates.missing, "float32")
        return Finished(candidates.ids, log_probabilities, scores)

    def _scores(
        self, state: BeamState, candidates: Candidates, totals: Tensor, request: Request
    ) -> Any:
        """Returns the scores of candidates, which have the log-probabilities `totals`."""
        scores = totals / self._divisor(request, state.position + 1)
        if self.options.coverage_penalty:
            bonus = _coverage_score(state.live.coverage, request.source_ids != self.pad_id)
            bonus = take_columns(bonus, candidates.parents)
            scores = scores + self.options.coverage_penalty * bonus
        return scores


def _coverage_score(coverage: Tensor, padding_mask: Mask) -> Any:
    """Returns the sum of log(min(coverage, 1)) over the source tokens, `(B, N)`, at most 0."""
    logarithms = ops.log(ops.clip(coverage, MIN_COVERAGE, 1.0))
    return ops.sum(ops.where(padding_mask[:, None, :], logarithms, 0.0), axis=-1)


def _top_candidates(
    log_probabilities: Tensor, banks: Tensor | None, beam_size: int
) -> tuple[Any, Any]:
    """Chooses N candidates. Returns their log-probabilities, descending, and their indices."""
    if banks is None:
        return ops.top_k(log_probabilities, beam_size)
    chosen = allocate_beams(log_probabilities, banks, beam_size)
    return take_columns(log_probabilities, chosen), chosen


def _may_finish(candidates: Candidates, beams: int | Tensor) -> Any:
    """Returns a bool mask `(B, M)`, True for the best N candidates of each sentence.

    If all could finish, N improbable hypotheses could end the search too early.
    """
    columns = ops.arange(ops.shape(candidates.parents)[1], dtype="int32")
    if candidates.banks is None:
        return columns < beams
    chosen = allocate_beams(candidates.log_probabilities, candidates.banks, beams)
    return ops.any(chosen[:, :, None] == columns, axis=1)


def _best_finished(finished: Finished, n_best: int | Tensor) -> Finished:
    scores, chosen = ops.top_k(finished.scores, n_best)
    ids, log_probabilities = (take_columns(x, chosen) for x in finished[:2])
    return Finished(ids, log_probabilities, scores)


def _mask_unused_beams(log_probabilities: Tensor, beam_sizes: Tensor | None) -> Any:
    """Sets the values of unused beams, from beam `beam_sizes` on, to minus infinity."""
    if beam_sizes is None:
        return log_probabilities
    columns = ops.arange(ops.shape(log_probabilities)[1], dtype="int32")
    return ops.where(columns < beam_sizes[:, None], log_probabilities, IMPOSSIBLE)
