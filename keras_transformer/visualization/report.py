"""Writes a report of one run, or of two runs side by side, as one HTML page."""

import math
import shlex
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from keras_transformer.errors import UserError
from keras_transformer.evaluation.evaluator import Evaluator
from keras_transformer.evaluation.scores import run_evaluator
from keras_transformer.runs.checkpoints import logged_scalars
from keras_transformer.runs.info import run_info
from keras_transformer.runs.run import Run
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.scoring import Scorer
from keras_transformer.visualization.pages import bar_chart, line_chart, render
from keras_transformer.visualization.report_sentences import (
    System,
    attention_of_sentences,
    best_and_worst,
    most_changed,
    sentence_chrf,
    shown_sentences,
)

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


class _Reported:
    """A run in a report."""

    def __init__(self, name: str, run: Run) -> None:
        self.name, self.run, self.info = name, run, run_info(run.directory)
        self.training = self.info["training"] or {}
        self.scores = self.info["scores"] or []
        self.is_scored = any(x.get("split") == "test" and x["is_current"] for x in self.scores)
        try:
            self.scalars = logged_scalars(run.logs_dir)
        except UserError:  # `run_info` reports the same problem.
            self.scalars = {}

    def command(self, arguments: str) -> str:
        name, *options = arguments.split()
        folder = shlex.quote(str(self.run.directory))
        return " ".join(("keras-transformer", name, folder, *options))

    def facts(self) -> dict[str, str]:
        info, steps = self.info, self.training.get("steps_done")
        model = [f"{name} {x}" for name, x in (info["model"] or {}).items() if x is not None]
        of = f" of {self.training['steps']:,}" if self.training.get("steps") else ""
        return {
            "recipe": info["recipe"] or "",
            "description": info["description"] or "",
            "languages": f"{info['source_language']} to {info['target_language']}",
            "model": ", ".join(model),
            "parameters": f"{info['parameters']:,}" if info["parameters"] else "",
            "training": "" if steps is None else f"{steps:,}{of} steps",
            "backend": info["backend"] or "",
        }

    def validations(self) -> tuple[list[str], list[list[Any]]]:
        """Returns a table of the results of each validation."""
        prefix = "validation/"
        found = {name: x for name, x in self.scalars.items() if name.startswith(prefix)}
        rows = [
            [step, *(f"{x[step]:.4g}" if step in x else "" for x in found.values())]
            for step in sorted({step for x in found.values() for step in x})
        ]
        return ["step", *(name.removeprefix(prefix) for name in found)], rows


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
    runs = [_Reported(name, one) for name, one in zip(names, given, strict=True)]
    facts = [one.facts() for one in runs]
    rows = [[label, *(each[label] for each in facts)] for label in facts[0]]
    return render(
        "report.html",
        title=" and ".join(names),
        names=names,
        runs=runs,
        facts=[row for row in rows if any(row[1:])],
        changes=given[0].recipe.differences(given[-1].recipe),
        charts=_charts(runs),
        **_on_test_text(runs),
    )


def _charts(runs: Sequence[_Reported]) -> Iterator[dict[str, Any]]:
    for title, unit, name in CURVES:
        lines: dict[str, dict[int, float]] = {}
        for one in runs:
            points = one.scalars.get(name, {})
            lines[one.name] = {step: x for step, x in points.items() if math.isfinite(x)}
        if any(lines.values()):
            yield line_chart(title, unit, lines, is_logarithmic=unit == "logarithmic")


def _on_test_text(runs: Sequence[_Reported]) -> dict[str, Any]:
    """Returns the sections that need the test text and its kept translations."""
    evaluator: Evaluator | None = None
    systems: list[System] = []
    missing: list[str] = []
    for one in runs:
        try:
            hypotheses = one.run.scores.hypotheses("test")
            own = run_evaluator(one.run, metrics=["bleu", "chrf"])
            scorer = Scorer(open_model(one.run, for_inference=True), one.run.tokenizer())
        except UserError as error:
            missing.append(str(error))
            continue
        evaluator = evaluator or own
        if (own.sources, own.references) != (evaluator.sources, evaluator.references):
            missing.append(f"{one.name} has another test text, so it is not compared.")
            continue
        chrf = sentence_chrf(hypotheses, own.references)
        systems.append(System(one.name, hypotheses, chrf, scorer))
    parts: dict[str, Any] = dict.fromkeys(("lengths", "difference", "ranked", "attention"))
    if evaluator is not None:
        texts = (evaluator.sources or (), evaluator.references)
        ranked = best_and_worst(systems[0].chrf, evaluator.references)
        parts["lengths"] = _lengths(evaluator, systems)
        parts["ranked"] = [shown_sentences(indices, *texts, systems) for indices in ranked]
        parts["attention"] = {x.name: attention_of_sentences(x, texts[0]) for x in systems}
        if len(systems) == 2:
            changed = shown_sentences(most_changed(*systems), *texts, systems)
            parts["difference"] = {**_difference(evaluator, *systems), "changed": changed}
    return {"missing": missing, **parts}


def _lengths(evaluator: Evaluator, systems: Sequence[System]) -> dict[str, Any]:
    buckets = {x.name: evaluator.length_buckets(x.hypotheses) for x in systems}
    first = next(iter(buckets.values()))
    metric = next(iter(first[0].scores))
    bars = {name: [x.scores[metric] for x in found] for name, found in buckets.items()}
    words, values = [x.words for x in first], zip(*bars.values(), strict=True)
    return {
        "chart": bar_chart(f"{metric} by source length", "test text", words, bars),
        "heads": ["words", "sentences", *(f"{metric}, {name}" for name in bars)],
        "rows": [[x.words, x.sentences, *y] for x, y in zip(first, values, strict=True)],
    }


def _difference(evaluator: Evaluator, first: System, second: System) -> dict[str, Any]:
    differences = evaluator.differences(second.hypotheses, first.hypotheses)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tests = evaluator.compare(second.hypotheses, first.hypotheses)
    rows = [
        (x.metric, test.baseline, test.score, f"{x.difference:+.2f}")
        + (f"{x.low:+.2f} to {x.high:+.2f}", f"{test.p_value:.4f}", test.signature)
        for x, test in zip(differences, tests, strict=True)
    ]
    gains = [b - a for a, b in zip(first.chrf, second.chrf, strict=True)]
    better, worse = sum(x > 0 for x in gains), sum(x < 0 for x in gains)
    return {
        "rows": rows,
        "samples": differences[0].samples,
        "warnings": [str(warning.message) for warning in told],
        "count": f"By sentence chrF, {second.name} is better on {better:,} sentences, worse on "
        f"{worse:,} and equal on {len(gains) - better - worse:,}.",
    }
