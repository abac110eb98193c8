"""Packs several texts into each row of a batch, so that there is little padding."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Rows that are filled at a time. More rows leave less padding, and take longer.
_OPEN = 64


def fill_rows(lengths: np.ndarray, width: np.ndarray, seed: int) -> list[np.ndarray]:
    """Distributes items over rows. Returns the items of each row.

    The items, whose `lengths` are int `(items, sides)`, come in a random order. Each goes to the
    open row in which it leaves the least of `width`, int `(sides,)`. If it fits into none of them,
    an empty row replaces the fullest.
    """
    room = np.tile(width[:, None], min(_OPEN, len(lengths)))
    opened: list[list[int]] = [[] for _ in room[0]]
    filled = list(opened)
    for item in np.random.default_rng([seed, len(lengths)]).permutation(len(lengths)).tolist():
        left = room - lengths[item][:, None]
        costs = np.where(left.min(axis=0) < 0, np.inf, left.sum(axis=0))
        row = int(costs.argmin())
        if costs[row] == np.inf:
            row = int(room.sum(axis=0).argmin())
            left[:, row], opened[row] = width - lengths[item], []
            filled.append(opened[row])
        room[:, row] = left[:, row]
        opened[row].append(item)
    return [np.array(items, np.int64) for items in filled if items]


def row_width(lengths: np.ndarray, multiple: int) -> np.ndarray:
    """Returns the width of rows, multiples of `multiple`, into which the longest item fits.

    The sides are full at about the same number of items.
    """
    means = lengths.mean(axis=0)
    width = np.ceil((lengths.max(axis=0) / means).max() * means - 1e-9)
    return multiple * np.ceil(width / multiple).astype(np.int64)


class Packing(NamedTuple):
    """Pairs, or texts of a language model, of one corpus in each row."""

    members: list[np.ndarray]  # the pairs of each row
    corpora: list[int]  # the number of rows of each corpus
    width: tuple[int, int]  # of the source and target side
    room: np.ndarray  # tokens with eos that each pair may have, int (pairs, 2)

    @classmethod
    def of(
        cls, room: Sequence[np.ndarray], corpora: Sequence[int], multiple: int, seed: int
    ) -> "Packing":
        both = np.stack(room, axis=1)
        width, ends = row_width(both, multiple), np.cumsum(corpora)
        parts = [fill_rows(part, width, seed) for part in np.split(both, ends[:-1])]
        begins = ends - corpora
        members = [begin + row for begin, rows in zip(begins, parts, strict=True) for row in rows]
        source, target = map(int, (0, *width)[-2:])
        return cls(members, [*map(len, parts)], (source, target), both)

    def pairs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the pairs of rows, the place of each one's row, and the pieces it may have."""
        members = [self.members[row] for row in rows]
        pairs = np.concatenate([np.zeros(0, np.int64), *members])
        places = np.repeat(np.arange(len(rows)), [len(x) for x in members])
        return pairs, places, self.room[pairs].T - 1


def pack_documents(
    documents: Sequence[Sequence[int]], length: int, seed: int = 0, pad_id: int = 0
) -> dict[str, np.ndarray]:
    """Packs documents into rows for `LanguageModel`, several in each row.

    A longer document is cut into pieces of `length` tokens that share one token, so the model
    learns each token of a document once, except the first. Each piece is a text of its own.

    Example:

    >>> rows = pack_documents([[5, 6, 7], [8, 9], [5, 9]], length=4)
    >>> model.fit(rows, batch_size=8)

    Args:
        documents: Token ids of each document.
        length: Number of tokens of a row, at least 2.
        seed: Seed of the order of the documents, an integer >= 0. Defaults to 0.
        pad_id: Id of padding at the end of a row. Defaults to 0.

    Returns:
        `token_ids` and `token_segments`, int32 (rows, length). The pieces of a row have the
        segments 1, 2, ..., and padding has 0. Labels may be left out.
    """
    pieces = [
        np.asarray(document[begin : begin + length], np.int32)
        for document in documents
        for begin in range(0, max(len(document) - 1, 1), length - 1)
        if len(document) > 0
    ]
    lengths = np.array([[len(piece)] for piece in pieces])
    rows = fill_rows(lengths, np.array([length]), seed)
    ids = np.full((len(rows), length), pad_id, np.int32)
    segments = np.zeros_like(ids)
    for row, members in enumerate(rows):
        tokens = np.concatenate([pieces[item] for item in members])
        ids[row, : len(tokens)] = tokens
        numbers = np.arange(1, len(members) + 1)
        segments[row, : len(tokens)] = np.repeat(numbers, lengths[members, 0])
    return {"token_ids": ids, "token_segments": segments}
