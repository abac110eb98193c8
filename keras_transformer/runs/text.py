"""The text of a run: the files of its splits, and the same text as token ids."""

import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from keras_transformer._files import atomic_write, read_json, write_json
from keras_transformer.data.filters import filtered, language_test
from keras_transformer.data.held_out import hold_out
from keras_transformer.data.parallel_text import SIDES, Corpora, read_parallel
from keras_transformer.data.text_files import COMPRESSED, Pair, Repeatable, download, read_texts
from keras_transformer.data.token_store import TokenStore, list_reasons
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.recipe.sections import Filters
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.folder import run_command

Split = Literal["train", "validation", "test"]
TextFiles = tuple[Path, Path | None]


class RunText:
    """Reads the text of a run, and makes it first if the recipe generates or splits it."""

    def __init__(self, directory: Path, recipe: Recipe) -> None:
        self.directory, self.recipe = directory, recipe
        self._fingerprints_path = directory / "fingerprints.json"

    def pairs(self, split: Split, tagged: bool = True) -> Corpora:
        """Returns the (source, target) pairs of a split. The result can be iterated repeatedly.

        The tags of the recipe precede the sources, unless `tagged` is False. With
        `data.both_directions`, the pairs of each corpus for training follow once more, the sides
        exchanged. For a language model, the parts have texts (see `read_texts`).
        """
        data = self.recipe.data
        if data.documents:
            return self._texts(split, data.documents)
        both = split == "train" and data.both_directions
        tags = [corpus.tag for corpus in data.corpora(split)] or [None]
        parts = []
        for number, tag in enumerate(tags):
            pairs = read_parallel(*self.files(split, number), self._languages)
            prefix = f"{tag} " if tag and tagged else ""
            parts.append(Repeatable(partial(_with_prefix, pairs, prefix, both)))
        return Corpora(parts)

    def _texts(self, split: Split, documents: str) -> Corpora:
        data, part = self.recipe.data, None
        if data.held_out:
            last = -data.held_out.validation
            part = slice(last) if split == "train" else slice(last, None)
        paths = (self.files_of_recipe(split, x)[0] for x in range(len(data.corpora(split))))
        parts = [Repeatable(partial(read_texts, path, documents, part)) for path in paths]
        return Corpora(parts, SIDES[1:])

    @property
    def _languages(self) -> tuple[str, str]:
        return self.recipe.data.source_language, self.recipe.data.target_language

    def files(self, split: Split, number: int = 0) -> TextFiles:
        """Returns the source and target file of a split, or its file with both sides and None.

        `number` is that of a corpus in a list of corpora, which only training text can have.
        Generates, filters, splits or downloads the files if needed. Raises `UserError` if that
        fails.
        """
        data = self.recipe.data
        is_filtered = split == "train" and data.filters != Filters()
        if data.generator is None and data.held_out is None and not is_filtered:
            return self.files_of_recipe(split, number)
        folder = self.directory / "text"
        if not folder.is_dir():
            with atomic_write(folder) as partial:
                partial.mkdir()
                self._write_splits(partial)
                for path in partial.glob("filtered.*"):
                    path.unlink()
        return self._pair(folder, _name(split, number))

    def _pair(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Returns files of both sides. With one language on both, the names tell the sides too."""
        source, target = self._languages
        if source.lower() == target.lower():  # Some systems do not tell .en from .EN.
            source, target = f"source.{source}", f"target.{target}"
        return folder / f"{name}.{source}", folder / f"{name}.{target}"

    def _write(self, folder: Path, name: str, pairs: Iterable[Pair]) -> tuple[Path, Path]:
        x, y = self._pair(folder, name)
        with x.open("w", encoding="utf-8") as a, y.open("w", encoding="utf-8") as b:
            for pair in pairs:
                a.write(f"{pair[0]}\n")
                b.write(f"{pair[1]}\n")
        return x, y

    def _corpus(self, folder: Path, number: int = 0) -> Iterable[Pair]:
        """Returns a corpus of `data.train`. Filters are applied once, into files in `folder`."""
        pairs = read_parallel(*self.files_of_recipe("train", number), self._languages)
        filters = self.recipe.data.filters
        if filters == Filters():
            return pairs
        counts: Counter[str] = Counter()
        settings = filters.model_dump()
        if filters.wrong_language:
            settings["wrong_language"] = language_test(self._languages)
        files = self._write(folder, "filtered", filtered(pairs, counts, **settings))
        kept, dropped = counts.pop("kept", 0), list_reasons(counts) or "none"
        which = f" of corpus {number}" if isinstance(self.recipe.data.train, list) else ""
        print(f"filters{which}: {kept:,} pairs kept; dropped: {dropped}", file=sys.stderr)
        return read_parallel(*files)

    def _write_splits(self, folder: Path) -> None:
        """Writes the text that is generated, filtered or held out, and prints what is dropped."""
        data, seed = self.recipe.data, self.recipe.seed
        if data.generator:
            from keras_transformer.data.numbers_and_dates import generate_pairs

            sizes: dict[str, int] = dict(data.generator)
            pairs = iter(generate_pairs(sum(sizes.values()), *self._languages, seed=seed))
            for split in ("test", "validation", "train"):
                self._write(folder, split, itertools.islice(pairs, sizes[split]))
        elif counts := data.held_out:
            held_out = hold_out(self._corpus(folder), counts.validation, counts.test, seed)
            self._write(folder, "test", held_out.test)
            self._write(folder, "validation", held_out.validation)
            self._write(folder, "train", held_out.train())
            print(
                f"held out: {len(held_out.validation):,} pairs for validation, "
                f"{len(held_out.test):,} for test; {held_out.dropped:,} others dropped: they share "
                "a sentence with a held-out pair",
                file=sys.stderr,  # Standard output may be that of `translate`.
            )
        else:
            for number in range(len(data.corpora("train"))):
                self._write(folder, _name("train", number), self._corpus(folder, number))

    def files_of_recipe(self, split: Split, number: int = 0) -> TextFiles:
        """Returns the files of a split, or of a corpus of `data.train`, before filters.

        Raises `UserError` if a model has not yet made a side, see `translate_corpora`.
        """
        source, target = self.given_files(split, number)
        if split != "train" or number not in self.recipe.data.made_corpora():
            assert source is not None
            return source, target
        if not (made := self.made_file(number)).exists():
            name = self.recipe.model.architecture
            command = run_command(self.directory, name, "train", "--resume")
            raise UserError(f"there is no {made} yet: {command}")
        return source or made, target or made

    def made_file(self, number: int) -> Path:
        """Returns the place of the side that a model makes for a corpus of `data.train`."""
        pair = self._pair(self.directory / "translations", _name("train", number))
        return pair[self.recipe.data.corpora("train")[number].source is not None]

    def given_files(self, split: Split, number: int = 0) -> tuple[Path | None, Path | None]:
        """Returns the files that the recipe names for a split, or for a corpus of `data.train`.

        Downloads missing files if `data.directory` is not set.
        """
        if not (corpora := self.recipe.data.corpora(split)):
            raise UserError(
                f"{self.directory / 'recipe.yaml'} names no text, as that of an imported model. "
                "Give files, or fine-tune the model on your text: keras-transformer init --from RUN"
            )
        pair = corpora[number]
        return self._locate(pair.source), self._locate(pair.target)

    def _locate(self, name: str | None) -> Path | None:
        if name is None:
            return None
        data = self.recipe.data
        folder = data.directory or Path()
        for candidate in (folder / f"{name}{suffix}" for suffix in ("", *COMPRESSED)):
            if candidate.is_file():
                return candidate
        if data.directory or data.download is None or name not in data.download.sha256:
            raise UserError(
                f"no file {folder / name}: set data.directory in the recipe to the folder of the "
                "text (keras-transformer train: with --data-dir)"
            )
        return download(name, data.download.url, data.download.sha256[name])

    def fingerprints(self) -> dict[str, str]:
        """Returns the SHA-256 of text, tokenizer and maximum length of each encoded split."""
        path = self._fingerprints_path
        try:
            return dict(read_json(path)) if path.exists() else {}
        except (ValueError, TypeError, OSError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None

    def add_fingerprint(self, name: Split | Literal["teacher"], fingerprint: str) -> None:
        """Stores the fingerprint of a split, or of the teacher's model, in fingerprints.json."""
        write_json(self._fingerprints_path, {**self.fingerprints(), name: fingerprint})

    @contextmanager
    def training_store(self, tokenizer: Tokenizer) -> Iterator[TokenStore]:
        """Yields the training text as token ids: the run's store, or a temporary one."""
        folder, fingerprint = self.directory / "store" / "train", self.fingerprints().get("train")
        if fingerprint and folder.is_dir():
            if (store := TokenStore(folder)).fingerprint == fingerprint:
                yield store
                return
        with tempfile.TemporaryDirectory() as temporary:
            length = self.recipe.data.max_length
            pairs = self.pairs("train")
            yield TokenStore.build(temporary, pairs, tokenizer, length, fingerprint=fingerprint)


def _name(split: Split, number: int) -> str:
    """Returns the name, without suffix, of the files of a corpus in the folder `text` of a run."""
    return f"{split}.{number}" if number else split


def _with_prefix(pairs: Iterable[Pair], prefix: str, both_directions: bool) -> Iterator[Pair]:
    """Yields the pairs of a corpus, a prefix before each source, and maybe also in reverse."""
    for step in (1, -1) if both_directions else (1,):
        for pair in pairs:
            source, target = pair[::step]
            # An empty source stays empty, so that `TokenStore.build` drops it.
            yield prefix + source if source.strip() else source, target
