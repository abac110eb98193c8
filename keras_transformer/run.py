"""The folder of a run: recipe, tokenizer, checkpoints, model, logs and scores."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from keras_transformer._files import atomic_write, damaged_keras_file, read_config
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.recipe import Generator, Recipe, load_recipe

if TYPE_CHECKING:
    from keras_transformer.data.corpus import Pair
    from keras_transformer.data.tokenizer import Tokenizer

Split = Literal["train", "validation", "test"]
TextFiles = tuple[Path, Path | None]


class Run:
    """Reads and writes the folder of a training run, which contains these files.

        recipe.yaml       the recipe, with all settings
        text/             the generated sentence pairs, if the recipe has a generator
        tokenizer/        the tokenizer, written by `Tokenizer.save`
        store/            training and validation text as token ids
        checkpoints/      step-00001000, step-00002000, ...
        model.keras       the finished model
        logs/             event files for TensorBoard
        scores.json       all scores of this run

    Example:

    ```python
    run = Run.open("runs/quickstart")
    translator = Translator(run.model(), run.tokenizer())
    ```

    Args:
        directory: The folder.
        recipe: The recipe of the run.
    """

    def __init__(self, directory: str | Path, recipe: Recipe) -> None:
        self.recipe = recipe
        self.directory = Path(directory)
        self.recipe_path = self.directory / "recipe.yaml"
        self.tokenizer_dir = self.directory / "tokenizer"
        self.store_dir = self.directory / "store"
        self.checkpoints_dir = self.directory / "checkpoints"
        self.model_path = self.directory / "model.keras"
        self.logs_dir = self.directory / "logs"
        self.scores_path = self.directory / "scores.json"

    @classmethod
    def create(cls, directory: str | Path, recipe: Recipe) -> "Run":
        """Creates the folder of a new run.

        Raises:
            UserError: If the folder already contains a run, or a file of the recipe is missing. The
                folder is then not created.
        """
        run = cls(directory, recipe)
        if run.recipe_path.exists():
            raise UserError(
                f"{run.directory} already holds a run: continue it with --resume, remove it, "
                "or choose another folder with --run"
            )
        if recipe.data.generator is None:
            for split in get_args(Split):
                run._files_of_recipe(split)
        with atomic_write(run.recipe_path) as partial:
            partial.write_text(recipe.to_yaml(), encoding="utf-8")
        return run

    @classmethod
    def open(cls, directory: str | Path) -> "Run":
        """Opens an existing run."""
        path = Path(directory) / "recipe.yaml"
        if not path.is_file():
            raise UserError(f"{directory} is no run folder: it holds no recipe.yaml")
        return cls(directory, load_recipe(path))

    @classmethod
    def resume(cls, directory: str | Path, recipe: Recipe) -> "Run":
        """Opens an existing run to continue it.

        Raises:
            UserError: If `recipe` differs from the recipe of the run. The message lists the keys.
        """
        run = cls.open(directory)
        if differences := run.recipe.differences(recipe):
            raise UserError(
                f"{run.directory} was started with another recipe; the recipes differ in "
                + ", ".join(differences)
            )
        return cls(directory, recipe)

    def checkpoints(self) -> list[Path]:
        """Returns the folders of complete checkpoints, oldest first."""
        return checkpoint_folders(self.checkpoints_dir)

    def tokenizer(self) -> "Tokenizer":
        """Loads the tokenizer of the model."""
        from keras_transformer.data.tokenizer import Tokenizer

        if not self.tokenizer_dir.is_dir():
            raise UserError(f"{self.directory} has no tokenizer yet: train the run first")
        return Tokenizer.load(self.tokenizer_dir)

    def model(self) -> Any:
        """Loads the finished model for inference."""
        return load_model(self.model_path)

    def pairs(self, split: Split) -> "Iterable[Pair]":
        """Returns the (source, target) sentences of a split, for one or more iterations."""
        from keras_transformer.data.corpus import read_parallel

        return read_parallel(*self.text(split))

    def text(self, split: Split) -> TextFiles:
        """Returns the two files of a split, or a TSV file and None; generates text if needed."""
        data = self.recipe.data
        if data.generator is None:
            return self._files_of_recipe(split)
        folder = self.directory / "text"
        if not folder.is_dir():
            with atomic_write(folder) as partial:
                _generate(self.recipe, data.generator, partial)
        sides = (data.source_language, data.target_language)
        return folder / f"{split}.{sides[0]}", folder / f"{split}.{sides[1]}"

    def scores(self) -> list[dict[str, Any]]:
        """Returns all entries of scores.json, oldest first."""
        if not self.scores_path.exists():
            return []
        return json.loads(self.scores_path.read_text(encoding="utf-8"))

    def add_score(
        self, *, split: Split, metric: str, score: float, signature: str, options: SearchOptions
    ) -> None:
        """Appends a score of `model.keras` to scores.json."""
        entry = {
            "split": split,
            "metric": metric,
            "score": score,
            "signature": signature,
            "checkpoint_sha256": hashlib.sha256(self.model_path.read_bytes()).hexdigest(),
            "beam_size": options.beam_size,
            "length_penalty": options.length_penalty,
            **options.model_dump(exclude_defaults=True),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with atomic_write(self.scores_path) as partial:
            partial.write_text(json.dumps([*self.scores(), entry], indent=2) + "\n", "utf-8")

    def _files_of_recipe(self, split: Split) -> TextFiles:
        """Returns the files of a split in the recipe; downloads them if no folder is given."""
        pair = getattr(self.recipe.data, split)
        source = self._locate(pair.source)
        return source, None if pair.target is None else self._locate(pair.target)

    def _locate(self, name: str) -> Path:
        data = self.recipe.data
        folder = data.directory or Path()
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        if data.directory or data.download is None or name not in data.download.sha256:
            raise UserError(f"no file {folder / name}: set the folder of the data with --data-dir")
        from keras_transformer.data.download import download

        return download(name, data.download.url, data.download.sha256[name])


def checkpoint_folders(directory: str | Path) -> list[Path]:
    """Returns the folders named `step-` followed by eight digits, oldest first."""
    entries = Path(directory).glob("step-*")
    return sorted(x for x in entries if re.fullmatch(r"step-\d{8}", x.name) and x.is_dir())


def load_model(path: str | Path) -> Any:
    """Loads a .keras file of a model of this package.

    Raises:
        UserError: If the file is missing or damaged, or its configuration is too large.
    """
    import keras

    from keras_transformer.models import ARCHITECTURES, architecture

    path = Path(path)
    if not path.is_file():
        raise UserError(f"no model {path}: has the run been trained?")
    for name in ARCHITECTURES:
        architecture(name)  # registers its classes with Keras
    read_config(path)
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:  # zipfile, json, h5py and Keras raise different errors
        raise damaged_keras_file(path, error) from error


def _generate(recipe: Recipe, sizes: Generator, folder: Path) -> None:
    """Generates and writes the pairs of all splits. Each pair is in only one split."""
    from keras_transformer.data.numbers_and_dates import generate_pairs

    languages = recipe.data.source_language, recipe.data.target_language
    counts = {"test": sizes.test, "validation": sizes.validation, "train": sizes.train}
    pairs = iter(generate_pairs(sum(counts.values()), *languages, seed=recipe.seed))
    folder.mkdir()
    for split, count in counts.items():
        sides = zip(*itertools.islice(pairs, count), strict=True)
        for language, lines in zip(languages, sides, strict=True):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
