#!/usr/bin/env python
"""An exported model under load: clients that ask at the same time, each answer checked.

The stand-in server of tests/support serves the SavedModel with its batching parameters. Each
client sends one sentence at a time and waits for its translation, for so many seconds. An answer
must be what the run's own model makes of that very sentence: the same text, with the same score up
to 1e-3, or another hypothesis of its that ties with it (scores apart by less than 1e-4). Everything
else counts as wrong. The latency is what a client waits; batch is the mean size of the batches that
the server ran. Server, clients and the run's model share 2 CPU threads.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import requests
from _clients import Load, put_under_load
from _common import ENVIRONMENT, ROOT, Parser, limit_threads, show
from tqdm import tqdm

from keras_transformer import Run, Translator, open_model
from keras_transformer.data.text_files import read_lines

sys.path.insert(0, str(ROOT / "tests"))
from support.served_model import Server, serving  # noqa: E402

TIE, SCORE_TOLERANCE = 1e-4, 1e-3  # of scores, nats over the length penalty
# Best first: text and score of each hypothesis of a sentence.
Expected = list[tuple[str, float]]
OUTCOMES = ("identical", "tied", "wrong", "failed")
FORMATS = {
    "clients": "d",
    "seconds": ".1f",
    "sentences_per_s": ",.1f",
    "batch": ".1f",
    **dict.fromkeys(("p50_ms", "p90_ms", "p99_ms"), ",.0f"),
    **dict.fromkeys(OUTCOMES, ",d"),
}
EXAMPLES = """examples:
  scripts/bench/serving_load.py runs/quickstart exports/quickstart test.en
  scripts/bench/serving_load.py runs/multi30k_en_de exports/multi30k_en_de \\
      test_2016_flickr.lc.norm.tok.en.gz --clients 1 4 16 --seconds 60 --json serving_load.json
"""


class Answer(NamedTuple):
    """The text and the score of a translation."""

    text: str
    score: float


def outcome(answer: Answer, expected: Expected) -> str:
    """Whether an answer is what the sentence must get."""
    best_score = expected[0][1]
    for text, score in expected:
        if text == answer.text and abs(score - answer.score) < SCORE_TOLERANCE:
            if text == expected[0][0]:
                return "identical"
            return "tied" if best_score - score < TIE else "wrong"
    return "wrong"


def ask(address: str, session: requests.Session, sentence: tuple[str, Expected]) -> tuple[str, str]:
    """Asks the server for a translation, and returns its outcome and what was answered."""
    text, expected = sentence
    url = f"{address}/v1/models/model:predict"
    response = session.post(url, json={"inputs": {"text": [text]}}, timeout=60)
    response.raise_for_status()
    ((translation,), (score,)) = (response.json()["outputs"][x] for x in ("translation", "score"))
    answer = Answer(translation, score)
    return outcome(answer, expected), f"{text} -> {answer}"


def row(clients: int, load: Load, sizes: Sequence[int]) -> dict[str, Any]:
    """A line of the table."""
    waited = {name: round(ms, 1) for name, ms in load.milliseconds(50, 90, 99).items()}
    return {
        "clients": clients,
        "seconds": round(load.seconds, 1),
        "sentences_per_s": round(load.sentences_per_s, 2),
        **waited,
        "batch": round(float(np.mean(sizes)), 2) if sizes else None,
        **{kind: load.outcomes[kind] for kind in OUTCOMES},
    }


def expected_of(run: Run, sentences: Sequence[str]) -> list[Expected]:
    """What the run's own model makes of sentences."""
    options = run.recipe.evaluation.search_options(n_best=run.recipe.evaluation.beam_size)
    translator = Translator(open_model(run), run.tokenizer(), options)
    return [[(x.text, x.score) for x in best] for best in translator.translate_nbest(sentences)]


def batch_sizes(server: Server) -> list[int]:
    return requests.get(f"{server.rest}/stand_in/batch_sizes").json()


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each number of clients, and the answers that were not right."""
    sentences = [line for line in read_lines(arguments.text) if line.strip()]
    sentences = sentences[: arguments.sentences]
    expected = expected_of(Run.open(arguments.run), sentences)
    pairs = list(zip(sentences, expected, strict=True))
    rows, problems = [], []
    with serving(arguments.model, arguments.batching, **ENVIRONMENT) as server:
        for clients in tqdm(arguments.clients, unit="load"):
            ran = len(batch_sizes(server))
            load = put_under_load(partial(ask, server.rest), pairs, clients, arguments.seconds)
            rows.append(row(clients, load, batch_sizes(server)[ran:]))
            problems += load.problems
    return rows, problems


def main() -> int:
    parser = Parser(__doc__, EXAMPLES)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("model", type=Path, help="its export: a folder with a folder per version")
    parser.add_argument("text", type=Path, help="sentences, one a line, plain or .gz")
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[4], help="at the same time; default: 4"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load; default: 60")
    parser.add_argument("--sentences", type=int, default=1000, help="of the text; default: 1000")
    parser.add_argument(
        "--batching", type=Path, help="batching parameters; default: MODEL/batching_parameters.txt"
    )
    arguments = parser.parse()
    if min(arguments.clients) < 1:
        parser.error(f"--clients must be at least 1. Received: {min(arguments.clients)}")
    arguments.batching = arguments.batching or arguments.model / "batching_parameters.txt"
    if not arguments.batching.is_file():
        parser.error(f"--batching must name a file. Received: {arguments.batching}")

    limit_threads()
    rows, problems = measure(arguments)
    show(rows, FORMATS, arguments.json)
    for problem in problems[:10]:
        print(problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
