"""Batches of few shapes, for whatever a model does with sequences of any lengths."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

SMALLEST_WIDTH = 8

# After so many batches the last one is as large as the others: at most a quarter more work.
BATCHES_OF_A_LONG_LIST = 4


class LengthBatch(NamedTuple):
    """Sequences that go through the model together.

    Attributes:
        indices: Which sequences; there may be fewer of them than rows.
        rows: Number of rows B.
        width: Positions of each row, at least the length of the longest sequence.
    """

    indices: list[int]
    rows: int
    width: int


def length_batches(
    lengths: Sequence[int], tokens_per_batch: int, longest: int
) -> Iterator[LengthBatch]:
    """Sorts sequences by length into batches of few shapes, so that little is compiled.

    A width is a power of two from 8 on, or `longest`, and every batch of a width has the same
    number of rows, as many as `tokens_per_batch` has room for. The last batch has rows that stay
    empty, unless the list is short: then its rows are the next power of two. So lists of any
    length share one shape a width, and short ones take little more than they need.

    The longest come first: what does not fit into the memory shows at once.

    Example:

    >>> list(length_batches([3, 14, 5], tokens_per_batch=32, longest=64))
    [LengthBatch(indices=[1, 2], rows=2, width=16), LengthBatch(indices=[0], rows=1, width=8)]

    Args:
        lengths: Length of each sequence, from 1 to `longest`.
        tokens_per_batch: Positions of one batch, at most, unless a single sequence has more.
        longest: Positions that the model takes at most.

    Yields:
        Batches that hold each sequence once.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    count = 0
    while order:
        width = max(SMALLEST_WIDTH, power_of_two(lengths[order[0]]))
        rows = max(1, tokens_per_batch // width)
        if count < BATCHES_OF_A_LONG_LIST:
            rows = min(rows, power_of_two(len(order)))
        indices, order = order[:rows], order[rows:]
        yield LengthBatch(indices, rows, min(width, longest))
        count += 1


def padded(sequences: Sequence[Sequence[int]], rows: int, width: int, pad_id: int) -> np.ndarray:
    """Returns int32 ids `(rows, width)` of sequences that are as many or fewer, and no longer."""
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
    """Batches of sources with N targets each; source and target are of the same width.

    Args:
        sources: Ids of each source.
        targets: Ids of the N targets of each source.
        tokens_per_batch: As in `length_batches`.
        longest: As in `length_batches`.
        pad_id: Id of padding.

    Yields:
        Which sources, and int32 ids `(B, S)` and `(B, N, S)`; rows may be left over.
    """
    lengths = [
        max(len(source), *map(len, of_source))
        for source, of_source in zip(sources, targets, strict=True)
    ]
    for indices, rows, width in length_batches(lengths, tokens_per_batch, longest):
        source_ids = padded([sources[index] for index in indices], rows, width, pad_id)
        columns = zip(*(targets[index] for index in indices), strict=True)
        target_ids = [padded(column, rows, width, pad_id) for column in columns]
        yield indices, source_ids, np.stack(target_ids, axis=1)


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that is not less than `number`, at least 1."""
    return 1 << max(number - 1, 0).bit_length()
