"""Writes a report of one run, or of two runs side by side, as one HTML page."""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops
from sacrebleu.metrics import CHRF

from keras_transformer._pages import Page, bar_chart, line_chart, render
from keras_transformer.capabilities import Capabilities
from keras_transformer.data.tokenizer import most_pieces
from keras_transformer.errors import UserError
from keras_transformer.evaluation.evaluator import Evaluator
from keras_transformer.evaluation.run_evaluation import run_evaluator
from keras_transformer.runs.checkpoints import logged_scalars
from keras_transformer.runs.info import run_info
from keras_transformer.runs.run import Run, opened_runs
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.scoring import Scorer
from keras_transformer.visualization.attention import source_tokens

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
COUNT = 5  # sentences in each list
MOST_CHARACTERS = 100  # Longer sentences make heat maps that are hard to read.


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

    def validations(self) -> tuple[list[str], list[list[Any]]]:
        """Returns a table of the results of each validation."""
        prefix = "validation/"
        found = {name: x for name, x in self.scalars.items() if name.startswith(prefix)}
        rows = [
            [step, *(f"{x[step]:.4g}" if step in x else "" for x in found.values())]
            for step in sorted({step for x in found.values() for step in x})
        ]
        return ["step", *(name.removeprefix(prefix) for name in found)], rows


class System(NamedTuple):
    """A run whose translations are shown."""

    name: str
    hypotheses: Sequence[str]
    chrf: Sequence[float]  # sentence chrF of each hypothesis, 0 to 100
    scorer: Scorer


def run_report(run: Run | str, other: Run | str | None = None) -> Page:
    """Returns a report of a run as one HTML page that loads nothing else.

    The page has the recipe, the curves of the training, the scores, BLEU by sentence length, the
    best and the worst sentences of the test text with the probability of each token, and the
    attention of three sentences. With two runs, it also has the differences of their scores with
    95 % confidence intervals, and the sentences that changed most. If the run lacks something, the
    page tells the command that makes it.

    Example:

    >>> Path("report.html").write_text(run_report(Run.open("runs/quickstart")), "utf-8")

    Args:
        run: A run, or its folder or name. It need not be finished.
        other: A second run. Defaults to None.

    Raises:
        UserError: If both are the same run.
    """
    given = opened_runs([run] if other is None else [run, other])
    if len({one.directory.resolve() for one in given}) < len(given):
        raise UserError(f"a report compares two different runs. Received: {given[0]} twice")
    names = [one.directory.name for one in given]
    if len(set(names)) < len(names):
        names = [str(one.directory) for one in given]
    runs = [_Reported(name, one) for name, one in zip(names, given, strict=True)]
    return render(
        "report.html",
        title=" and ".join(names),
        names=names,
        runs=runs,
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
            one.run.model_place()  # raises an error without a model
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
        pairs = zip(hypotheses, own.references, strict=True)
        chrf = [CHRF().sentence_score(text, [reference]).score for text, reference in pairs]
        systems.append(System(one.name, hypotheses, chrf, scorer))
    if evaluator is None:
        return {"missing": missing, "lengths": None, "difference": None, "attention": None}
    ranked = best_and_worst(systems[0].chrf, evaluator.references)
    return {
        "missing": missing,
        "lengths": _lengths(evaluator, systems),
        "difference": _difference(evaluator, *systems) if len(systems) == 2 else None,
        "ranked": [shown_sentences(indices, evaluator, systems) for indices in ranked],
        "attention": {x.name: attention_of_sentences(x, evaluator.sources or ()) for x in systems},
    }


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
        "changed": shown_sentences(most_changed(first, second), evaluator, (first, second)),
        "rows": rows,
        "samples": differences[0].samples,
        "warnings": [str(warning.message) for warning in told],
        "count": f"By sentence chrF, {second.name} is better on {better:,} sentences, worse on "
        f"{worse:,} and equal on {len(gains) - better - worse:,}.",
    }


def best_and_worst(chrf: Sequence[float], references: Sequence[str]) -> tuple[list[int], list[int]]:
    """Returns the indices of the best and the worst sentences. No index is in both.

    Among equal scores, longer references come first.
    """
    by_length = sorted(range(len(chrf)), key=lambda index: -len(references[index]))
    best = sorted(by_length, key=lambda index: -chrf[index])[:COUNT]
    worst = sorted(by_length, key=lambda index: chrf[index])
    return best, [index for index in worst if index not in best][:COUNT]


def most_changed(first: System, second: System) -> list[int]:
    """Returns the sentences whose chrF differs most between two systems, largest change first."""
    changes = np.abs(np.subtract(first.chrf, second.chrf))
    order = np.argsort(-changes, kind="stable")[: 2 * COUNT]
    return [int(index) for index in order if changes[index] > 0]


def shown_sentences(
    indices: Sequence[int], evaluator: Evaluator, systems: Sequence[System]
) -> list[dict[str, Any]]:
    """Returns the source of each sentence, and its reference and translations as texts.

    A text is a tuple of a label, the text, its tokens with their probabilities, and whether the
    model knows all its words. The probabilities of a translation are those of the model that made
    it, and those of the reference are of the first model. A text too long for the model has no
    tokens.
    """
    chosen = [(evaluator.sources or ())[index] for index in indices]
    references = [evaluator.references[index] for index in indices]
    labels = ["reference"] * len(indices)
    columns = [_with_tokens(systems[0], chosen, labels, references)]
    for system in systems:
        labels = [f"{system.name} chrF {system.chrf[index]:.1f}" for index in indices]
        texts = [system.hypotheses[index] for index in indices]
        columns.append(_with_tokens(system, chosen, labels, texts))
    rows = zip(chosen, zip(*columns, strict=True), strict=True)
    return [{"source": source, "texts": texts} for source, texts in rows]


def _with_tokens(
    system: System, sources: Sequence[str], labels: Sequence[str], texts: Sequence[str]
) -> list[tuple[str, str, list[tuple[str, float]], bool]]:
    tokenizer = system.scorer.tokenizer
    short, _, encoded = _encoded(system, sources, texts)
    scored = system.scorer.token_log_probabilities(
        [sources[index] for index in short], [texts[index] for index in short]
    )
    tokens: list[list[tuple[str, float]]] = [[] for _ in texts]
    for index, log_probabilities in zip(short, scored, strict=True):
        names = [
            "▁<unk>" if id == tokenizer.unk_id else tokenizer.target_pieces[id]
            for id in encoded[index]
        ]
        tokens[index] = list(zip(names, np.exp(log_probabilities).tolist(), strict=False))
    is_known = [tokenizer.unk_id not in ids for ids in encoded]
    return list(zip(labels, texts, tokens, is_known, strict=True))


def _encoded(
    system: System, sources: Sequence[str], texts: Sequence[str]
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Returns the indices of the sentences that fit into the model, and the pieces of all."""
    tokenizer, longest = system.scorer.tokenizer, system.scorer.model.max_length
    of_sources = tokenizer.encode_source([text.strip() for text in sources])
    of_texts = tokenizer.encode_target([text.strip() for text in texts])
    most = [most_pieces(tokenizer, side, longest) for side in ("source", "target")]
    pairs = enumerate(zip(of_sources, of_texts, strict=True))
    short = [index for index, (a, b) in pairs if len(a) <= most[0] and len(b) <= most[1]]
    return short, of_sources, of_texts


def attention_of_sentences(system: System, sources: Sequence[str]) -> list[dict[str, Any]] | None:
    """Returns the attention from the translations to the sources, for 3 sentences.

    The sentences are those at a quarter, the half and three quarters of the ranking by chrF, from
    the longer half of the sentences with at most `MOST_CHARACTERS` characters. Sentences with too
    many tokens for the model are left out. Each row of a map has the weights of the step that
    predicts a target piece. Rows and columns end with eos. If the model has no such attention, the
    result is None.
    """
    tokenizer, model = system.scorer.tokenizer, system.scorer.model
    if Capabilities.of(model).source_attention is None:
        return None
    short, of_sources, of_targets = _encoded(system, sources, system.hypotheses)
    short = [index for index in short if 0 < len(sources[index]) <= MOST_CHARACTERS]
    short.sort(key=lambda index: len(sources[index]))
    ranked = sorted(short[len(short) // 2 :], key=lambda index: system.chrf[index])
    chosen = [ranked[len(ranked) * quarter // 4] for quarter in (3, 2, 1)] if ranked else []
    maps = []
    for index in dict.fromkeys(chosen):
        source_ids = tokenizer.frame_source(of_sources[index])
        target_ids, labels = tokenizer.frame_target(of_targets[index])
        attention = model.source_attention(np.array([source_ids]), np.array([[target_ids]]))
        weights = ops.convert_to_numpy(attention)[0, 0].tolist()
        keys = source_tokens(tokenizer, sources[index], source_ids)
        rows = [
            (tokenizer.target_pieces[id], list(zip(keys, row, strict=True)))
            for id, row in zip(labels, weights, strict=True)
        ]
        maps.append(
            {"number": index + 1, "chrf": system.chrf[index], "columns": keys, "rows": rows}
        )
    return maps
