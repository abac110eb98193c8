"""Writes a report of one run, or of two runs side by side, as one HTML page."""

import math
import shlex
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_transformer.errors import UserError
from keras_transformer.evaluation.evaluator import Evaluator
from keras_transformer.evaluation.scores import run_evaluator
from keras_transformer.runs.info import run_info
from keras_transformer.runs.logged_scalars import logged_scalars
from keras_transformer.runs.run import Run
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.scoring import Scorer
from keras_transformer.visualization.report_charts import bar_chart, line_chart
from keras_transformer.visualization.report_page import (
    Html,
    details,
    element,
    note,
    page,
    table,
    tokens_html,
)
from keras_transformer.visualization.report_sentences import (
    System,
    attention_html,
    best_and_worst,
    most_changed,
    sentence_chrf,
    sentences_html,
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
    sections: dict[str, list[Html]] = {
        "Overview": _overview(runs),
        "Training": _training(runs),
        "Scores": _scores(runs),
        **_on_test_text(runs),
    }
    title = " and ".join(names)
    links = (element("a", name, href=f"#{_anchor(name)}") for name in sections)
    parts: list[str] = [element("h1", title, dir="auto"), element("nav", *links)]
    for name, content in sections.items():
        parts += [element("h2", name, id=_anchor(name)), *content]
    return page(title, parts)


def _scalars(run: Run) -> dict[str, dict[int, float]]:
    try:
        return logged_scalars(run.logs_dir)
    except UserError:  # `run_info` reports the same problem.
        return {}


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _overview(runs: Sequence[_Reported]) -> list[Html]:
    rows = []
    for label, text in _FACTS.items():
        texts = [text(one.info) for one in runs]
        if any(texts):
            rows.append([label, *texts])
    parts = [table(["", *(one.name for one in runs)], rows)]
    for one in runs:
        parts += [note(problem) for problem in one.info["problems"]]
        if one.is_running:
            parts.append(note(f"Another process trains {one.name} now."))
        elif not one.is_finished:
            command = one.command("train --resume")
            parts.append(
                note(f"The training of {one.name} has not finished. Continue it:", command)
            )
    if len(runs) == 2:
        changes = runs[0].run.recipe.differences(runs[1].run.recipe)
        if rows := [[key, *map(_setting, values)] for key, values in changes.items()]:
            heads = ["setting", *(one.name for one in runs)]
            parts += [element("h3", "Different settings"), table(heads, rows)]
    for one in runs:
        recipe = element("pre", one.run.recipe.to_yaml(), tabindex="0", dir="ltr")
        parts.append(details(f"Recipe of {one.name}", recipe))
    return parts


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


def _training(runs: Sequence[_Reported]) -> list[Html]:
    charts = []
    for title, unit, name in CURVES:
        lines = {one.name: _finite(one.scalars.get(name, {})) for one in runs}
        if any(lines.values()):
            charts.append(line_chart(title, unit, lines, is_logarithmic=unit == "logarithmic"))
    parts = [element("div", *charts, class_="charts")] if charts else []
    for one in runs:
        if not one.scalars:
            text = f"{one.name} has no logs. Only a training writes logs"
            can_resume = not (one.is_finished or one.is_running)
            command = one.command("train --resume") if can_resume else None
            parts.append(note(f"{text}{':' if command else '.'}", command))
        elif rows := _validation_rows(one):
            heads = ["step", *(name for name in _validations(one))]
            parts.append(details(f"Validation results of {one.name}", table(heads, rows)))
    return parts


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


def _scores(runs: Sequence[_Reported]) -> list[Html]:
    rows: list[list[Any]] = []
    parts = []
    for one in runs:
        scores = one.info["scores"] or []
        is_scored = any(x.get("split") == "test" and x["is_current"] for x in scores)
        if one.is_finished and not is_scored:
            text = f"{one.name} has no scores of the test text. Translate and score it:"
            parts.append(note(text, one.command("evaluate")))
        for score in scores:
            text = score.get("split") or f"{score.get('source')}, {score.get('reference')}"
            model = score.get("checkpoint") or ("current" if score["is_current"] else "earlier")
            search = f"beam {score.get('beam_size')}, length penalty {score.get('length_penalty')}"
            value = (one.name, text, score.get("metric"), float(score["score"]), model, search)
            rows.append([*value, element("code", score.get("signature"))])
    if rows:
        heads = ("run", "text", "metric", "score", "model", "search", "signature")
        parts.insert(0, table(heads, rows))
    return parts


def _on_test_text(runs: Sequence[_Reported]) -> dict[str, list[Html]]:
    """Returns the sections that need the test text and its kept translations."""
    evaluator: Evaluator | None = None
    systems: list[System] = []
    missing: list[Html] = []
    for one in runs:
        try:
            hypotheses = one.run.scores.hypotheses("test")
            own = run_evaluator(one.run, metrics=["bleu", "chrf"])
            scorer = Scorer(open_model(one.run, for_inference=True), one.run.tokenizer())
        except UserError as error:
            missing.append(note(f"{error}"))
            continue
        evaluator = evaluator or own
        if (own.sources, own.references) != (evaluator.sources, evaluator.references):
            missing.append(note(f"{one.name} has another test text, so it is not compared."))
            continue
        chrf = sentence_chrf(hypotheses, own.references)
        systems.append(System(one.name, hypotheses, chrf, scorer))
    if evaluator is None:
        return {"Sentences": missing}
    parts = {"Sentence length": [*missing, *_lengths(evaluator, systems)]}
    if len(systems) == 2:
        parts["Difference"] = _difference(evaluator, *systems)
    parts["Sentences"] = _sentences(evaluator, systems)
    parts["Attention"] = [x for system in systems for x in _attention(evaluator, system)]
    return parts


def _lengths(evaluator: Evaluator, systems: Sequence[System]) -> list[Html]:
    buckets = {x.name: evaluator.length_buckets(x.hypotheses) for x in systems}
    first = next(iter(buckets.values()))
    words = [bucket.words for bucket in first]
    metric = next(iter(first[0].scores))
    bars = {name: [x.scores[metric] for x in found] for name, found in buckets.items()}
    rows = [
        [x.words, x.sentences, *(values[index] for values in bars.values())]
        for index, x in enumerate(first)
    ]
    heads = ["words", "sentences", *(f"{metric}, {name}" for name in bars)]
    chart = bar_chart(f"{metric} by source length", "test text", words, bars)
    return [element("div", chart, table(heads, rows), class_="charts")]


def _difference(evaluator: Evaluator, first: System, second: System) -> list[Html]:
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
            element("code", test.signature),
        )
        for x, test in zip(differences, tests, strict=True)
    ]
    heads = ("metric", first.name, second.name, "difference", "95 % interval", "p-value")
    text = (
        f"Paired bootstrap with {differences[0].samples:,} samples of the sentences. If the "
        "interval contains 0, the test text is too small to tell the runs apart."
    )
    changed = most_changed(first, second)
    shown = sentences_html(changed, evaluator.sources or (), evaluator.references, [first, second])
    better = sum(b > a for a, b in zip(first.chrf, second.chrf, strict=True))
    worse = sum(b < a for a, b in zip(first.chrf, second.chrf, strict=True))
    count = (
        f"By sentence chrF, {second.name} is better on {better:,} sentences, worse on {worse:,} "
        f"and equal on {len(first.chrf) - better - worse:,}."
    )
    title = element("h3", "Sentences that changed most")
    return [
        table((*heads, "signature"), rows),
        element("p", text, class_="muted"),
        *(note(str(warning.message)) for warning in told),
        title,
        element("p", count),
        shown,
    ]


def _sentences(evaluator: Evaluator, systems: Sequence[System]) -> list[Html]:
    sources, references = evaluator.sources or (), evaluator.references
    best, worst = best_and_worst(systems[0].chrf, references)
    legend = element(
        "p",
        "The stronger the colour of a token, the less probable the model found it: ",
        tokens_html([(f"▁{p}", p) for p in (0.99, 0.5, 0.1)]),
        ". The mouse shows the probability. References are shaded by the model of "
        f"{systems[0].name}. Sentences are ranked by the sentence chrF of {systems[0].name}.",
        class_="muted",
    )
    return [
        legend,
        element("h3", f"{len(best)} best of {systems[0].name}"),
        sentences_html(best, sources, references, systems),
        element("h3", f"{len(worst)} worst of {systems[0].name}"),
        sentences_html(worst, sources, references, systems),
    ]


def _attention(evaluator: Evaluator, system: System) -> list[Html]:
    if not hasattr(system.scorer.model, "source_attention"):
        return [note(f"The model of {system.name} has no attention from target to source.")]
    text = (
        "Rows are the tokens of the translation, columns those of the source. Each row shows where "
        "the step that predicted the token looked: the stronger the colour, the more attention."
    )
    maps = attention_html(system, evaluator.sources or ())
    return [element("h3", system.name), element("p", text, class_="muted"), maps]
