"""The recipe runs from end to end at toy size."""

import gzip
import itertools

import numpy as np
import pytest
from support.contract import randomize, to_numpy


def write_data(folder):
    (folder / "tatoeba").mkdir(parents=True)
    people = {"Tom": "Tom", "We": "Wir", "You": "Ihr", "The cat": "Die Katze"}
    verbs = {"saw": "sah", "had": "hatte", "bought": "kaufte"}
    things = {"a beer": "ein Bier", "a house": "ein Haus", "seven dogs": "sieben Hunde"}
    with gzip.open(folder / "tatoeba" / "en-de.tsv.gz", "wt", encoding="utf-8") as file:
        for sentence in itertools.product(*(x.items() for x in (people, verbs, things))):
            english, german = (" ".join(words) for words in zip(*sentence, strict=True))
            file.write(f"{english}.\t{german}.\n")


@pytest.mark.each_backend_if_slow
@pytest.mark.slow
def test_recipe_runs_from_end_to_end(run_recipe, tmp_path, capsys):
    write_data(tmp_path / "data")
    options = "--vocabulary-size 16 --d-model 8 --steps 2 --batch-size 8 --subsampling 1"
    options += " --pairs 6 --held-out 2 --translator-steps 2 --tokens-per-batch 128 --seeds 1"
    results = run_recipe(options)["results"]
    gain = np.subtract(results["both"], results["random"])
    np.testing.assert_allclose(results["difference of both"], gain)
    output = capsys.readouterr().out
    assert "nearest words" in output and "| random, BLEU" in output
    assert {path.name for path in (tmp_path / "run").glob("*/*.keras")} == {"en.keras", "de.keras"}


@pytest.mark.each_backend_if_slow
def test_logits_are_dot_products_of_a_word_vector_and_context_vectors(recipe):
    generator = np.random.default_rng(0)
    shapes = {"centers": (3,), "contexts": (3, 4)}
    inputs = {name: generator.integers(0, 11, shape, "int32") for name, shape in shapes.items()}
    model = recipe["skip_gram"](11, 5)
    np.testing.assert_array_equal(to_numpy(model(inputs)), np.zeros((3, 4)))  # before training
    randomize(model)
    words, contexts = (
        to_numpy(model.get_layer(name).embeddings)
        for name in ("word_embedding", "context_embedding")
    )
    expected = np.einsum("bd,bnd->bn", words[inputs["centers"]], contexts[inputs["contexts"]])
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, atol=1e-5)
