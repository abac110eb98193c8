"""Reads and writes the folder of a run: recipe, tokenizer, checkpoints, model, logs and scores."""

import functools
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from keras_transformer._backend import without_tensorflow
from keras_transformer._files import (
    read_entries,
    read_text,
    remove,
    sha256_of,
    write_json,
    write_text,
)
from keras_transformer.data.languages import closest_language
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import find_run, load_recipe
from keras_transformer.recipe.sections import Corpus
from keras_transformer.recipe.settings import TRANSLATION, Recipe, Task, all_keys
from keras_transformer.runs.checkpoints import (
    CHECKPOINT_MEMBER,
    CHECKPOINT_MODEL,
    STATE,
    TOKENIZER_MEMBER,
    best_checkpoints,
    checkpoint_folders,
    checkpoint_step,
    load_history,
    read_member,
    write_members,
)
from keras_transformer.runs.folder import run_command, training_lock, writing_lock
from keras_transformer.runs.scores import RunScores
from keras_transformer.runs.text import RunText, Split

Checkpoint = Literal["best", "last"] | int
# What a run writes beside its locks.
_PLACES = (
    *("recipe.yaml", "text", "translations", "tokenizer", "store", "fingerprints.json"),
    *("checkpoints", "model.keras", "logs", "origin.json", "scores.json", "shortlist.npz"),
    *("history.json", "word_forms.json", "hypotheses"),
)


class Run:
    """Reads and writes the folder of a training run, which contains these files.

        recipe.yaml       the recipe, with all settings
        history.json      the backend, and changes of backend and settings with their steps
        translations/     the sides of training text that other runs made
        text/             the splits, if the recipe has a generator, filters or held_out
        tokenizer/        the tokenizer, written by `Tokenizer.save`
        store/            training and validation text as token ids
        fingerprints.json the SHA-256 of the text and tokenizer of each split in `store/`, and of
                          the teacher's model
        checkpoints/      step-00001000, step-00002000, ...
        model.keras       the finished model; model.previous.keras is the one before
        logs/             event files for TensorBoard
        .ctranslate2/     the model converted for the engine ctranslate2
        origin.json       where an imported model comes from
        word_forms.json   the usual case of words, and words that the model copies
        shortlist.npz     the most probable translations of each source token
        scores.json       all scores of this run
        hypotheses/       the translations of the last evaluation of each split
        .lock             locked while a process trains
        .write.lock       locked while a process writes the model, a conversion, shortlist or scores

    Example:

    ```python
    run = Run.open("runs/quickstart")
    translator = open_translator(run)
    ```

    Args:
        directory: The folder of the run.
        recipe: The recipe of the run. Defaults to None, which opens an existing run as `open` does.

    Attributes:
        text: A `RunText`, the text of the splits.
        scores: A `RunScores`, the scores and the translations that were scored.
    """

    def __init__(self, directory: str | Path, recipe: Recipe | None = None) -> None:
        if recipe is None:
            directory = find_run(directory)
            recipe = load_recipe(directory / "recipe.yaml", is_of_run=True)
        self.recipe = recipe
        self.directory = Path(directory).absolute()
        self.recipe_path = self.directory / "recipe.yaml"
        self.history_path = self.directory / "history.json"
        self.tokenizer_dir = self.directory / "tokenizer"
        self.store_dir = self.directory / "store"
        self.fingerprints_path = self.directory / "fingerprints.json"
        self.checkpoints_dir = self.directory / "checkpoints"
        self.model_path = self.directory / "model.keras"
        self.logs_dir = self.directory / "logs"
        self.scores_path = self.directory / "scores.json"
        self.origin_path = self.directory / "origin.json"
        self.shortlist_path = self.directory / "shortlist.npz"
        self.word_forms_path = self.directory / "word_forms.json"
        self.text = RunText(self.directory, recipe)
        self.scores = RunScores(self.directory, self.text)
        self._is_new = False
        self._opened = functools.cache(Run.open)  # the other runs that the recipe names

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    @classmethod
    def create(cls, directory: str | Path, recipe: Recipe) -> "Run":
        """Creates the folder of a new run, with its recipe.

        Raises:
            UserError: If the folder contains files that a run writes, or cannot be created. If a
                text file of the recipe is missing. After an error, the folder is unchanged.
        """
        run = cls(directory, recipe)
        for key in ("initial_run", "teacher"):
            run.other_run(key)
        for split in get_args(Split):
            for number in range(len(recipe.data.corpora(split))):
                run.text.given_files(split, number)
        for corpus in recipe.data.made_corpora().values():
            run.teacher(corpus)
        if found := [name for name in _PLACES if os.path.lexists(run.directory / name)]:
            raise UserError(
                f"{directory} already holds {', '.join(found)}, which a new run would replace: "
                f"continue the run ({run.resume_command}), or choose another folder"
            )
        try:
            write_text(run.recipe_path, recipe.to_yaml())
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{directory} cannot be a run folder: {reason}") from None
        run._is_new = True
        return run

    def write(self, model: Any, tokenizer: Tokenizer) -> None:
        """Writes recipe, tokenizer and finished model into the run's folder, which is new."""
        self.directory.mkdir()
        self.recipe_path.write_text(self.recipe.to_yaml(), "utf-8")
        tokenizer.save(self.tokenizer_dir)
        with without_tensorflow():
            model.save(self.model_path)
        write_members(self.model_path, {TOKENIZER_MEMBER: tokenizer.fingerprint})

    @contextmanager
    def training(self) -> Iterator[None]:
        """Locks the run while a process trains it, see `training_lock`.

        If a new run fails before its first checkpoint, its files are removed, unless it has begun
        to make text. An interrupt, such as Ctrl-C, removes nothing.
        """
        with training_lock(self.directory):
            try:
                yield
            except Exception:
                has_made = self.checkpoints() or (self.directory / "translations").exists()
                if self._is_new and not has_made:
                    for name in (*_PLACES, ".lock", ".write.lock"):
                        remove(self.directory / name)
                    with suppress(OSError):  # The folder has files of the user.
                        self.directory.rmdir()
                raise

    @classmethod
    def open(cls, directory: str | Path) -> "Run":
        """Opens an existing run.

        `directory` is a run folder, or the name of a run in the package, such as "tatoeba_en_de".
        Raises `UserError` if there is no such run, or if its recipe is not valid.
        """
        return cls(directory)

    @classmethod
    def resume(cls, directory: str | Path, recipe: Recipe) -> "Run":
        """Opens an existing run to continue it, with the same or changed settings.

        The recipe reference tells which settings may change. `record` writes the changes. Raises
        `UserError` if other settings differ, or if more than `training.steps` steps are finished.
        """
        run = cls(find_run(directory), recipe)
        run._changes()
        return run

    def other_run(self, role: Literal["initial_run", "teacher"]) -> "Run | None":
        """Opens the run from which this run takes its tokenizer, if the recipe names one.

        `role` is the key of the section `training`. Raises `UserError` if there is no such run, or
        if its recipe has another task or another `tokenizer`.
        """
        if (name := getattr(self.recipe.training, role)) is None:
            return None
        (run,) = opened_runs(self._opened(name), self.recipe.task)
        for key, (theirs, ours) in run.recipe.differences(self.recipe).items():
            if key.startswith("tokenizer."):
                raise UserError(
                    f"training.{role}: {name} has {key}={theirs}, and the recipe has {ours}. "
                    f"Remove the section `tokenizer`, or copy it from {run.recipe_path}"
                )
        return run

    @property
    def base(self) -> Path | None:
        """The model of `training.initial_run`, if this run keeps only what it changes in it."""
        training = self.recipe.training
        if training.initial_run is None or not (training.lora_rank or training.frozen):
            return None
        return self._opened(training.initial_run).model_path

    def teacher(self, corpus: Corpus) -> "Run":
        """Opens the run whose model makes a side of a corpus for training.

        Raises `UserError` if there is no such model, or if it is for other languages.
        """
        run = self._opened(corpus.translated_by or "")
        ours, theirs = self.recipe.data, run.recipe.data
        needed = [ours.source_language, ours.target_language][:: 1 if corpus.source else -1]
        found = [theirs.source_language, theirs.target_language]
        directions = [found, found[::-1]][: 1 + theirs.both_directions]
        pairs = (zip(needed, x, strict=True) for x in directions)
        if not any(all(closest_language(a, [b], True) for a, b in x) for x in pairs):
            raise UserError(
                f"translated_by: {corpus.translated_by} must translate from {needed[0]} to "
                f"{needed[1]}. Received: a run from {found[0]} to {found[1]}"
            )
        run.model_place()
        return run

    def _changes(self) -> dict[str, tuple[Any, Any]]:
        """Returns the settings that differ from `recipe.yaml`, if they may: old and new values."""
        changes = load_recipe(self.recipe_path).differences(self.recipe)
        fixed = changes.keys() - {key.name for key in all_keys() if key.may_change}
        refused = [f"{x} ({a!r} and {b!r})" for x, (a, b) in changes.items() if x in fixed]
        done = checkpoint_step(self.checkpoints()[-1]) if self.checkpoints() else 0
        if "training.steps" in changes and self.recipe.training.steps < done:
            before, after = changes["training.steps"]
            refused.append(f"training.steps ({before} and {after}; {done} steps are already done)")
        if refused:
            raise UserError(
                f"{self.directory} cannot resume with these changes; start a new run for them, or "
                f"resume without them: {self.resume_command}. The recipes of the run and of the "
                f"command differ in {', '.join(refused)}"
            )
        return changes

    def record(self, step: int, backend: str) -> dict[str, tuple[Any, Any]]:
        """Stores the recipe in `recipe.yaml`, and changes of settings and backend in the history.

        The changes take effect when `step` steps are finished. Returns the old and the new value of
        each changed setting, and of "the backend". Raises `UserError` if a setting must not change.
        """
        entries = self.history()
        changes = self._changes() if self.recipe_path.exists() else {}
        before = entries[-1].get("backend") if entries else None
        if changes or before != backend:
            time = datetime.now(UTC).isoformat(timespec="microseconds")
            entry = {"step": step, "backend": backend, "changes": changes, "time": time}
            write_json(self.history_path, [*entries, entry])
            write_text(self.recipe_path, self.recipe.to_yaml())
        of_backend = {"the backend": (before, backend)} if before not in (None, backend) else {}
        return of_backend | changes

    def history(self) -> list[dict[str, Any]]:
        """Returns all entries of history.json, oldest first. `UserError` if it is damaged."""
        return read_entries(self.history_path)

    def checkpoints(self) -> list[Path]:
        """Returns the folders of complete checkpoints, oldest first."""
        return checkpoint_folders(self.checkpoints_dir)

    def checkpoint(self, which: Checkpoint) -> Path:
        """Returns a checkpoint's folder. `"best"` is that with the lowest validation loss."""
        paths = self.checkpoints()
        if not paths and not self.model_path.is_file():
            raise self.unfinished()
        if which == "last":
            chosen = paths[-1:]
        elif which == "best":
            chosen = best_checkpoints(paths, load_history(paths[-1]), 1) if paths else []
        else:
            chosen = [path for path in paths if checkpoint_step(path) == which]
        if not chosen:
            raise UserError(
                f"{self.directory} has no checkpoint {which!r}: use best, last, or the step of a "
                f"checkpoint. Steps of the checkpoints: {self._steps() or 'none'}"
            )
        return chosen[0]

    def tokenizer(self) -> Tokenizer:
        """Loads the tokenizer of the model."""
        if not self.tokenizer_dir.is_dir():
            raise UserError(
                f"{self.directory} has no tokenizer yet. Train it first: {self.resume_command}"
            )
        return Tokenizer.load(self.tokenizer_dir)

    def model_place(self, checkpoint: Checkpoint | None = None) -> Path:
        """Returns the file of the finished model, or the folder of a checkpoint.

        Warns if the finished model is older than the newest checkpoint. If there is no such model,
        the message of the `UserError` has a command that helps.
        """
        if checkpoint is not None:
            return self.checkpoint(checkpoint)
        if not self.model_path.is_file():
            raise self.unfinished()
        if not self.has_current_model() and zipfile.is_zipfile(self.model_path):
            newest = self.checkpoints()[-1].name
            warnings.warn(
                f"{self.model_path} is older than the newest checkpoint, {newest}",
                stacklevel=1,  # so that it is shown once
            )
        return self.model_path

    def hashes(self, checkpoint: Checkpoint | None = None) -> list[str]:
        """Returns the SHA-256 of the files of the model, as in `model_place`, and the tokenizer."""
        place = self.model_place(checkpoint)
        model = place / CHECKPOINT_MODEL if place.is_dir() else place
        return [sha256_of(path) for path in (model, *sorted(self.tokenizer_dir.glob("*")))]

    @property
    def resume_command(self) -> str:
        """The command that continues the training."""
        return self.command("train", "--resume")

    def command(self, name: str, *options: str) -> str:
        """Returns a command line for this run, to show to the user (also in pages)."""
        return run_command(self.directory, self.recipe.model.architecture, name, *options)

    def unfinished(self) -> UserError:
        """Returns the error for a run without a finished model, with a command that helps."""
        steps, mend = self._steps(), f"To finish it: {self.resume_command}"
        if self.is_training():
            mend = "Another process is training: wait for its end"
        other = f". Or choose a checkpoint with `checkpoint`: best, last or a step ({steps})"
        why = f"no model {self.model_path}, because the training has not finished"
        return UserError(f"{why}. {mend}{other if steps else ''}")

    def _steps(self) -> str:
        return ", ".join(str(checkpoint_step(path)) for path in self.checkpoints())

    def is_training(self) -> bool:
        """Returns whether a process trains in the folder now."""
        path = self.directory / ".lock"
        if not path.is_file():
            return False
        try:
            with FileLock(path, timeout=0):
                return False
        except OSError as error:  # Nothing trains in a read-only folder.
            return isinstance(error, Timeout)

    def require_transformer(self, format: str) -> None:
        """Raises UserError if the recipe's model is not a Transformer, which `format` needs."""
        is_transformer = self.recipe.model.architecture == "transformer"
        self.require(is_transformer, f"{format} supports only the architecture transformer")

    def require(self, holds: bool, rule: str) -> None:
        """Raises UserError if a rule for the recipe's model does not hold."""
        if not holds:
            received = f"model.architecture={self.recipe.model.architecture} of {self.directory}"
            raise UserError(f"{rule}. Received: {received}")

    def has_current_model(self) -> bool:
        """Returns whether `model.keras` exists and was made with the newest checkpoint."""
        paths = self.checkpoints()
        if not paths:
            return self.model_path.is_file()
        digest = read_member(self.model_path, CHECKPOINT_MEMBER)
        return digest is not None and f'"{digest}"' in read_text(paths[-1] / STATE)

    def writing(self) -> FileLock:
        """Returns the `writing_lock` of the folder."""
        return writing_lock(self.directory)


Runs = Run | str | Path | Sequence[Run | str | Path]


def opened_runs(runs: Runs, task: Task = TRANSLATION) -> list[Run]:
    """Returns the `Run` of each run, run folder or name. Raises `UserError` for another task."""
    names = [runs] if isinstance(runs, Run | str | Path) else runs
    opened = [run if isinstance(run, Run) else Run.open(run) for run in names]
    for run in opened:
        own, use = run.recipe.task, run.command(run.recipe.task.commands[0])
        run.require(own is task, f"only a {task.name} can do this; for this run: {use}")
    return opened
