"""The recipe runs from end to end at toy size."""

import gzip
import itertools
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from support.recipes import run_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "word_vectors.py"


def write_data(folder):
    (folder / "tatoeba").mkdir(parents=True)
    people = {"Tom": "Tom", "We": "Wir", "You": "Ihr", "The cat": "Die Katze"}
    verbs = {"saw": "sah", "had": "hatte", "bought": "kaufte"}
    things = {"a beer": "ein Bier", "a house": "ein Haus", "seven dogs": "sieben Hunde"}
    with gzip.open(folder / "tatoeba" / "en-de.tsv.gz", "wt", encoding="utf-8") as file:
        for sentence in itertools.product(*(x.items() for x in (people, verbs, things))):
            english, german = (" ".join(words) for words in zip(*sentence, strict=True))
            file.write(f"{english}.\t{german}.\n")


@pytest.mark.slow
def test_recipe_runs_from_end_to_end(tmp_path, monkeypatch, capsys):
    recipe = runpy.run_path(str(RECIPE))
    write_data(tmp_path / "data")
    options = {
        "data-dir": tmp_path / "data", "output": tmp_path / "run", "vocabulary-size": 16,
        "d-model": 8, "steps": 2, "batch-size": 8, "subsampling": 1, "pairs": 6, "held-out": 2,
        "translator-steps": 2, "tokens-per-batch": 128, "seeds": 1,
    }  # fmt: skip
    run_recipe(recipe["main"], options, monkeypatch)
    results = json.loads((tmp_path / "run" / "results.json").read_text())["results"]
    gain = np.subtract(results["both"], results["random"])
    np.testing.assert_allclose(results["difference of both"], gain)
    output = capsys.readouterr().out
    assert "nearest words" in output and "| random, BLEU" in output
    assert {path.name for path in (tmp_path / "run").glob("*/*.keras")} == {"en.keras", "de.keras"}


def test_words_are_separated_from_punctuation():
    separated = runpy.run_path(str(RECIPE))["separated"]
    assert separated("I don't know, Tom!") == "i don't know , tom !"
