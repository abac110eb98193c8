"""Writes a report of one run, or of two runs side by side, as one HTML page."""

import math
import shlex
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_transformer.errors import UserError
from keras_transformer.evaluation.evaluator import Evaluator
from keras_transformer.evaluation.scores import run_evaluator
from keras_transformer.runs.checkpoints import logged_scalars
from keras_transformer.runs.info import run_info
from keras_transformer.runs.run import Run
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.scoring import Scorer
from keras_transformer.visualization.charts import bar_chart, line_chart
from keras_transformer.visualization.pages import render
from keras_transformer.visualization.report_sentences import (
    System,
    attention_of_sentences,
    best_and_worst,
    most_changed,
    sentence_chrf,
    shown_sentences,
)

Note = tuple[str, str | None]  # a remark, and the command that mends what it tells
# Title, unit and name of each curve.
CURVES = (
    ("Training loss", "nats per target token, with the terms of the recipe", "loss"),
    ("Validation loss", "nats per target token", "validation/loss"),
    ("Validation perplexity", "logarithmic", "validation/perplexity"),
    ("Validation BLEU", "greedy search, first sentences of the validation text", "validation/bleu"),
    ("Learning rate", "", "learning_rate"),
    ("Throughput", "target tokens per second", "tokens_per_second"),
    ("Gradient norm", "", "gradient_norm"),
)


class _Reported(NamedTuple):
    """A run in a report."""

    name: str
    run: Run
    info: dict[str, Any]
    scalars: dict[str, dict[int, float]]

    @property
    def is_finished(self) -> bool:
        return bool((self.info["training"] or {}).get("is_finished"))

    @property
    def is_running(self) -> bool:
        return bool((self.info["training"] or {}).get("is_running"))

    def command(self, arguments: str) -> str:
        name, *options = arguments.split()
        folder = shlex.quote(str(self.run.directory))
        return " ".join(("keras-transformer", name, folder, *options))


def run_report(run: Run, other: Run | None = None) -> str:
    """Returns a report of a run as one HTML page that loads nothing else.

    The page has the recipe, the curves of the training, the scores, BLEU by sentence length, the
    best and the worst sentences of the test text with the probability of each token, and the
    attention of three sentences. With two runs, it also has the differences of their scores with
    95 % confidence intervals, and the sentences that changed most. If the run lacks something, the
    page tells the command that makes it.

    Example:

    >>> Path("report.html").write_text(run_report(Run.open("runs/quickstart")), "utf-8")

    Args:
        run: A run. It need not be finished.
        other: A second run. Defaults to None.

    Raises:
        UserError: If both are the same run.
    """
    given = [run] if other is None else [run, other]
    if other is not None and run.directory.resolve() == other.directory.resolve():
        raise UserError(f"a report compares two different runs. Received: {run.directory} twice")
    names = [one.directory.name for one in given]
    if len(set(names)) < len(names):
        names = [str(one.directory) for one in given]
    runs = [
        _Reported(name, one, run_info(one.directory), _scalars(one))
        for name, one in zip(names, given, strict=True)
    ]
    return render(
        "report.html",
        title=" and ".join(names),
        names=names,
        overview=_overview(runs),
        training=_training(runs),
        scores=_scores(runs),
        **_on_test_text(runs),
    )


def _scalars(run: Run) -> dict[str, dict[int, float]]:
    try:
        return logged_scalars(run.logs_dir)
    except UserError:  # `run_info` reports the same problem.
        return {}


def _overview(runs: Sequence[_Reported]) -> dict[str, Any]:
    facts = [[label, *(text(one.info) for one in runs)] for label, text in _FACTS.items()]
    notes: list[Note] = []
    for one in runs:
        notes += [(problem, None) for problem in one.info["problems"]]
        if one.is_running:
            notes.append((f"Another process trains {one.name} now.", None))
        elif not one.is_finished:
            text = f"The training of {one.name} has not finished. Continue it:"
            notes.append((text, one.command("train --resume")))
    changes = runs[0].run.recipe.differences(runs[-1].run.recipe)
    return {
        "facts": [row for row in facts if any(row[1:])],
        "notes": notes,
        "changes": [[key, *map(_setting, values)] for key, values in changes.items()],
        "recipes": [(one.name, one.run.recipe.to_yaml()) for one in runs],
    }


def _setting(value: object) -> str:
    return "not set" if value is None else str(value)


def _of_model(info: dict[str, Any]) -> str:
    model = info["model"] or {}
    return ", ".join(f"{name} {x}" for name, x in model.items() if x is not None)


def _of_training(info: dict[str, Any]) -> str:
    training = info["training"] or {}
    if training.get("steps_done") is None:
        return ""
    of = f" of {training['steps']:,}" if training["steps"] else ""
    return f"{training['steps_done']:,}{of} steps"


_FACTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "recipe": lambda info: info["recipe"] or "",
    "description": lambda info: info["description"] or "",
    "languages": lambda info: f"{info['source_language']} to {info['target_language']}",
    "model": _of_model,
    "parameters": lambda info: f"{info['parameters']:,}" if info["parameters"] else "",
    "training": _of_training,
    "backend": lambda info: info["backend"] or "",
}


def _training(runs: Sequence[_Reported]) -> dict[str, Any]:
    charts, notes, validations = [], list[Note](), []
    for title, unit, name in CURVES:
        lines = {one.name: _finite(one.scalars.get(name, {})) for one in runs}
        if any(lines.values()):
            charts.append(line_chart(title, unit, lines, is_logarithmic=unit == "logarithmic"))
    for one in runs:
        if not one.scalars:
            can_resume = not (one.is_finished or one.is_running)
            text = (
                f"{one.name} has no logs. Only a training writes logs{':' if can_resume else '.'}"
            )
            notes.append((text, one.command("train --resume") if can_resume else None))
        elif rows := _validation_rows(one):
            validations.append((one.name, ["step", *_validations(one)], rows))
    return {"charts": charts, "notes": notes, "validations": validations}


def _finite(points: dict[int, float]) -> dict[int, float]:
    return {step: value for step, value in points.items() if math.isfinite(value)}


def _validations(one: _Reported) -> dict[str, dict[int, float]]:
    prefix = "validation/"
    return {
        name.removeprefix(prefix): values
        for name, values in one.scalars.items()
        if name.startswith(prefix)
    }


def _validation_rows(one: _Reported) -> list[list[Any]]:
    found = _validations(one)
    steps = sorted({step for values in found.values() for step in values})
    return [
        [step, *(f"{values[step]:.4g}" if step in values else "" for values in found.values())]
        for step in steps
    ]


def _scores(runs: Sequence[_Reported]) -> dict[str, Any]:
    rows, notes = list[list[Any]](), list[Note]()
    for one in runs:
        scores = one.info["scores"] or []
        is_scored = any(x.get("split") == "test" and x["is_current"] for x in scores)
        if one.is_finished and not is_scored:
            text = f"{one.name} has no scores of the test text. Translate and score it:"
            notes.append((text, one.command("evaluate")))
        for score in scores:
            text = score.get("split") or f"{score.get('source')}, {score.get('reference')}"
            model = score.get("checkpoint") or ("current" if score["is_current"] else "earlier")
            search = f"beam {score.get('beam_size')}, length penalty {score.get('length_penalty')}"
            value = (one.name, text, score.get("metric"), float(score["score"]), model, search)
            rows.append([*value, score.get("signature")])
    return {"rows": rows, "notes": notes}


def _on_test_text(runs: Sequence[_Reported]) -> dict[str, Any]:
    """Returns the sections that need the test text and its kept translations."""
    evaluator: Evaluator | None = None
    systems: list[System] = []
    missing: list[Note] = []
    for one in runs:
        try:
            hypotheses = one.run.scores.hypotheses("test")
            own = run_evaluator(one.run, metrics=["bleu", "chrf"])
            scorer = Scorer(open_model(one.run, for_inference=True), one.run.tokenizer())
        except UserError as error:
            missing.append((str(error), None))
            continue
        evaluator = evaluator or own
        if (own.sources, own.references) != (evaluator.sources, evaluator.references):
            missing.append((f"{one.name} has another test text, so it is not compared.", None))
            continue
        chrf = sentence_chrf(hypotheses, own.references)
        systems.append(System(one.name, hypotheses, chrf, scorer))
    parts: dict[str, Any] = dict.fromkeys(("lengths", "difference", "ranked", "attention"))
    if evaluator is not None:
        sources = evaluator.sources or ()
        best_worst = best_and_worst(systems[0].chrf, evaluator.references)
        best, worst = (
            shown_sentences(x, sources, evaluator.references, systems) for x in best_worst
        )
        parts["lengths"] = _lengths(evaluator, systems)
        parts["ranked"] = {"name": systems[0].name, "best": best, "worst": worst}
        parts["attention"] = [(x.name, _attention(x, sources)) for x in systems]
        if len(systems) == 2:
            parts["difference"] = _difference(evaluator, *systems)
    return {"missing": missing, **parts}


def _lengths(evaluator: Evaluator, systems: Sequence[System]) -> dict[str, Any]:
    buckets = {x.name: evaluator.length_buckets(x.hypotheses) for x in systems}
    first = next(iter(buckets.values()))
    metric = next(iter(first[0].scores))
    bars = {name: [x.scores[metric] for x in found] for name, found in buckets.items()}
    return {
        "chart": bar_chart(
            f"{metric} by source length", "test text", [x.words for x in first], bars
        ),
        "heads": ["words", "sentences", *(f"{metric}, {name}" for name in bars)],
        "rows": [
            [x.words, x.sentences, *(values[index] for values in bars.values())]
            for index, x in enumerate(first)
        ],
    }


def _difference(evaluator: Evaluator, first: System, second: System) -> dict[str, Any]:
    differences = evaluator.differences(second.hypotheses, first.hypotheses)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tests = evaluator.compare(second.hypotheses, first.hypotheses)
    rows = [
        (
            x.metric,
            test.baseline,
            test.score,
            f"{x.difference:+.2f}",
            f"{x.low:+.2f} to {x.high:+.2f}",
            f"{test.p_value:.4f}",
            test.signature,
        )
        for x, test in zip(differences, tests, strict=True)
    ]
    changed = most_changed(first, second)
    sources, references = evaluator.sources or (), evaluator.references
    better = sum(b > a for a, b in zip(first.chrf, second.chrf, strict=True))
    worse = sum(b < a for a, b in zip(first.chrf, second.chrf, strict=True))
    return {
        "rows": rows,
        "samples": differences[0].samples,
        "notes": [(str(warning.message), None) for warning in told],
        "count": f"By sentence chrF, {second.name} is better on {better:,} sentences, worse on "
        f"{worse:,} and equal on {len(first.chrf) - better - worse:,}.",
        "changed": shown_sentences(changed, sources, references, [first, second]),
    }


def _attention(system: System, sources: Sequence[str]) -> list[dict[str, Any]] | None:
    has_attention = hasattr(system.scorer.model, "source_attention")
    return attention_of_sentences(system, sources) if has_attention else None
