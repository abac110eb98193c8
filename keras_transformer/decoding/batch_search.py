"""Searches batches, which become smaller as their sentences are finished."""

import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import (
    compile_function,
    compiles_each_shape,
    is_on_cuda,
    makes_graphs,
)
from keras_transformer.capabilities import Capabilities
from keras_transformer.decoding.batches import (
    FEW_SHAPES,
    FIXED_SHAPES,
    IN_GRAPH,
    MANY_SHAPES,
    Shapes,
    batch_sizes,
)
from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.decoding_loop import (
    Strategy,
    advance,
    begin,
    resize,
    run_stages,
    stages,
)
from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.decoding.request import Request, SearchResult
from keras_transformer.models.protocol import Searchable

# Up to these numbers of sentences, a search would spend more time on compiling than it saves.
# Estimated for the tiny model on 2 cores.
GRAPH_SENTENCES, FEW_SHAPES_SENTENCES = 4096, 16384


class BatchSearch:
    """Searches many batches faster than `search`, with the same results.

    In `search`, a batch keeps its size until the last sentence is finished. This class continues
    with a smaller batch as soon as the unfinished sentences fit into it.

    If each shape of a batch is compiled or recorded, batches have few different shapes until
    `FEW_SHAPES_SENTENCES` sentences. On TensorFlow, beam search uses one graph without XLA for the
    first `GRAPH_SENTENCES` sentences, if the model's `accepts_any_shape` is True.
    """

    def __init__(self, model: Searchable) -> None:
        self._model = model
        self._begin, self._resize = (compile_function(x, model) for x in (begin, resize))
        self._advance = compile_function(advance, model, donated=(1, 2))
        self._accepts_any_shape = makes_graphs() and Capabilities.of(model).accepts_any_shape
        self._run_stages = compile_function(run_stages, model, any_shape=self._accepts_any_shape)
        self.num_sentences = 0
        self.is_fixed = False  # whether nothing is compiled later, as of `Translator.prepare`

    def shapes(self, num_sentences: int, strategy: Strategy) -> Shapes:
        """Returns the shapes for the next `num_sentences` sentences."""
        self.num_sentences += num_sentences
        is_first = self.is_fixed or self.num_sentences <= GRAPH_SENTENCES
        if self._accepts_any_shape and is_first and isinstance(strategy, BeamSearch):
            return IN_GRAPH
        is_compiled = compiles_each_shape(self._model)
        if self.is_fixed and is_compiled:
            return FIXED_SHAPES
        is_compiled = is_compiled or is_on_cuda()  # or recorded
        is_short = is_compiled and self.num_sentences <= FEW_SHAPES_SENTENCES
        return FEW_SHAPES if is_short else MANY_SHAPES

    def __call__(
        self, request: Request, strategy: Strategy, max_length: int, shapes: Shapes
    ) -> SearchResult:
        """Runs the search for a request of NumPy arrays, and returns NumPy arrays."""
        if shapes is FIXED_SHAPES:
            one_stage = {"max_length": max_length, "first": max_length}  # compiles faster
            return _to_numpy(self._run_stages(request, strategy=strategy, **one_stage))
        if shapes.in_graph:
            return _to_numpy(self._run_stages(request, np.int32(max_length), strategy=strategy))
        rows = np.arange(len(request.source_ids))
        sizes = batch_sizes(len(rows), shapes)
        grows = shapes.first_stage is not None
        first = shapes.first_stage or request.source_ids.shape[1]
        lengths = stages(self._model, max_length, first, factor=2 if grows else max_length)
        length, found = lengths[0], _empty_result(len(rows), strategy, max_length)
        request, state, cache = self._begin(
            request, strategy=strategy, max_length=max_length, length=length
        )
        while True:
            most = next((size for size in sizes if size < len(rows)), 0)
            state, cache, result, is_open = self._advance(
                request, state, cache, strategy=strategy, length=length, max_open=most
            )
            result, is_open = _to_numpy(result), ops.convert_to_numpy(is_open)
            found.ids[rows, :, : result.ids.shape[-1]] = result.ids
            for array, values in zip(found[1:4], result[1:4], strict=True):
                array[rows] = values
            found.steps[...] = result.steps
            if not is_open.any() or result.steps == max_length:
                return found
            kept = None  # all rows
            if (size := min(size for size in sizes if size >= is_open.sum())) < len(rows):
                kept = np.argsort(~is_open, kind="stable")[:size]  # unfinished sentences first
                rows = rows[kept]
            length = next(x for x in lengths if x > result.steps) if grows else max_length
            request, state, cache = self._resize(
                request, state, cache, kept, strategy=strategy, length=length
            )


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
