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
from keras_transformer._files import sha256_of
from keras_transformer.architectures import command_line
from keras_transformer.recipe.settings import TRANSLATION
from keras_transformer.runs.base_model import completed, is_lora_sum
from keras_transformer.runs.checkpoints import (
    ValidationHistory,
    checkpoint_step,
    load_history,
    logged_scalars,
)
from keras_transformer.runs.run import Run

# A package that each export format needs.
_EXPORTS = {"saved_model": "tensorflow_text", "ctranslate2": "ctranslate2", "onnx": "onnxruntime"}


def run_info(directory: str | Path) -> dict[str, Any]:
    """Describes a run: what it is, how far its training is, its scores, and the next commands.

    `directory` is as in `Run.open`. Returns a dictionary that `json.dumps` accepts. A value that
    the files of the run do not tell is None. Files that cannot be read are listed in `"problems"`.
    """
    run = Run.open(directory)
    recipe, problems = run.recipe, list[str]()

    def known(read: Callable[[Run], Any]) -> Any:
        try:
            return read(run)
        except Exception as error:  # zipfile, h5py and protobuf raise different errors
            problems.append(" ".join(f"{error}".split()))
            return None

    info = {
        "run": str(directory),
        "recipe": recipe.name,
        "description": recipe.description,
        "source_language": recipe.data.source_language,
        "target_language": recipe.data.target_language if recipe.task is TRANSLATION else None,
        "model": {"class": recipe.model.architecture, **recipe.model.sizes},
    }
    readers = (_parameters, _vocabulary, _backend, _training, _validation, _scores)
    info |= {read.__name__.lstrip("_"): known(read) for read in readers}
    commands = _next_commands(info, recipe.task.commands, _has_text(run))
    return {**info, "problems": problems, "next": commands}


def _parameters(run: Run) -> int | None:
    """Returns the number of parameters of the finished model or of the newest checkpoint."""
    files = [folder / "model.keras" for folder in (run.directory, *reversed(run.checkpoints()))]
    model, counts = next(filter(Path.is_file, files), None), list[int]()
    if model is None:
        return None

    def add(name: str, item: h5py.HLObject) -> None:
        is_weight = isinstance(item, h5py.Dataset) and not name.startswith("optimizer/")
        is_weight = is_weight and not is_lora_sum(name, weights)
        if is_weight and item.dtype.kind != "u":  # Unsigned integers are states of dropout.
            counts.append(math.prod(item.shape))

    with (
        completed(model) as whole,
        zipfile.ZipFile(whole) as archive,
        archive.open("model.weights.h5") as file,
        h5py.File(file, "r") as weights,
    ):
        weights.visititems(add)
    return sum(counts)


def _vocabulary(run: Run) -> dict[str, Any]:
    if not run.tokenizer_dir.is_dir():
        size, joint = run.recipe.tokenizer.vocabulary_size, run.recipe.tokenizer.joint
        return {"source": size, "target": size, "joint": joint}
    tokenizer = run.tokenizer()
    return {
        "source": tokenizer.source_vocabulary_size,
        "target": tokenizer.target_vocabulary_size,
        "joint": tokenizer.joint,
    }


def _backend(run: Run) -> str | None:
    entries = run.history()
    return entries[-1]["backend"] if entries else None


def _training(run: Run) -> dict[str, Any]:
    steps, training = [checkpoint_step(folder) for folder in run.checkpoints()], run.recipe.training
    is_finished = run.has_current_model()
    if is_finished and steps:  # The checkpoints of an unfinished training may have been averaged.
        is_over = load_history(run.checkpoints()[-1]).is_over(training.early_stopping_patience)
        is_finished = is_over or steps[-1] >= training.steps
    return {
        "is_finished": is_finished,
        "steps_done": steps[-1] if steps else None if is_finished else 0,
        "steps": training.steps if _has_text(run) else None,
        "checkpoints": steps,
        "is_running": run.is_training(),
    }


def _validation(run: Run) -> dict[str, Any]:
    """Returns the last results, and those with the lowest loss of a checkpoint that is kept."""
    found: dict[int, dict[str, float]] = {}
    for folder in run.checkpoints()[-1:]:
        found |= {step: {"loss": loss} for step, loss in load_history(folder).losses.items()}
    for name, values in logged_scalars(run.logs_dir, prefix := "validation/").items():
        for step, value in values.items():
            found.setdefault(step, {})[name.removeprefix(prefix)] = value
    kept = {checkpoint_step(folder) for folder in run.checkpoints()} or found.keys()
    losses = {step: found[step]["loss"] for step in kept if "loss" in found.get(step, ())}
    both = {"last": sorted(found)[-1:], "best": ValidationHistory(losses).best(1)}
    return {
        key: {"step": steps[0], **found[steps[0]]} if steps else None for key, steps in both.items()
    }


def _scores(run: Run) -> list[dict[str, Any]]:
    """Returns the newest score of each text, metric and checkpoint.

    `"is_current"` is False if the score is of an earlier `model.keras`.
    """
    keys = ("split", "source", "reference", "metric", "checkpoint")
    scores = {tuple(map(entry.get, keys)): entry for entry in run.scores.entries()}.values()
    current = None  # The model of a shared run, which has no checkpoints, never changes.
    if scores and run.checkpoints():
        current = sha256_of(run.model_path) if run.model_path.is_file() else ""
    return [
        {**x, "is_current": "checkpoint" in x or current in (None, x.get("checkpoint_sha256"))}
        for x in scores
    ]


def _has_text(run: Run) -> bool:
    """Returns whether the recipe has text. That of an imported model has none."""
    return bool(run.recipe.data.corpora("train") or run.recipe.data.generator)


def _next_commands(info: dict[str, Any], of_task: tuple[str, ...], has_text: bool) -> list[str]:
    run, training = shlex.quote(info["run"]), info["training"] or {}
    if info["vocabulary"] is None:
        return []
    if not training.get("is_finished"):
        several = info["backend"] and len(installed_backends()) > 1
        backend = f" --backend {info['backend']}" if several else ""
        commands = [] if training.get("is_running") else [f"train {run} --resume{backend}"]
        if training.get("checkpoints"):
            commands.append(f"{of_task[0]} {run} --checkpoint best")
    elif "evaluate" not in of_task:
        commands = [f"{of_task[0]} {run}"]
    else:
        formats = (name for name, package in _EXPORTS.items() if find_spec(package))
        commands = [f"translate {run}", f"export {run} --format {next(formats, 'run')}"]
        scores = [x for x in info["scores"] or () if x["is_current"] and not x.get("checkpoint")]
        if has_text and "test" not in [score.get("split") for score in scores]:
            commands.insert(1, f"evaluate {run}")
    return [f"{command_line(info['model']['class'])} {command}" for command in commands]
