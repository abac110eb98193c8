"""Formats the results of an evaluation as tables and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tabulate import tabulate

from keras_transformer.evaluation.evaluator import LengthBucket, Score, Significance

_NAMES = {
    "bootstrap": "Paired bootstrap resampling",
    "randomization": "Paired approximate randomization",
}


def score_lines(scores: Sequence[Score]) -> str:
    """Returns a line per score: metric, tab, score in percent, tab, signature."""
    return "\n".join(f"{x.metric}\t{x.score:.2f}\t{x.signature}" for x in scores)


def comparison_table(comparisons: Sequence[Significance], baseline: str) -> str:
    """Returns the results of one significance test as a table. `baseline` is a name."""
    first = comparisons[0]
    title = f"{_NAMES[first.test]}, {first.samples} samples, seed {first.seed}, against {baseline}:"
    heads = ("metric", "baseline", "score", "p-value", "signature")
    rows = [
        (x.metric, f"{x.baseline:.2f}", f"{x.score:.2f}", f"{x.p_value:.4f}", x.signature)
        for x in comparisons
    ]
    return f"{title}\n{_table(heads, rows)}"


def length_table(buckets: Sequence[LengthBucket], side: str) -> str:
    """Returns the scores by sentence length as a table. `side` is "source" or "reference"."""
    heads = (f"words of the {side}", "sentences", *buckets[0].scores)
    rows = [
        (x.words, x.sentences, *(f"{score:.2f}" for score in x.scores.values())) for x in buckets
    ]
    return _table(heads, rows)


def as_json(
    scores: Sequence[Score], comparisons: Sequence[Significance], buckets: Sequence[LengthBucket]
) -> str:
    """Returns all results as a JSON object."""
    parts: dict[str, Sequence[Any]] = {"scores": scores, "comparisons": comparisons}
    parts["length_buckets"] = buckets
    content = {name: [asdict(entry) for entry in entries] for name, entries in parts.items()}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    columns = ["left", *["right"] * (len(heads) - 1)]
    if heads[-1] == "signature":
        columns[-1] = "left"
    return tabulate(rows, heads, tablefmt="plain", disable_numparse=True, colalign=columns)
