"""The command `info`."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from keras_transformer.cli.common import run_argument


@click.command("info")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(run: Path, as_json: bool) -> None:
    """Show what RUN is, its progress and its scores.

    It also shows what can be done next. The command reads files, but does not load the model.

    \b
    keras-transformer info runs/quickstart
    keras-transformer info runs/quickstart --json
    """
    from keras_transformer.runs.info import run_info

    info = run_info(run)
    if as_json:
        click.echo(json.dumps(_finite(info), indent=2, ensure_ascii=True, allow_nan=False))
        return
    rows = [row for row in _rows(info) if row[1]]
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        # A run may come from a stranger, and its text may control the terminal.
        line = "".join(x if x.isprintable() else " " for x in text)
        click.echo(f"{label:<{width}}  {line}")


def _finite(value: Any) -> Any:
    """Replaces infinite numbers and NaN by None, because JSON does not have them."""
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rows(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields labels and texts. Rows without a text are not shown."""
    yield "run", info["run"]
    if info["recipe"]:
        languages = f"{info['source_language']} to {info['target_language']}"
        yield "recipe", f"{info['recipe']} ({languages})"
        yield "description", info["description"]
    yield "model", _model(info["model"])
    if info["parameters"] is not None:
        yield "parameters", f"{info['parameters']:,}"
    yield "vocabulary", _vocabulary(info["vocabulary"])
    yield "training", _training(info["training"], info["backend"])
    for which, found in (info["validation"] or {}).items():
        yield f"{which} validation", _figures(found)
    for score in info["scores"] or ():
        yield "score", _score(score)
    for problem in info["problems"]:
        yield "problem", problem
    for following in info["next"]:
        yield "next", following


def _model(model: dict[str, Any] | None) -> str:
    if model is None:
        return ""
    sizes = [f"{name} {x}" for name, x in model.items() if x is not None and name != "class"]
    return f"{model['class']}: {', '.join(sizes)}"


def _vocabulary(vocabulary: dict[str, Any] | None) -> str:
    if vocabulary is None:
        return ""
    if vocabulary["joint"]:
        return f"{vocabulary['source']:,} pieces for both languages"
    return f"{vocabulary['source']:,} source pieces, {vocabulary['target']:,} target pieces"


def _training(training: dict[str, Any] | None, backend: str | None) -> str:
    if training is None:
        return ""
    state = "finished" if training["is_finished"] else "not finished"
    parts = ["another process is training" if training["is_running"] else state]
    if training["steps_done"] is not None:
        of = "" if training["steps"] is None else f" of {training['steps']:,}"
        parts.append(f"{training['steps_done']:,}{of} steps done")
    elif training["steps"] is not None:  # a shared run, without checkpoints
        parts.append(f"{training['steps']:,} steps in the recipe")
    if steps := training["checkpoints"]:
        of = "checkpoint of the step" if len(steps) == 1 else "checkpoints of the steps"
        parts.append(f"{of} {', '.join(map(str, steps))}")
    return "; ".join(parts) + (f"; backend {backend}" if backend else "")


def _figures(found: dict[str, float] | None) -> str:
    if found is None:
        return ""
    figures = (f"{name} {x:.4g}" for name, x in found.items() if name != "step")
    return f"step {found['step']:,}: {', '.join(figures)}"


def _score(score: dict[str, Any]) -> str:
    value = score.get("score")
    number = f"{value:.2f}" if isinstance(value, int | float) else value
    text = score.get("split") or f"{score.get('source')} and {score.get('reference')}"
    model = f"{score['checkpoint']}, " if score.get("checkpoint") else ""
    model = model if score["is_current"] else "earlier model, "
    return f"{model}{text}: {score.get('metric')} {number}  {score.get('signature')}"
