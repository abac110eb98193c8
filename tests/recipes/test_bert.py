"""The recipe runs from end to end at toy size, and counts entities as CoNLL's scorer does."""

import gzip

import pytest


def write_data(folder):
    """Toy data in the files of the recipe: "good" is positive, and names are persons."""
    for name in ("tatoeba", "multi30k", "sst2", "wnut17"):
        (folder / name).mkdir(parents=True)
    sentences = [
        f"{who} {verb} a {what}."
        for who in ("Tom", "Mary", "I", "We")
        for verb in ("saw", "had")
        for what in ("good dog", "bad cat", "house")
    ]
    with gzip.open(folder / "tatoeba" / "en-de.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{sentence}\tJa.\n" for sentence in sentences * 2)
    with gzip.open(folder / "multi30k" / "train.en.gz", "wt", encoding="utf-8") as file:
        file.write("A dog runs.\n")
    for split in ("train", "dev", "test"):
        rows = ["a good dog\t1\n", "a bad cat\t0\n"] * 4
        (folder / "sst2" / f"{split}.tsv").write_text("".join(rows))
    words = "Tom\tB-person\nsaw\tO\nMary\tB-person\nAnn\tI-person\n"
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        (folder / "wnut17" / name).write_text(f"{words}\t\n{words}\n" * 3)


@pytest.mark.each_backend_if_slow
@pytest.mark.slow
def test_recipe_runs_from_end_to_end(run_recipe, tmp_path, capsys):
    write_data(tmp_path / "data")
    options = "--dtype float32 --vocabulary-size 60 --num-layers 1 --d-model 8 --num-heads 2"
    options += " --length 16 --steps 2 --batch-size 4 --sst2-labels 6 --sst2-epochs 1"
    options += " --wnut17-epochs 1 --fine-tuning-batch-size 8 --seeds 1"
    results = run_recipe(options)["results"]
    assert set(results) == {"SST-2 6", "WNUT-17"}
    for found in results.values():
        pretrained, scratch = (found[x]["test"]["mean"] for x in ("pretrained", "from scratch"))
        assert found["difference"]["test"]["mean"] == pytest.approx(pretrained - scratch)
    assert "| WNUT-17 | F1 of entities | pretrained" in capsys.readouterr().out


def test_entities_are_those_of_conll(recipe):
    entities = recipe["entities"]
    assert entities(["O", "B-x", "I-x", "B-x", "O"]) == {(1, 3, "x"), (3, 4, "x")}
    # A tag I-* without an entity of its class before it begins one.
    assert entities(["I-x", "I-y", "O", "I-y"]) == {(0, 1, "x"), (1, 2, "y"), (3, 4, "y")}
    assert entities(["O", "O"]) == set()
    tags = [["B-x", "I-x", "O"], ["B-y", "O", "B-x"]]
    predicted = [["B-x", "O", "O"], ["B-y", "O", "B-y"]]
    # One of three entities is found; three are predicted.
    assert recipe["entity_f1"](tags, predicted) == pytest.approx(1 / 3)


def test_words_are_tagged_at_their_first_piece(recipe):
    class Pieces:
        bos_id, eos_id, unk_id = 2, 3, 1

        def encode_source(self, words):
            return [list({"long": [7, 8], "": [], "a": [9]}[word]) for word in words]

    ids, labels = recipe["word_arrays"](
        Pieces(), [["a", "long", ""], ["long"] * 3], [["O", "B-x", "O"], ["O"] * 3], ["B-x", "O"], 6
    )
    assert ids.tolist() == [[2, 9, 7, 8, 1, 3], [2, 7, 8, 7, 8, 3]]
    assert labels.tolist() == [[-1, 1, 0, -1, 1, -1], [-1, 1, -1, 1, -1, -1]]
