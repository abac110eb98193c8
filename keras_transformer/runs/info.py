"""Describes a run from its files."""

import math
import shlex
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py

from keras_transformer._backend import installed_backends
from keras_transformer._files import read_config, read_json
from keras_transformer.errors import UserError
from keras_transformer.models.seq2seq import command_line
from keras_transformer.recipe.run_folders import find_run
from keras_transformer.runs.checkpoints import (
    ValidationHistory,
    checkpoint_step,
    load_history,
    logged_scalars,
)
from keras_transformer.runs.run import Run

_SIZES = (
    *("num_layers", "num_decoder_layers", "d_model", "d_embedding", "kernel_size"),
    *("num_heads", "d_ff", "position_encoding"),
)
_MOST_JSON_BYTES = 16 * 1024 * 1024
# A package that each export format needs.
_EXPORTS = {"saved_model": "tensorflow_text", "ctranslate2": "ctranslate2", "onnx": "onnxruntime"}


def run_info(directory: str | Path) -> dict[str, Any]:
    """Describes a run: what it is, how far its training is, its scores, and the next commands.

    A value that the files of the run do not tell is None. Files that cannot be read are listed in
    `"problems"`.

    Args:
        directory: As in `Run.open`.

    Returns:
        A dictionary that `json.dumps` accepts.

    Raises:
        UserError: If there is no such run.
    """
    problems: list[str] = []
    folder = find_run(directory)
    try:
        run = Run.open(folder)
    except UserError as error:
        run = Run(folder, None)  # type: ignore[arg-type]
        problems.append(str(error))

    def known(read: Callable[[Run], Any]) -> Any:
        try:
            return read(run)
        except Exception as error:  # zipfile, h5py and protobuf raise different errors
            problems.append(" ".join(f"{error}".split()))
            return None

    info = {"run": str(directory), **_of_recipe(run)}
    readers = (_model, _parameters, _vocabulary, _backend, _training, _validation, _scores)
    info |= {read.__name__.lstrip("_"): known(read) for read in readers}
    return {**info, "problems": problems, "next": _next_commands(info)}


def _of_recipe(run: Run) -> dict[str, Any]:
    names, recipe = ("recipe", "description", "source_language", "target_language"), run.recipe
    if recipe is None:
        return dict.fromkeys(names)
    languages = recipe.data.source_language, recipe.data.target_language
    return dict(zip(names, (recipe.name, recipe.description, *languages), strict=True))


def _model(run: Run) -> dict[str, Any]:
    """Returns the class and the sizes of the model."""
    if run.recipe is not None:
        sizes = {"class": run.recipe.model.architecture, **run.recipe.model.sizes}
    else:
        config = read_config(_model_file(run) or run.model_path)
        sizes = {"class": config["class_name"], **config["config"]}
    return {name: sizes.get(name) for name in ("class", *_SIZES)}


def _model_file(run: Run) -> Path | None:
    """Returns the file of the finished model or of the newest checkpoint."""
    folders = [run.directory, *reversed(run.checkpoints())]
    return next((x / "model.keras" for x in folders if (x / "model.keras").is_file()), None)


def _parameters(run: Run) -> int | None:
    """Returns the number of parameters, from the newest checkpoint's state or from the weights."""
    model = _model_file(run)
    if model is None:
        return None
    read_config(model)  # raises an error if the file is damaged
    for folder in run.checkpoints()[-1:]:
        if count := _json(folder / "state.json").get("parameters"):
            return int(count)
    return _count(model)


def _count(model: Path) -> int:
    """Returns the number of parameters in a `.keras` file."""
    counts: list[int] = []

    def add(name: str, item: Any) -> None:
        is_weight = isinstance(item, h5py.Dataset) and not name.startswith("optimizer/")
        if is_weight and item.dtype.kind != "u":  # Unsigned integers are states of dropout.
            counts.append(math.prod(item.shape))

    with (
        zipfile.ZipFile(model) as archive,
        archive.open("model.weights.h5") as file,
        h5py.File(file, "r") as weights,
    ):
        weights.visititems(add)
    return sum(counts)


def _vocabulary(run: Run) -> dict[str, Any] | None:
    path = run.tokenizer_dir / "tokenizer.json"
    if not path.exists():
        if _model_file(run):
            raise UserError(f"{path} is missing. Without its tokenizer, the model cannot be used")
        if run.recipe is None:  # It is damaged.
            return None
        settings = run.recipe.tokenizer
        return dict.fromkeys(("source", "target"), settings.vocabulary_size) | {
            "joint": settings.joint
        }
    found = _json(path)
    sizes = {side: int(found[f"{side}_vocabulary_size"]) for side in ("source", "target")}
    return {**sizes, "joint": len(found["sha256"]) == 1}


def _backend(run: Run) -> str | None:
    entries = run.history()
    return entries[-1]["backend"] if entries else None


def _training(run: Run) -> dict[str, Any]:
    steps = [checkpoint_step(folder) for folder in run.checkpoints()]
    is_finished = run.has_current_model()
    if is_finished and steps and run.recipe:
        # The checkpoints of an unfinished training may have been averaged.
        training, history = run.recipe.training, load_history(run.checkpoints()[-1])
        is_over = history.is_over(training.early_stopping_patience)
        is_finished = is_over or steps[-1] >= training.steps
    return {
        "is_finished": is_finished,
        "steps_done": steps[-1] if steps else None if is_finished else 0,
        "steps": run.recipe.training.steps if run.recipe else None,
        "checkpoints": steps,
        "is_running": run.is_training(),
    }


def _validation(run: Run) -> dict[str, Any]:
    """Returns the last results, and those with the lowest loss of a checkpoint that is kept."""
    found = _validations(run)
    if not found:
        return {"last": None, "best": None}
    kept = {checkpoint_step(folder) for folder in run.checkpoints()} or found.keys()
    losses = {step: found[step]["loss"] for step in kept if "loss" in found.get(step, ())}
    best = ValidationHistory(losses).best(1)
    both = {"last": max(found), "best": best[0] if best else None}
    return {
        key: None if step is None else {"step": step, **found[step]} for key, step in both.items()
    }


def _validations(run: Run) -> dict[int, dict[str, float]]:
    """Returns the results of each validation by step, from the event files and checkpoints."""
    found: dict[int, dict[str, float]] = {}
    for folder in run.checkpoints()[-1:]:
        found |= {step: {"loss": loss} for step, loss in load_history(folder).losses.items()}
    for name, values in logged_scalars(run.logs_dir, prefix := "validation/").items():
        for step, value in values.items():
            found.setdefault(step, {})[name.removeprefix(prefix)] = value
    return found


def _scores(run: Run) -> list[dict[str, Any]]:
    """Returns the newest score of each text, metric and checkpoint.

    `"is_current"` is False if the score is of an earlier `model.keras`.
    """
    keys = ("split", "source", "reference", "metric", "checkpoint")
    scores = {tuple(map(entry.get, keys)): entry for entry in run.scores.entries()}.values()
    can_change = bool(scores and run.checkpoints())  # The model of a shared run never changes.
    model = run.scores.scored_model(None) if can_change and run.model_path.is_file() else {}

    def is_current(entry: dict[str, Any]) -> bool:
        is_known = "checkpoint" in entry or not can_change
        return is_known or entry.get("checkpoint_sha256") == model.get("checkpoint_sha256", "")

    return [{**entry, "is_current": is_current(entry)} for entry in scores]


def _json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return read_json(file, _MOST_JSON_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _next_commands(info: dict[str, Any]) -> list[str]:
    run, training = shlex.quote(info["run"]), info["training"] or {}
    if info["recipe"] is None or info["vocabulary"] is None:
        return []
    if not training.get("is_finished"):
        several = info["backend"] and len(installed_backends()) > 1
        backend = f" --backend {info['backend']}" if several else ""
        commands = [] if training.get("is_running") else [f"train {run} --resume{backend}"]
        if training.get("checkpoints"):
            commands.append(f"translate {run} --checkpoint best")
    else:
        formats = (name for name, package in _EXPORTS.items() if find_spec(package))
        export = f"export {run} --format {next(formats, 'run')}"
        commands = [f"translate {run}", export]
        scores = (score for score in info["scores"] or () if not score.get("checkpoint"))
        if not any(score.get("split") == "test" and score["is_current"] for score in scores):
            commands.insert(1, f"evaluate {run}")
    program = command_line(info["model"]["class"])
    return [f"{program} {command}" for command in commands]
