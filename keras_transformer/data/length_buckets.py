"""Length buckets: the few widths that sentences are padded to."""

import numpy as np

_MAX_LEVELS = 48  # widths considered on each side; bounds the time of the search
_REFINEMENTS = 2
_TARGET_COST = 2


def choose_buckets(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    length_multiple: int = 8,
    max_shapes: int = 8,
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Choose buckets of (source, target) widths that need little padding, and fill them.

    Widths are added greedily, each time the one that saves most padding, and then each is
    exchanged for a better one. A target position counts as two source positions, since it costs
    the output projection and softmax as well.

    Example:

    ```python
    widths, bucket_of_pair = choose_buckets(np.array([3, 20, 4]), np.array([4, 22, 9]))
    ```

    Args:
        source_lengths: positions each source needs, integers (pairs,).
        target_lengths: positions each target needs, integers (pairs,).
        length_multiple: every width is a multiple of it.
        max_shapes: how many widths there may be at most.

    Returns:
        Widths, narrowest first; the last one holds every pair. And for each pair the index of the
        narrowest that holds it, uint8 (pairs,).
    """
    source_levels = _levels(int(source_lengths.max()), length_multiple)
    target_levels = _levels(int(target_lengths.max()), length_multiple)
    cells = _level_of(source_lengths, source_levels) * np.uint16(len(target_levels))
    cells += _level_of(target_lengths, target_levels)
    grid = len(source_levels), len(target_levels)
    counts = np.bincount(cells, minlength=grid[0] * grid[1]).reshape(grid)
    corners = _search(counts, np.add.outer(source_levels, _TARGET_COST * target_levels), max_shapes)
    widths = [(int(source_levels[i]), int(target_levels[j])) for i, j in corners]
    return widths, _owners(grid, corners).ravel()[cells]


def _levels(longest: int, multiple: int) -> np.ndarray:
    """Multiples of `multiple` up to one that holds `longest`: all of them, or ever sparser."""
    steps = np.geomspace(1, -(-longest // multiple), _MAX_LEVELS)
    return multiple * np.unique(np.ceil(steps.round(6)).astype(np.int64))


def _level_of(lengths: np.ndarray, levels: np.ndarray) -> np.ndarray:
    table = np.searchsorted(levels, np.arange(levels[-1] + 1)).astype(np.uint16)
    return table[lengths]


def _search(counts: np.ndarray, sums: np.ndarray, max_shapes: int) -> list[tuple[int, int]]:
    """Corners of the grid of lengths up to which pairs are padded, cheapest first."""
    widest = (sums.shape[0] - 1, sums.shape[1] - 1)
    corners = [widest]
    for _ in range(max_shapes - 1):
        corners = _with_best_addition(counts, sums, corners)
    for _ in range(_REFINEMENTS):
        for corner in corners[:-1]:
            others = [other for other in corners if other != corner]
            corners = _with_best_addition(counts, sums, others)
    return corners


def _with_best_addition(
    counts: np.ndarray, sums: np.ndarray, corners: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The corners and the one that saves most positions, if any does."""
    costs = np.array([sums[corner] for corner in corners])
    current = costs[_owners(sums.shape, corners)]
    savings = np.zeros(sums.shape)
    for i, j in np.ndindex(sums.shape):
        saved = np.maximum(current[: i + 1, : j + 1] - sums[i, j], 0)
        savings[i, j] = (saved * counts[: i + 1, : j + 1]).sum()
    i, j = np.unravel_index(savings.argmax(), savings.shape)
    added = [(int(i), int(j))] if savings[i, j] > 0 else []
    return sorted(corners + added, key=lambda corner: (sums[corner], corner))


def _owners(grid: tuple[int, ...], corners: list[tuple[int, int]]) -> np.ndarray:
    """For each cell of the grid, the index of the cheapest corner that holds it: uint8."""
    owners = np.zeros(grid, np.uint8)
    for index, (i, j) in reversed(list(enumerate(corners))):
        owners[: i + 1, : j + 1] = index
    return owners
