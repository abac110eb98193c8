"""Groups sequences of any length into batches of a few different shapes, and searches batches."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import (
    compile_function,
    compiles_each_shape,
    makes_graphs,
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
from keras_transformer.decoding.steps import IMPOSSIBLE, Request, SearchResult


class Shapes(NamedTuple):
    """The sizes that batches of a search may have, which is compiled for each one that occurs."""

    row_factor: int  # ratio of each number of rows to the next smaller one
    smallest_width: int  # tokens of the smallest source; the others are 2, 4, 8, ... times as wide
    # Length of the hypotheses in the first stage, in tokens. It doubles from stage to stage. None:
    # the width of the sources in the first stage, and the maximum length of the search afterwards.
    first_stage: int | None
    # When at most this many sequences are left, each batch has the shape of the batch before,
    # unless that is more than twice as wide as necessary.
    alike: int
    in_graph: bool = False  # whether the search uses one graph for all shapes, instead of stages


# With JAX and the shipped model, the first 100 lines of Multi30k's test set take 4 programs with
# FEW_SHAPES, and all 1,000 lines take 8. With MANY_SHAPES and a tiny model, they took 53.
FEW_SHAPES = Shapes(row_factor=4, smallest_width=32, first_stage=None, alike=256)
MANY_SHAPES = Shapes(row_factor=2, smallest_width=8, first_stage=8, alike=0)
IN_GRAPH = MANY_SHAPES._replace(in_graph=True)

# After this many batches, the last batch also gets the full size, which adds at most 25% work.
MIN_BATCHES_OF_LONG_LIST = 4

# Up to these numbers of sentences, a search would spend more time on compiling than it saves.
# Estimated for the tiny model on 2 cores.
GRAPH_SENTENCES, FEW_SHAPES_SENTENCES = 4096, 16384


class BatchSearch:
    """Searches many batches faster than `search`, with the same results.

    In `search`, a batch keeps its size until the last sentence is finished. This class continues
    with a smaller batch as soon as the unfinished sentences fit into it.

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
        is_first = self.num_sentences <= GRAPH_SENTENCES
        if self._accepts_any_shape and is_first and isinstance(strategy, BeamSearch):
            return IN_GRAPH
        is_short = compiles_each_shape() and self.num_sentences <= FEW_SHAPES_SENTENCES
        return FEW_SHAPES if is_short else MANY_SHAPES

    def __call__(
        self, request: Request, strategy: Strategy, max_length: int, shapes: Shapes
    ) -> SearchResult:
        """Runs the search for a request of NumPy arrays, and returns NumPy arrays."""
        if shapes.in_graph:
            return _to_numpy(self._run_stages(request, np.int32(max_length), strategy=strategy))
        rows = np.arange(len(request.source_ids))
        sizes = batch_sizes(len(rows), shapes)
        if shapes.first_stage is None:
            width = request.source_ids.shape[1]
            lengths = stages(self._model, max_length, width, factor=max_length)
        else:
            lengths = stages(self._model, max_length, shapes.first_stage)
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
            longer = next(x for x in lengths if x > result.steps)
            length = max_length if shapes.first_stage is None else longer
            request, state, cache = self._resize(
                request, state, cache, kept, strategy=strategy, length=length
            )


def batch_sizes(rows: int, shapes: Shapes) -> list[int]:
    """Returns the numbers of rows that a batch of `rows` rows may have in turn.

    A batch of more than 8 rows shrinks by `shapes.row_factor`, a batch of 8 rows to 2, and fewer
    not at all. If `shapes.first_stage` is None, a batch shrinks only once.
    """
    sizes = [rows]
    while sizes[-1] >= 8 and not (shapes.first_stage is None and len(sizes) > 1):
        sizes.append(sizes[-1] // shapes.row_factor if sizes[-1] > 8 else 2)
    return sizes


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


class LengthBatch(NamedTuple):
    """Sequences that are processed together."""

    indices: list[int]  # indices of the sequences, at most B
    rows: int  # number of rows B
    width: int  # number of positions per row, at least the length of the longest sequence


def length_batches(
    lengths: Sequence[int], tokens_per_batch: int, longest: int, shapes: Shapes = MANY_SHAPES
) -> Iterator[LengthBatch]:
    """Sorts sequences by length, longest first, and groups them into batches.

    The width of a batch is one of the widths of `shapes` (8, 16, 32, ... for `MANY_SHAPES`), but at
    most `longest`. A batch has as many rows as `tokens_per_batch` allows, but at least one. Some
    can be empty. The first 4 batches have at most as many rows as there are remaining sequences,
    rounded up to a power of `shapes.row_factor`, so that a short list leaves few rows empty.

    >>> list(length_batches([3, 14, 5], tokens_per_batch=32, longest=64))
    [LengthBatch(indices=[1, 2], rows=2, width=16), LengthBatch(indices=[0], rows=1, width=8)]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    count = rows = width = 0
    while order:
        needed = smallest_power(2, lengths[order[0]], shapes.smallest_width)
        if not (needed <= width <= 2 * needed and len(order) <= shapes.alike):
            width, rows = needed, max(1, tokens_per_batch // needed)
            if count < MIN_BATCHES_OF_LONG_LIST:
                rows = min(rows, smallest_power(shapes.row_factor, len(order)))
        indices, order = order[:rows], order[rows:]
        yield LengthBatch(indices, rows, min(width, longest))
        count += 1


def padded(sequences: Sequence[Sequence[int]], rows: int, width: int, pad_id: int) -> np.ndarray:
    """Returns the sequences as int32 ids `(rows, width)`, padded at the end."""
    ids = np.full((rows, width), pad_id, "int32")
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    return ids


def pair_batches(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[Sequence[int]]],
    tokens_per_batch: int,
    longest: int,
    pad_id: int,
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Groups sources, each with N targets, into batches of padded arrays.

    Yields the indices of the sources, their ids, int32 `(B, S)`, and the ids of their targets,
    int32 `(B, N, S)`. The last rows may contain only padding.
    """
    lengths = [max(map(len, (s, *t))) for s, t in zip(sources, targets, strict=True)]
    for indices, rows, width in length_batches(lengths, tokens_per_batch, longest):
        source_ids = padded([sources[index] for index in indices], rows, width, pad_id)
        columns = zip(*(targets[index] for index in indices), strict=True)
        target_ids = [padded(column, rows, width, pad_id) for column in columns]
        yield indices, source_ids, np.stack(target_ids, axis=1)


def smallest_power(factor: int, number: int, first: int = 1) -> int:
    """Returns the first number in `first`, `first * factor`, ... that is at least `number`."""
    while first < number:
        first *= factor
    return first
