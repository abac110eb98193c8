"""The text of a run: the files of its splits, and the same text as token ids."""

import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from keras_transformer._files import atomic_write
from keras_transformer.data.corpus import Pair, download, read_parallel
from keras_transformer.data.held_out import HeldOut, hold_out
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError

if TYPE_CHECKING:
    from keras_transformer.runs.run import Run

Split = Literal["train", "validation", "test"]
TextFiles = tuple[Path, Path | None]


class RunText:
    """Reads the text of a run, and makes it first if the recipe generates or splits it.

    Args:
        run: The run.
    """

    def __init__(self, run: "Run") -> None:
        self._run = run

    def pairs(self, split: Split) -> Iterable[Pair]:
        """Returns the (source, target) pairs of a split. The result can be iterated repeatedly."""
        return read_parallel(*self.files(split))

    def files(self, split: Split) -> TextFiles:
        """Returns the source and target file of a split, or its TSV file and None.

        Generates, splits or downloads the files if needed.

        Raises:
            ValueError: If there is no such split.
            UserError: If the text is missing, or cannot be read or downloaded.
        """
        if split not in get_args(Split):
            raise ValueError(
                f"`split` must be one of {list(get_args(Split))}. Received: split={split!r}"
            )
        if not self.is_kept:
            return self.files_of_recipe(split)
        folder = self._run.directory / "text"
        if not folder.is_dir():
            with atomic_write(folder) as partial:
                partial.mkdir()
                self._write_text(partial)
        data = self._run.recipe.data
        languages = data.source_language, data.target_language
        source, target = (folder / f"{split}.{language}" for language in languages)
        if split == "train" and not source.exists():
            raise UserError(f"{folder} has no training text. A shared run never has it")
        return source, target

    @property
    def is_kept(self) -> bool:
        """Whether the splits are files in the folder `text`."""
        data = self._run.recipe.data
        return data.generator is not None or data.held_out is not None

    def _write_text(self, folder: Path) -> None:
        """Writes the pairs of all splits. No pair is in two splits."""
        languages = self._run.recipe.data.source_language, self._run.recipe.data.target_language
        for split, pairs in self._splits().items():
            source, target = (folder / f"{split}.{language}" for language in languages)
            with source.open("w", encoding="utf-8") as a, target.open("w", encoding="utf-8") as b:
                for pair in pairs:
                    a.write(f"{pair[0]}\n")
                    b.write(f"{pair[1]}\n")

    def _splits(self) -> dict[Split, Iterable[Pair]]:
        data, seed = self._run.recipe.data, self._run.recipe.seed
        if counts := data.held_out:
            corpus = read_parallel(*self.files_of_recipe("train"))
            held_out = hold_out(corpus, counts.validation, counts.test, seed)
            return {
                "test": held_out.test,
                "validation": held_out.validation,
                "train": _training_pairs(held_out),
            }
        from keras_transformer.data.numbers_and_dates import generate_pairs

        sizes: Any = data.generator
        languages = data.source_language, data.target_language
        count = sizes.test + sizes.validation + sizes.train
        pairs = iter(generate_pairs(count, *languages, seed=seed))
        splits: tuple[Split, ...] = ("test", "validation", "train")
        return {split: list(itertools.islice(pairs, getattr(sizes, split))) for split in splits}

    def files_of_recipe(self, split: Split) -> TextFiles:
        """Returns the files of a split. Downloads missing files if `data.directory` is not set."""
        pair = getattr(self._run.recipe.data, split)
        source = self._locate(pair.source)
        return source, None if pair.target is None else self._locate(pair.target)

    def _locate(self, name: str) -> Path:
        data = self._run.recipe.data
        folder = data.directory or Path()
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        if data.directory or data.download is None or name not in data.download.sha256:
            place = f" in {self._run.recipe_path}" if self._run.recipe_path.exists() else ""
            raise UserError(
                f"no file {folder / name}: set data.directory{place} to the folder of the text "
                "(keras-transformer train: with --data-dir)"
            )
        return download(name, data.download.url, data.download.sha256[name])

    def fingerprints(self) -> dict[str, str]:
        """Returns a dict from each encoded split to the fingerprint of its text and tokenizer.

        The fingerprint is a SHA-256. It also depends on the maximum length of a sentence.
        """
        path = self._run.fingerprints_path
        try:
            return dict(json.loads(path.read_bytes())) if path.exists() else {}
        except (ValueError, TypeError, RecursionError, OSError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None

    def add_fingerprint(self, split: Split, fingerprint: str) -> None:
        """Stores the fingerprint of a split in fingerprints.json."""
        found = self.fingerprints()
        if found.get(split) != fingerprint:
            with atomic_write(self._run.fingerprints_path) as partial:
                content = json.dumps({**found, split: fingerprint}, indent=2)
                partial.write_text(content + "\n", "utf-8")

    @contextmanager
    def training_store(self, tokenizer: Tokenizer) -> Iterator[TokenStore]:
        """Yields the training text as token ids: the run's store, or a temporary one.

        Raises:
            UserError: If the text files are not those that the run was trained on.
        """
        folder, fingerprint = self._run.store_dir / "train", self.fingerprints().get("train")
        if fingerprint and folder.is_dir():
            if (store := TokenStore(folder)).fingerprint == fingerprint:
                yield store
                return
        with tempfile.TemporaryDirectory() as temporary:
            length = self._run.recipe.data.max_length
            store = TokenStore.build(temporary, self.pairs("train"), tokenizer, length)
            if fingerprint not in (None, store.fingerprint):
                raise UserError(
                    f"the training text is not that of {self._run.directory}: restore the text "
                    "files of this run"
                )
            yield store


def _training_pairs(held_out: HeldOut) -> Iterator[Pair]:
    """Yields the pairs for training, then prints how many pairs are in no split."""
    yield from held_out.train()
    print(
        f"held out: {len(held_out.validation):,} pairs for validation, {len(held_out.test):,} for "
        f"test; {held_out.dropped:,} others dropped: they share a sentence with a held-out pair",
        file=sys.stderr,  # Standard output may be that of `translate`.
    )
