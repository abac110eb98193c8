"""Searches batches of NumPy arrays, and chooses which shapes batches have and what is compiled."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import (
    compile_function,
    compiles_each_shape,
    makes_graphs,
)
from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.buckets import FEW_SHAPES, IN_GRAPH, MANY_SHAPES, Shapes
from keras_transformer.decoding.decoding_loop import (
    Strategy,
    advance,
    begin,
    resize,
    run_stages,
    stages,
)
from keras_transformer.decoding.steps import IMPOSSIBLE, Request, SearchResult

# Up to these numbers of sentences, a search would spend more time on compiling than it saves.
# Estimated for the tiny model on 2 cores.
GRAPH_SENTENCES, FEW_SHAPES_SENTENCES = 4096, 16384


class BatchSearch:
    """Searches many batches faster than `search`, with the same results.

    In `search`, a batch keeps its size until the last sentence is finished. This class continues
    with a smaller batch as soon as the unfinished sentences fit into the smaller batch. Each batch
    size is compiled when it first occurs.

    On TensorFlow, if the model's `accepts_any_shape` is True, beam search uses one graph without
    XLA for the first `GRAPH_SENTENCES` sentences. Otherwise, on TensorFlow and JAX, batches have
    few different shapes until `FEW_SHAPES_SENTENCES` sentences, and many afterwards. PyTorch
    compiles nothing, so it always uses many shapes.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._begin, self._resize = (compile_function(x, model) for x in (begin, resize))
        self._advance = compile_function(advance, model, donated=(1, 2))
        self._run_stages = compile_function(run_stages, model, any_shape=True)
        self._accepts_any_shape = makes_graphs() and getattr(model, "accepts_any_shape", False)
        self.num_sentences = 0

    def shapes(self, num_sentences: int, strategy: Strategy) -> Shapes:
        """Returns the shapes for the next `num_sentences` sentences."""
        self.num_sentences += num_sentences
        has_graph = self._accepts_any_shape and isinstance(strategy, BeamSearch)
        if has_graph and self.num_sentences <= GRAPH_SENTENCES:
            return IN_GRAPH
        is_short = compiles_each_shape() and self.num_sentences <= FEW_SHAPES_SENTENCES
        return FEW_SHAPES if is_short else MANY_SHAPES

    def __call__(
        self, request: Request, strategy: Strategy, max_length: int, shapes: Shapes
    ) -> SearchResult:
        """Runs the search for a request of NumPy arrays, and returns NumPy arrays."""
        if shapes.in_graph:
            result = self._run_stages(request, np.int32(max_length), strategy=strategy)
            return _to_numpy(result)
        rows = np.arange(len(request.source_ids))
        sizes = batch_sizes(len(rows), shapes)
        lengths = stage_lengths(self._model, request.source_ids.shape[1], max_length, shapes)
        request, state, cache = self._begin(
            request, strategy=strategy, max_length=max_length, length=lengths[0]
        )
        found = _empty_result(len(rows), strategy, max_length)
        length = lengths[0]
        while True:
            most = next((size for size in sizes if size < len(rows)), 0)
            state, cache, result, is_open = self._advance(
                request, state, cache, strategy=strategy, length=length, max_open=most
            )
            result, is_open = _to_numpy(result), ops.convert_to_numpy(is_open)
            _write_rows(found, rows, result)
            if not is_open.any() or result.steps == max_length:
                return found
            kept = _rows_to_keep(is_open, sizes)
            rows = rows if kept is None else rows[kept]
            longer = next(x for x in lengths if x > result.steps)
            length = max_length if shapes.first_stage is None else longer
            request, state, cache = self._resize(
                request, state, cache, kept, strategy=strategy, length=length
            )


def stage_lengths(model: Any, width: int, max_length: int, shapes: Shapes) -> list[int]:
    """Returns the lengths of `stages` for a batch of sources of `width` tokens."""
    if shapes.first_stage is None:
        return stages(model, max_length, width, factor=max_length)
    return stages(model, max_length, shapes.first_stage)


def batch_sizes(rows: int, shapes: Shapes) -> list[int]:
    """Returns the numbers of rows that a batch of `rows` rows may have in turn.

    A batch of more than 8 rows shrinks by `shapes.row_factor`, and a batch of 8 rows to 2. Fewer
    than 8 rows stay. More small sizes would hardly save time, and each size must be compiled. If
    `shapes.first_stage` is None, a batch shrinks only once.
    """
    sizes = [rows]
    while sizes[-1] >= 8 and not (shapes.first_stage is None and len(sizes) > 1):
        sizes.append(sizes[-1] // shapes.row_factor if sizes[-1] > 8 else 2)
    return sizes


def _rows_to_keep(is_open: np.ndarray, sizes: Sequence[int]) -> np.ndarray | None:
    """Returns the indices of the rows to keep (None = all). Unfinished sentences come first."""
    size = min(size for size in sizes if size >= is_open.sum())
    return None if size >= len(is_open) else np.argsort(~is_open, kind="stable")[:size]


def _to_numpy(result: SearchResult) -> SearchResult:
    return SearchResult(*map(ops.convert_to_numpy, result))


def _empty_result(batch: int, strategy: Strategy, max_length: int) -> SearchResult:
    shape = (batch, strategy.num_results)
    return SearchResult(
        ids=np.full((*shape, max_length), strategy.pad_id, "int32"),
        scores=np.full(shape, IMPOSSIBLE, "float32"),
        log_probabilities=np.full(shape, IMPOSSIBLE, "float32"),
        lengths=np.zeros(shape, "int32"),
        steps=np.zeros((), "int32"),
    )


def _write_rows(found: SearchResult, rows: np.ndarray, result: SearchResult) -> None:
    """Copies `result` to `rows` of `found`. The ids in `result` may be shorter than in `found`."""
    found.ids[rows, :, : result.ids.shape[-1]] = result.ids
    for array, values in zip(found[1:4], result[1:4], strict=True):
        array[rows] = values
    found.steps[...] = result.steps
