#!/usr/bin/env python
"""Compares finished runs of several architectures that were trained on the same text.

For each run, the table has the number of parameters, the minutes and steps of the training, the
BLEU of the test split with greedy search and with the beam of the recipe, and three speeds on this
machine: target tokens per second in training, in greedy search and in beam search. The speeds are
medians of rounds. In each round, all runs are measured in turn. The first round is not counted.

The architectures of recipes/before_transformers.py are known. The JSON file also has the BLEU of
each range of source lengths with at least 20 sentences, which scripts/draw_architectures.py draws.
"""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from _common import Parser, limit_threads, show, write_json
from tqdm import tqdm

from keras_transformer.translation.open_run import open_model

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))
import before_transformers  # noqa: E402, F401

TRAINING_BATCHES = 8
# The BLEU of fewer sentences tells little.
FEWEST_SENTENCES = 20
FORMATS = {
    "parameters": ",d",
    "steps": ",d",
    "minutes": ".0f",
    "greedy_bleu": ".2f",
    "beam_bleu": ".2f",
    "training": ",.0f",
    "greedy": ",.0f",
    "beam": ",.0f",
}
EXAMPLES = """examples:
  scripts/bench/architectures.py runs/multi30k_de_en_* --json architectures.json
  KERAS_BACKEND=torch scripts/bench/architectures.py runs/multi30k_de_en_* --rounds 5
"""


class Contestant:
    """A run, with its translator and a trainer of the same size."""

    def __init__(self, directory: Path) -> None:
        from keras_transformer import Run, Translator
        from keras_transformer.data import BatchPlan, TokenStore
        from keras_transformer.training.run.prepare import new_trainer

        self.run = Run.open(directory)
        recipe, tokenizer = self.run.recipe, self.run.tokenizer()
        self.model, options = open_model(self.run), recipe.evaluation.search_options()
        self.translators = {
            "greedy": Translator(self.model, tokenizer, options.replace(beam_size=1)),
            "beam": Translator(self.model, tokenizer, options),
        }
        self.trainer = new_trainer(recipe)
        plan = BatchPlan(
            TokenStore(self.run.store_dir / "train"),
            recipe.training.tokens_per_batch,
            seed=recipe.seed,
            length_multiple=recipe.training.length_multiple,
        )
        self.batches = list(islice(plan.batches(0), TRAINING_BATCHES))
        self.sources = [source for source, _ in self.run.text.pairs("test")]
        self.rates: dict[str, list[float]] = {"training": [], "greedy": [], "beam": []}
        self.translations: dict[str, list[str]] = {}

    def measure(self) -> None:
        """Adds a measurement to each of the rates, in target tokens per second."""
        self._time("training", self._train)
        for name in self.translators:
            self._time(name, partial(self._translate, name))

    def _time(self, name: str, work: Callable[[], int]) -> None:
        start = time.perf_counter()
        self.rates[name].append(work() / (time.perf_counter() - start))

    def _train(self) -> int:
        for batch in self.batches:
            float(self.trainer.train_on_batch(*batch, return_dict=True)["loss"])
        return sum(int((labels != self.model.pad_id).sum()) for _, labels, _ in self.batches)

    def _translate(self, name: str) -> int:
        found = self.translators[name].translate_nbest(self.sources)
        self.translations[name] = [hypotheses[0].text for hypotheses in found]
        return sum(hypotheses[0].length for hypotheses in found)

    def row(self) -> dict[str, Any]:
        """Returns the results of all rounds but the first."""
        from keras_transformer.evaluation.run_evaluation import run_evaluator

        evaluator = run_evaluator(self.run, metrics=["bleu"])
        bleu = {
            f"{name}_bleu": evaluator.scores(found)[0].score
            for name, found in self.translations.items()
        }
        return {
            "architecture": self.run.recipe.model.architecture,
            "parameters": self.model.count_params(),
            "steps": self.run.recipe.training.steps,
            "minutes": training_minutes(self.run),
            **bleu,
            **{name: median(rates[1:]) for name, rates in self.rates.items()},
            "by_length": {
                bucket.words: bucket.scores["BLEU"]
                for bucket in evaluator.length_buckets(self.translations["beam"])
                if bucket.sentences >= FEWEST_SENTENCES
            },
        }


def training_minutes(run: Any) -> float | None:
    """Returns the minutes of the training, or None if it was resumed: it may have paused."""
    if len(run.history()) > 1:
        return None
    start = datetime.fromisoformat(run.history()[0]["time"]).timestamp()
    return (max(path.stat().st_mtime for path in run.checkpoints()) - start) / 60


def compare(directories: Sequence[Path], rounds: int) -> list[dict[str, Any]]:
    """Measures the runs in turn, and returns a row per run."""
    contestants = [Contestant(directory) for directory in directories]
    with tqdm(total=(rounds + 1) * len(contestants), unit="turn") as progress:
        for _ in range(rounds + 1):
            for contestant in contestants:
                progress.set_postfix_str(contestant.run.directory.name)
                contestant.measure()
                progress.update()
    return [contestant.row() for contestant in contestants]


def main() -> None:
    parser = Parser(__doc__, EXAMPLES)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_rounds(3)
    arguments = parser.parse()
    limit_threads()
    rows = compare(arguments.runs, arguments.rounds)
    shown = [{key: value for key, value in row.items() if key != "by_length"} for row in rows]
    show(shown, FORMATS, None)
    if arguments.json:
        write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
