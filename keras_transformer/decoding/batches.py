"""Groups sequences of any length into batches of a few different shapes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class Shapes(NamedTuple):
    """The sizes that batches of a search may have, which is compiled for each one that occurs."""

    row_factor: int  # ratio of each number of rows to the next smaller one
    smallest_width: int  # tokens of the smallest source
    # Length of the hypotheses in the first stage, in tokens. It doubles from stage to stage. None:
    # the width of the sources in the first stage, and the maximum length of the search afterwards.
    first_stage: int | None
    # When at most this many sequences are left, each batch has the shape of the batch before,
    # unless that is more than `width_factor` times as wide as necessary.
    alike: int
    width_factor: int = 2  # ratio of each width to the next smaller one
    in_graph: bool = False  # whether the search uses one graph for all shapes, instead of stages


# With JAX and the shipped model, the first 100 lines of Multi30k's test set take 4 programs with
# FEW_SHAPES, and all 1,000 lines take 8. With MANY_SHAPES and a tiny model, they took 53.
FEW_SHAPES = Shapes(row_factor=4, smallest_width=32, first_stage=None, alike=256)
MANY_SHAPES = Shapes(row_factor=2, smallest_width=8, first_stage=8, alike=0)
IN_GRAPH = MANY_SHAPES._replace(in_graph=True)
# A server compiles all of these before it listens.
FIXED_SHAPES = FEW_SHAPES._replace(row_factor=8, width_factor=4, in_graph=True)

# After this many batches, the last batch also gets the full size, which adds at most 25% work.
MIN_BATCHES_OF_LONG_LIST = 4


def batch_sizes(rows: int, shapes: Shapes) -> list[int]:
    """Returns the numbers of rows that a batch of `rows` rows may have in turn.

    A batch of more than 8 rows shrinks by `shapes.row_factor`, a batch of 8 rows to 2, and fewer
    not at all. If `shapes.first_stage` is None, a batch shrinks only once.
    """
    sizes = [rows]
    while sizes[-1] >= 8 and not (shapes.first_stage is None and len(sizes) > 1):
        sizes.append(sizes[-1] // shapes.row_factor if sizes[-1] > 8 else 2)
    return sizes


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
        needed = smallest_power(shapes.width_factor, lengths[order[0]], shapes.smallest_width)
        if not (needed <= width <= shapes.width_factor * needed and len(order) <= shapes.alike):
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
    shapes: Shapes = MANY_SHAPES,
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Groups sources, each with N targets, into batches of padded arrays.

    Yields the indices of the sources, their ids, int32 `(B, S)`, and the ids of their targets,
    int32 `(B, N, S)`. The last rows may contain only padding.
    """
    lengths = [max(map(len, (s, *t))) for s, t in zip(sources, targets, strict=True)]
    for indices, rows, width in length_batches(lengths, tokens_per_batch, longest, shapes):
        source_ids = padded([sources[index] for index in indices], rows, width, pad_id)
        columns = zip(*(targets[index] for index in indices), strict=True)
        target_ids = [padded(column, rows, width, pad_id) for column in columns]
        yield indices, source_ids, np.stack(target_ids, axis=1)


def fixed_shapes(rows: int, tokens_per_batch: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yields the rows and the widths of all batches of up to `rows` sequences in FIXED_SHAPES.

    >>> list(fixed_shapes(rows=64, tokens_per_batch=2048, longest=60))
    [(1, 32), (8, 32), (64, 32), (1, 60), (8, 60), (32, 60)]
    """
    factor, width = FIXED_SHAPES.row_factor, FIXED_SHAPES.smallest_width
    most = smallest_power(factor, rows)
    while True:
        room = min(most, max(1, tokens_per_batch // width))
        powers = (factor**n for n in range(room.bit_length()))
        yield from ((x, min(width, longest)) for x in (*(x for x in powers if x < room), room))
        if width >= longest:
            return
        width *= FIXED_SHAPES.width_factor


def smallest_power(factor: int, number: int, first: int = 1) -> int:
    """Returns the first number in `first`, `first * factor`, ... that is at least `number`."""
    while first < number:
        first *= factor
    return first
