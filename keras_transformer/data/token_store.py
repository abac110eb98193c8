"""Stores the token ids of parallel text in memory-mapped files. Text is encoded only once."""

import hashlib
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._files import atomic_write, check_is_free, check_sha256, read_json, sha256_of
from keras_transformer._progress import Bar
from keras_transformer.data.parallel_text import SIDES, Corpora
from keras_transformer.data.text_files import Pair
from keras_transformer.data.tokenizer import DEFAULT_FRAMES, EOS_ID, Tokenizer
from keras_transformer.errors import UserError

_SUMMARY = "meta.json"
_CHUNK = 8_192  # number of pairs that are encoded together; limits the memory that `build` needs


class Sentences:
    """The pieces of sentence pairs. `ids` has those of all sentences of a side, in a row.

    The texts of a language model have the side "target" alone. Where a document ends, the last of
    the pieces is eos.
    """

    def __init__(
        self, offsets: dict[str, np.ndarray], ids: dict[str, np.ndarray], source_eos: bool
    ) -> None:
        self._offsets, self._ids, self.source_eos = offsets, ids, source_eos
        self.sides, self.are_pairs = tuple(offsets), len(offsets) > 1

    @classmethod
    def from_rows(cls, rows: Mapping[str, list[list[int]]], source_eos: bool) -> "Sentences":
        """Makes the text of the pieces of each sentence, by side."""
        offsets = {side: np.cumsum([0, *map(len, sentences)]) for side, sentences in rows.items()}
        joined = {side: [*itertools.chain.from_iterable(x)] for side, x in rows.items()}
        return Sentences(offsets, {x: np.array(y, np.int32) for x, y in joined.items()}, source_eos)

    def lengths(self, side: str, pairs: np.ndarray | None = None) -> np.ndarray:
        """Returns the number of pieces of each "source" or "target" in `pairs`: int64 (B,)."""
        offsets = self._offsets[side]
        return np.diff(offsets) if pairs is None else offsets[pairs + 1] - offsets[pairs]

    def pieces(self, side: str, pairs: np.ndarray) -> np.ndarray:
        """Concatenates the pieces of the source or target sentences with indices `pairs`."""
        lengths = self.lengths(side, pairs)
        ends = np.cumsum(lengths)
        starts = self._offsets[side][pairs]
        places = np.repeat(starts - ends + lengths, lengths) + np.arange(lengths.sum())
        return self._ids[side][places]

    def rows(self, side: str, pairs: np.ndarray) -> list[list[int]]:
        """Returns the pieces of each source or target sentence with an index in `pairs`."""
        pieces = iter(self.pieces(side, pairs).tolist())
        return [list(itertools.islice(pieces, x)) for x in self.lengths(side, pairs).tolist()]


class TokenStore(Sentences):
    """The token ids of a parallel corpus, in memory-mapped files that `build` writes.

    The files `source.ids` and `target.ids` contain the pieces of all sentences as uint16 or uint32,
    after the tokenizer's prefixes, without bos and eos. The files `source.offsets` and
    `target.offsets` contain the position of each sentence's first piece, then the total number of
    pieces, as int64. All numbers are little-endian. `meta.json` contains the SHA-256 of each other
    file, verified when it is opened.

    Example:

    >>> pairs = read_parallel("train.en", "train.de")
    >>> store = TokenStore.build("store", pairs, tokenizer)
    >>> print(store.report)
    >>> source_pieces, target_pieces = store.pair(0)

    Args:
        directory: A folder that `build` has written.

    Attributes:
        corpora: Number of pairs of each corpus. The pairs are in the order of the corpora.

    Raises:
        UserError: If the folder is not a token store, or a file is damaged.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        try:
            summary = read_json(self.directory / _SUMMARY)
            for name in _files(summary.setdefault("sides", SIDES)):
                check_sha256(self.directory / name, summary["sha256"][name], name)
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.directory} is no complete token store: {error}. To build the store again, "
                "remove it"
            ) from None
        self.fingerprint: str = summary["fingerprint"]
        self.dropped: dict[str, int] = summary["dropped"]
        self.corpora: list[int] = summary.get("corpora", [summary["pairs"]])

        def mapped(kind: str, dtype: str) -> dict[str, np.ndarray]:
            paths = {side: self.directory / f"{side}.{kind}" for side in summary["sides"]}
            return {x: np.asarray(np.memmap(path, dtype, "r")) for x, path in paths.items()}

        offsets, ids = mapped("offsets", "<i8"), mapped("ids", summary["dtype"])
        super().__init__(offsets, ids, summary.get("source_eos", True))

    @classmethod
    def build(
        cls,
        directory: str | Path,
        pairs: Iterable[Pair],
        tokenizer: Tokenizer,
        max_length: int = 256,
        progress: bool = True,
        fingerprint: str | None = None,
    ) -> "TokenStore":
        """Encodes parallel text, or opens the store if the folder already contains the result.

        Drops and counts pairs in which a sentence is empty or too long. The required memory does
        not depend on the size of the text. A store of another text, tokenizer or maximum length is
        replaced when the new store is complete. Long texts of a language model are not dropped, but
        cut after each `max_length` pieces.

        Args:
            directory: Folder of the store.
            pairs: (source, target) sentences that can be iterated over repeatedly, such as the
                result of `read_parallel`, or several corpora as `Corpora`.
            tokenizer: The tokenizer.
            max_length: Maximum number of pieces per sentence, without eos. Defaults to 256.
            progress: Whether to show a progress bar on stderr. Defaults to True.
            fingerprint: The `TokenStore.fingerprint` that the store must have. Defaults to any.

        Raises:
            UserError: If no pair of a corpus is left, the disk is full, the folder contains other
                files, or the fingerprint of text, tokenizer and `max_length` is not `fingerprint`.
        """
        corpora = pairs if isinstance(pairs, Corpora) else Corpora([pairs])
        directory = Path(directory)
        store = cls(directory) if (directory / _SUMMARY).exists() else None
        if store is None:
            check_is_free(directory)
        if store is not None or fingerprint is not None:
            digest = _digest(tokenizer, max_length)
            for _ in _chunks(corpora.parts, digest):
                pass
            found = digest.hexdigest()
            if fingerprint not in (None, found):
                raise UserError(
                    f"{directory} was encoded from another text or with another tokenizer. Restore "
                    "the text files and the tokenizer of this run, or start a new run"
                )
            if store is not None and store.fingerprint == found:
                return store
        with atomic_write(directory) as partial:
            partial.mkdir()
            _write(partial, directory.name, corpora, tokenizer, max_length, progress)
            shutil.rmtree(directory, ignore_errors=True)
        return cls(directory)

    def __len__(self) -> int:
        return len(self._offsets["target"]) - 1

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source and target pieces of one pair: uint16 or uint32 (length,)."""
        chosen = np.array([range(len(self))[index]])
        return self.pieces("source", chosen), self.pieces("target", chosen)

    @property
    def report(self) -> str:
        """One line of text with the number of kept pairs, and of dropped pairs for each reason."""
        what, dropped = "pairs" if self.are_pairs else "texts", sum(self.dropped.values())
        kept = f"{len(self):,} {what} kept"
        if len(self.corpora) > 1:
            kept += f" ({' + '.join(f'{count:,}' for count in self.corpora)})"
        return f"{kept}, {dropped:,} dropped: {list_reasons(self.dropped)}" if dropped else kept


def _write(
    directory: Path,
    name: str,
    corpora: Corpora,
    tokenizer: Tokenizer,
    max_length: int,
    progress: bool,
) -> None:
    digest = _digest(tokenizer, max_length)
    largest = max(tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size)
    dtype = np.dtype("<u4" if largest > 2**16 else "<u2")
    parts, sides, names = corpora.parts, corpora.sides, _files(corpora.sides)
    dropped = [Counter[str]() for _ in parts]
    ends, counts = dict.fromkeys(sides, 0), [0] * len(parts)
    encode, unit = (_encode, " pairs") if sides == SIDES else (partial(_cut, rest=[]), " texts")
    with ExitStack() as stack:
        files = {name: stack.enter_context((directory / name).open("wb")) for name in names}
        bar = stack.enter_context(Bar("encoding", unit=unit, disable=not progress))
        for side in sides:
            files[f"{side}.offsets"].write(np.zeros(1, "<i8").data)
        for corpus, chunk in _chunks(parts, digest):
            kept = encode(chunk, tokenizer, max_length, dropped[corpus])
            for side, sentences in zip(sides, zip(*kept, strict=True), strict=False):
                lengths = np.fromiter(map(len, sentences), "<i8", len(sentences))
                ids = np.fromiter(itertools.chain.from_iterable(sentences), dtype, lengths.sum())
                files[f"{side}.ids"].write(ids.data)
                files[f"{side}.offsets"].write((ends[side] + np.cumsum(lengths)).data)
                ends[side] += len(ids)
            counts[corpus] += len(kept)
            bar.update(len(chunk))
    if 0 in counts:
        empty = counts.index(0)
        which = f" of corpus {empty}" if len(counts) > 1 else ""
        raise UserError(
            f"no{unit[:-1]}{which} is left for {name}: "
            f"{list_reasons(dropped[empty]) or 'the text is empty'}. "
            f"Read: {dropped[empty].total():,}{unit}"
        )
    summary: dict[str, Any] = {"pairs": sum(counts), "corpora": counts, "dtype": dtype.str}
    summary |= {"fingerprint": digest.hexdigest(), "dropped": sum(dropped, Counter[str]())}
    summary |= {"source_eos": tokenizer.source_eos, "sides": sides}
    summary |= {"sha256": {x: sha256_of(directory / x) for x in names}}
    (directory / _SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _encode(
    chunk: list[Pair], tokenizer: Tokenizer, max_length: int, dropped: Counter[str]
) -> list[tuple[list[int], list[int]]]:
    """Returns the ids of the kept pairs. Counts the other pairs in `dropped`, by reason."""
    sources, targets = map(list, zip(*chunk, strict=True))
    ids = zip(tokenizer.encode_source(sources), tokenizer.encode_target(targets), strict=True)
    kept = []
    for source, target in ids:
        if not source:
            dropped["an empty source"] += 1
        elif not target:
            dropped["an empty target"] += 1
        elif max(len(source), len(target)) > max_length:
            dropped[f"more than {max_length:,} pieces"] += 1
        else:
            source = tokenizer.frame_source(source)[: -1 if tokenizer.source_eos else None]
            kept.append((source, [*tokenizer.target_prefix_ids, *target]))
    return kept


def _cut(
    chunk: list[Any], tokenizer: Tokenizer, max_length: int, dropped: Counter[str], rest: list[int]
) -> list[tuple[list[int]]]:
    """Returns the ids of texts of at most `max_length` pieces, with eos where a document ends.

    Counts empty documents. `rest` has the beginning of a document that goes on in the next chunk.
    """
    texts, kept = [text for (text,) in chunk], []
    for text, ids in zip(texts, tokenizer.encode_target(texts), strict=True):
        pieces, goes_on = [*rest, *ids], text.endswith("\n")
        if not (pieces or goes_on):
            dropped["no text"] += 1
            continue
        pieces += [] if goes_on else [EOS_ID]
        end = len(pieces) - len(pieces) % max_length if goes_on else len(pieces)
        kept += [(pieces[x : min(x + max_length, end)],) for x in range(0, end, max_length)]
        rest[:] = pieces[end:]
    return kept


def list_reasons(dropped: dict[str, int]) -> str:
    """Returns the numbers of dropped pairs, by reason, as text."""
    return ", ".join(f"{count:,} with {reason}" for reason, count in dropped.items())


def _digest(tokenizer: Tokenizer, max_length: int) -> "hashlib._Hash":
    """Returns the begun SHA-256 of tokenizer, maximum length and text."""
    frames = "" if tokenizer.frames == DEFAULT_FRAMES else json.dumps(tokenizer.frames)
    return hashlib.sha256(f"{tokenizer.fingerprint} {max_length}{frames}\n".encode())


def _files(sides: Sequence[str]) -> list[str]:
    return [f"{side}.{kind}" for side in sides for kind in ("ids", "offsets")]


def _chunks(
    parts: Sequence[Iterable[Any]], digest: "hashlib._Hash"
) -> Iterator[tuple[int, list[Any]]]:
    """Yields the number of a corpus and a list of its pairs, and adds them to `digest`."""
    for corpus, part in enumerate(parts):
        digest.update(b"\0\n" * (corpus > 0))
        iterator = iter(part)
        while chunk := list(itertools.islice(iterator, _CHUNK)):
            digest.update("".join(f"{text}\n" for item in chunk for text in item).encode())
            yield corpus, chunk
