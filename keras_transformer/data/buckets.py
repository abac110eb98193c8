"""Chooses the few lengths that sentence pairs are padded to."""

import numpy as np

# The source and target length that the sentence pairs of a batch are padded to.
Width = tuple[int, int]

_MAX_LEVELS = 48  # most lengths to choose from, per side; limits the time of `choose_buckets`
_REFINEMENTS = 2  # how many times each width is replaced by a better one
_TARGET_COST = 2  # of a target token; a source token costs 1, because it needs no logits


def choose_buckets(
    source_lengths: np.ndarray, target_lengths: np.ndarray, length_multiple: int, max_shapes: int
) -> tuple[list[Width], np.ndarray]:
    """Chooses the lengths that sentence pairs are padded to, so that there is little padding.

    The search starts with one width that every sentence pair fits into. It repeatedly adds the
    width that saves the most padding, until there are `max_shapes` widths. Then it replaces each
    width except the widest by the width that saves the most padding.

    Returns the widths, narrowest first, and the index of the narrowest width that each pair fits
    into, int (pairs,). Every pair fits into the last width.
    """
    source_levels, rows = _levels(source_lengths, length_multiple)
    target_levels, columns = _levels(target_lengths, length_multiple)
    cells = rows * np.uint16(len(target_levels)) + columns
    # Cell (i, j) of the grid stands for the i-th source and the j-th target level. A corner is the
    # cell of a width. `sums` are the costs of a pair that is padded to the levels of a cell.
    grid = len(source_levels), len(target_levels)
    counts = np.bincount(cells, minlength=grid[0] * grid[1]).reshape(grid)
    sums = np.add.outer(source_levels, _TARGET_COST * target_levels)
    corners = [(grid[0] - 1, grid[1] - 1)]
    for _ in range(max_shapes - 1):
        corners = _with_best_addition(counts, sums, corners)
    for _ in range(_REFINEMENTS):
        for corner in corners[:-1]:
            others = [other for other in corners if other != corner]
            corners = _with_best_addition(counts, sums, others)
    widths = [(int(source_levels[i]), int(target_levels[j])) for i, j in corners]
    return widths, _owners(grid, corners).ravel()[cells]


def _levels(lengths: np.ndarray, multiple: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `_MAX_LEVELS` ascending multiples of `multiple`, and that of each length.

    The level of a length is the first that is not shorter, as its index, uint16 (pairs,).
    """
    steps = np.geomspace(1, -(-lengths.max() // multiple), _MAX_LEVELS)
    levels = multiple * np.unique(np.ceil(steps.round(6)).astype(np.int64))
    level_of = np.searchsorted(levels, np.arange(levels[-1] + 1)).astype(np.uint16)
    return levels, level_of[lengths]


def _with_best_addition(counts: np.ndarray, sums: np.ndarray, corners: list[Width]) -> list[Width]:
    """Returns `corners` and the cell that saves the most padding, if any, the cheapest first."""
    costs = np.array([sums[corner] for corner in corners])
    current = costs[_owners(sums.shape, corners)]
    savings = np.zeros(sums.shape)
    for i, j in np.ndindex(sums.shape):
        saved = np.maximum(current[: i + 1, : j + 1] - sums[i, j], 0)
        savings[i, j] = (saved * counts[: i + 1, : j + 1]).sum()
    i, j = np.unravel_index(savings.argmax(), savings.shape)
    added = [(int(i), int(j))] if savings[i, j] > 0 else []
    return sorted(corners + added, key=lambda corner: (sums[corner], corner))


def _owners(grid: tuple[int, ...], corners: list[Width]) -> np.ndarray:
    """Returns, for each cell, the index of the cheapest corner that pairs of the cell fit into."""
    owners = np.zeros(grid, np.int32)
    for index, (i, j) in reversed(list(enumerate(corners))):
        owners[: i + 1, : j + 1] = index
    return owners
