"""Records which hypotheses a beam search continued, finished and dropped, and why."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from keras import ops

from keras_transformer._backend.types import Tensor
from keras_transformer.decoding.beam_search import BeamSearch, BeamState
from keras_transformer.decoding.decoding_loop import Strategy, run_stages
from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.decoding.request import Request, SearchResult
from keras_transformer.decoding.token_rules import Candidates
from keras_transformer.models.protocol import Searchable
from keras_transformer.translation.beam_tree import BeamNode


@dataclass(frozen=True, eq=False, kw_only=True)
class _RecordingBeamSearch(BeamSearch):
    """A beam search of one sentence that appends a `BeamNode` for each candidate of each step."""

    in_python = True
    pieces: Sequence[str]  # target pieces in the order of their ids
    groups: Iterator[int]  # the beam group of each step
    nodes: list[BeamNode] = field(
        default_factory=lambda: [BeamNode(None, 0, 0, 0, "", 0.0, 0.0, 1, "continued")]
    )
    # Index of each node by its group and token ids.
    indices: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    # The model's log-probabilities (V,) of the next token, for each beam.
    own: list[np.ndarray] = field(default_factory=list)

    def _select_groups(
        self, state: BeamState, logits: Tensor, request: Request
    ) -> tuple[BeamState, Any]:
        self.own[:] = _first(ops.log_softmax(logits))
        return super()._select_groups(state, logits, request)

    def _select(
        self, state: BeamState, candidates: Candidates, request: Request
    ) -> tuple[BeamState, Any]:
        found = super()._select(state, candidates, request)
        ends = self._ends(candidates, found[0].position, request)
        ended = self._ended(state, candidates, ends, request)
        state, group, length = found[0], next(self.groups), int(found[0].position)
        live = [tuple(ids[1 : 1 + length]) for ids in _first(state.live.ids).tolist()]
        own = self.own[group * len(live) : (group + 1) * len(live)]
        columns = (*candidates[:3], ends, ended.scores)
        rows = zip(*(_first(column).tolist() for column in columns), strict=True)
        for rank, (row, total, beam, is_end, score) in enumerate(rows, 1):
            if total == IMPOSSIBLE:
                continue
            ids = tuple(row[1 : 1 + length])
            node = BeamNode(
                parent=self.indices.get((group, ids[:-1]), 0),
                length=length,
                group=group,
                token_id=ids[-1],
                piece=self.pieces[ids[-1]],
                log_probability=total,
                token_log_probability=float(own[beam][ids[-1]]),
                rank=rank,
            )
            self.indices[group, ids] = len(self.nodes)
            self.nodes.append(node)
            if score > IMPOSSIBLE:
                node.outcome, node.score = "finished", score
            elif is_end or ids not in live:
                node.reason = f"rank {rank} of the step, but there are {len(live)} beams"
            elif _first(self.is_open(state)):
                node.outcome = "continued"
            else:
                node.reason = self._why_ended(total, state, request)
        return found

    def _why_ended(self, log_probability: float, state: BeamState, request: Request) -> str:
        finished = int(_first(state.num_finished)[0])
        if finished >= ops.shape(state.live.ids)[1]:
            return f"the search ended, because {finished} hypotheses were finished"
        divisor = float(_first(self._divisor(request, request.max_lengths)))
        return f"the search ended: the score could become at most {log_probability / divisor:.3f}"


def _first(tensor: Tensor) -> Any:
    """Returns the row of the only sentence as a NumPy array."""
    return ops.convert_to_numpy(tensor)[0]


def record(
    model: Searchable, request: Request, max_length: int, strategy: Strategy, pieces: Sequence[str]
) -> tuple[tuple[BeamNode, ...], SearchResult]:
    """Searches one sentence without compiling. Returns all nodes, and the result as NumPy arrays.

    `strategy` is a `BeamSearch`. The steps call the same functions as the compiled search.
    """
    groups = itertools.cycle(range(strategy.options.num_beam_groups))
    search = _RecordingBeamSearch(**vars(strategy), pieces=pieces, groups=groups)
    found = run_stages(model, request, max_length, strategy=search)
    result = SearchResult(*map(ops.convert_to_numpy, found))
    nodes = search.nodes
    for rank, (ids, length) in enumerate(zip(result.ids[0], result.lengths[0], strict=True), 1):
        found_ids = tuple(ids[:length].tolist())
        of_groups = [nodes[i] for (_, own), i in search.indices.items() if own == found_ids]
        for node in [node for node in of_groups if node.result is None][:1]:
            node.result = rank
    best = max((node.score for node in nodes if node.score is not None), default=0.0)
    parents = {node.parent for node in nodes if node.outcome != "dropped"}
    for index, node in enumerate(nodes):
        if node.result == 1:
            node.reason = "the best score"
        elif node.score is not None:
            node.reason = f"the score is {best - node.score:.3f} lower than the best score"
        elif node.outcome == "continued" and index not in parents:
            node.reason = "none of its continuations was among the best of the next step"
    return tuple(nodes), result
