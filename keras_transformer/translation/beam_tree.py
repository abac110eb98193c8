"""Records which hypotheses a beam search continued, finished and dropped, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.beam_search import BeamSearch, BeamState, length_divisor
from keras_transformer.decoding.decoding_loop import run_stages
from keras_transformer.decoding.options import IMPOSSIBLE, SearchOptions
from keras_transformer.decoding.steps import Request, SearchResult
from keras_transformer.decoding.token_rules import Candidates
from keras_transformer.translation.hypothesis import WORD_BEGIN, Hypothesis

Outcome = Literal["continued", "finished", "dropped"]


@dataclass(frozen=True)
class BeamNode:
    """A hypothesis of a beam search: its last token, and what became of it.

    Attributes:
        parent: Index in `BeamTree.nodes` of the hypothesis without the last token. None for the
            empty hypothesis.
        length: Number of tokens.
        group: Index of the beam group.
        token_id: Id of the last token.
        piece: The last token as text.
        log_probability: Log-probability in nats, by which the search compares hypotheses. It
            includes the penalties of the search for repetition and for equal beam groups.
        token_log_probability: The model's log-probability of the last token in nats, without
            penalties.
        rank: Rank among the candidates of its step and group, from 1.
        outcome: `"continued"` (the hypothesis became live), `"finished"` or `"dropped"`.
        score: The score of a finished hypothesis, else None.
        result: Rank among the results of the search, from 1. None if it is no result.
        reason: Why the hypothesis won, finished without being a result, or was dropped.
    """

    parent: int | None
    length: int
    group: int
    token_id: int
    piece: str
    log_probability: float
    token_log_probability: float
    rank: int
    outcome: Outcome
    score: float | None = None
    result: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class BeamTree:
    """All hypotheses that a beam search considered for one sentence.

    Attributes:
        source: The source sentence.
        nodes: The hypotheses, shortest first. The first is the empty hypothesis.
        hypotheses: The results of the search, best first.
        options: The options of the search.
    """

    source: str
    nodes: tuple[BeamNode, ...]
    hypotheses: tuple[Hypothesis, ...]
    options: SearchOptions

    def path(self, node: BeamNode) -> list[BeamNode]:
        """Returns the nodes from the first token of a hypothesis to its last token."""
        nodes = []
        while node.parent is not None:
            nodes.append(node)
            node = self.nodes[node.parent]
        return nodes[::-1]

    def text(self, node: BeamNode) -> str:
        """Returns the tokens of a hypothesis as text, without the end of the sentence."""
        pieces = (x.piece for x in self.path(node) if x.piece != "</s>")
        return "".join(pieces).replace(WORD_BEGIN, " ").strip()


class _Step(NamedTuple):
    """The candidates of a step of one beam group, as NumPy arrays without the batch axis."""

    group: int
    length: int  # number of tokens of the candidates
    ids: np.ndarray  # (M, 1 + L), bos first
    log_probabilities: np.ndarray  # (M,)
    ends: np.ndarray  # (M,), True for candidates with eos or with the maximum length
    end_scores: np.ndarray  # (M,), minus infinity = not finished in this step
    live_ids: np.ndarray  # (N, 1 + L), the hypotheses that the beams continue
    # The model's log-probabilities (V,) of the next token, by the tokens before it.
    own: dict[tuple[int, ...], np.ndarray]
    is_open: bool  # False if the search of this group ends with this step
    num_finished: int  # finished hypotheses of this group so far


@dataclass(frozen=True)
class _RecordingBeamSearch(BeamSearch):
    """A beam search of one sentence that appends a `_Step` for each step and beam group."""

    steps: list[_Step] = field(default_factory=list, compare=False)
    own: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict, compare=False)

    def _select_groups(
        self, state: BeamState, logits: Any, bonus: Any, request: Request
    ) -> tuple[BeamState, Any]:
        prefixes = _first(state.live.ids)[:, 1 : 1 + int(state.position)].tolist()
        self.own.update(zip(map(tuple, prefixes), _first(ops.log_softmax(logits)), strict=True))
        return super()._select_groups(state, logits, bonus, request)

    def _select(self, state: BeamState, *rest: Any) -> tuple[BeamState, Any]:
        return self._recorded(super()._select(state, *rest), *rest)

    def _select_single(self, state: BeamState, *rest: Any) -> tuple[BeamState, Any]:
        return self._recorded(super()._select_single(state, *rest), *rest)

    def _recorded(
        self, found: tuple[BeamState, Any], candidates: Candidates, bonus: Any, request: Request
    ) -> tuple[BeamState, Any]:
        state, _ = found
        ends = self._ends(candidates, state.position, request)
        ended = self._ended(candidates, ends, state.position, bonus, request)
        step = _Step(
            group=len(self.steps) % self.options.num_beam_groups,
            length=int(state.position),
            ids=_first(candidates.ids),
            log_probabilities=_first(candidates.log_probabilities),
            ends=_first(ends),
            end_scores=_first(ended.scores),
            live_ids=_first(state.live.ids),
            own=self.own,
            is_open=bool(_first(self.is_open(state))),
            num_finished=int(_first(state.num_finished)[0]),
        )
        self.steps.append(step)
        return found


def _first(tensor: Any) -> Any:
    """Returns the row of the only sentence as a NumPy array."""
    return ops.convert_to_numpy(tensor)[0]


def record(
    model: Any, request: Request, max_length: int, strategy: Any
) -> tuple[list[_Step], SearchResult]:
    """Searches one sentence without compiling. Returns the steps, and the result as NumPy arrays.

    `strategy` is a `BeamSearch`. The steps call the same functions as the compiled search.
    """
    own = {x.name: getattr(strategy, x.name) for x in fields(strategy)}
    recording = _RecordingBeamSearch(**own)
    result = run_stages(model, request, max_length, strategy=recording, in_python=True)
    return recording.steps, SearchResult(*map(ops.convert_to_numpy, result))


def nodes_of(
    steps: Sequence[_Step],
    result: SearchResult,
    max_length: int,
    options: SearchOptions,
    pieces: Sequence[str],
) -> tuple[BeamNode, ...]:
    """Returns the nodes of a `BeamTree`.

    Args:
        steps: The steps of the search, from `record`.
        result: The result of the search, from `record`.
        max_length: Maximum length of a hypothesis in tokens.
        options: The options of the search.
        pieces: The target pieces in the order of their ids.
    """
    root = BeamNode(None, 0, 0, 0, "", 0.0, 0.0, 1, "continued")
    nodes = [root]
    indices: dict[tuple[int, tuple[int, ...]], int] = {}
    for step in steps:
        live = {tuple(ids[1 : 1 + step.length].tolist()) for ids in step.live_ids}
        for rank in range(len(step.ids)):
            total = float(step.log_probabilities[rank])
            if total == IMPOSSIBLE:
                continue
            ids = tuple(step.ids[rank, 1 : 1 + step.length].tolist())
            parent = indices.get((step.group, ids[:-1]), 0)
            node = BeamNode(
                parent=parent,
                length=step.length,
                group=step.group,
                token_id=ids[-1],
                piece=pieces[ids[-1]],
                log_probability=total,
                token_log_probability=float(step.own[ids[:-1]][ids[-1]]),
                rank=rank + 1,
                outcome="dropped",
            )
            indices[step.group, ids] = len(nodes)
            is_live = ids in live and not step.ends[rank]
            nodes.append(_with_outcome(node, step, is_live, max_length, options))
    lengths = zip(result.ids[0], result.lengths[0], strict=True)
    results = [tuple(ids[:length].tolist()) for ids, length in lengths]
    return tuple(_with_result(nodes, indices, results, options))


def _with_outcome(
    node: BeamNode, step: _Step, is_live: bool, max_length: int, options: SearchOptions
) -> BeamNode:
    score = float(step.end_scores[node.rank - 1])
    if score > IMPOSSIBLE:
        return replace(node, outcome="finished", score=score)
    beams = options.beam_size // options.num_beam_groups
    if not is_live:
        reason = f"rank {node.rank} of the step, but there are {beams} beams"
    elif step.is_open:
        return replace(node, outcome="continued")
    elif step.num_finished >= beams:
        reason = f"the search ended, because {step.num_finished} hypotheses were finished"
    else:
        divisor = float(
            length_divisor(max_length, options.length_penalty, options.length_penalty_form)
        )
        bound = node.log_probability / divisor
        reason = f"the search ended: the score could become at most {bound:.3f}"
    return replace(node, reason=reason)


def _with_result(
    nodes: Sequence[BeamNode],
    indices: dict[tuple[int, tuple[int, ...]], int],
    results: Sequence[tuple[int, ...]],
    options: SearchOptions,
) -> list[BeamNode]:
    """Returns the nodes with `result`, and with the reason of finished and continued nodes."""
    found = list(nodes)
    ranks: dict[int, int] = {}
    for rank, ids in enumerate(results, 1):
        of_result = [indices.get((group, ids)) for group in range(options.num_beam_groups)]
        free = [index for index in of_result if index is not None and index not in ranks]
        ranks.update(dict.fromkeys(free[:1], rank))
    best = max((node.score for node in nodes if node.score is not None), default=0.0)
    parents = {node.parent for node in nodes if node.outcome != "dropped"}
    for index, node in enumerate(nodes):
        if node.score is not None:
            reason = f"the score is {best - node.score:.3f} lower than the best score"
            if ranks.get(index) == 1:
                reason = "the best score"
            found[index] = replace(node, result=ranks.get(index), reason=reason)
        elif node.outcome == "continued" and index not in parents:
            reason = "none of its continuations was among the best of the next step"
            found[index] = replace(node, reason=reason)
    return found
