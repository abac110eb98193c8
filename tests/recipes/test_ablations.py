"""The ablations run from end to end at toy size, and every row changes what it says."""

import gzip
import json
from importlib.util import find_spec

import pytest
from support.parallel_text import SENTENCES

from keras_transformer import Run

TOY = ["tokenizer.vocabulary_size=60", "model.num_layers=1", "model.d_model=8", "model.d_ff=8"]
TOY += ["training.tokens_per_batch=64", "training.dtype_policy=float32", "data.max_length=32"]


def run_recipe(recipe, folder, *options):
    settings = [word for setting in TOY for word in ("--set", setting)]
    folders = ["--data-dir", str(folder / "data"), "--runs", str(folder / "runs")]
    recipe["main"](["--rows", "batch_normalization", *folders, *settings, *options])


def write_data(folder):
    """The same few sentences for all splits, in the files of the recipe."""
    folder.mkdir()
    for split in ("train", "val", "test_2016_flickr"):
        for side, language in enumerate(("en", "de")):
            path = folder / f"{split}.lc.norm.tok.{language}.gz"
            with gzip.open(path, "wt", encoding="utf-8") as file:
                file.writelines(f"{pair[side]}\n" for pair in SENTENCES)


@pytest.mark.each_backend_if_slow
@pytest.mark.slow
def test_rows_are_trained_once_and_end_in_a_table_and_a_plot(recipe, tmp_path, monkeypatch, capsys):
    write_data(tmp_path / "data")
    plot = ["--plot", str(tmp_path / "plot.png")] if find_spec("matplotlib") else []
    run_recipe(recipe, tmp_path, "--steps", "1", *plot)
    (row,) = json.loads((tmp_path / "runs" / "ablations.json").read_text())
    assert row["setting"] == "normalization batch"
    assert row["parameters"] > 0 and row["perplexity"] > 1
    assert row["bleu"] == Run.open(tmp_path / "runs" / row["row"]).scores.entries()[0]["score"]
    assert (tmp_path / "plot.png").exists() == bool(plot)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("| batch_normalization | normalization batch | ")

    monkeypatch.setitem(recipe["main"].__globals__, "train", None)  # it must not train again
    run_recipe(recipe, tmp_path, "--steps", "1")
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_every_row_changes_only_its_settings(recipe):
    recipes = {name: recipe["recipe_of"](name, 100, []) for name in recipe["ROWS"]}
    base = recipes.pop("base")
    for name, changed in recipes.items():
        keys = {setting.partition("=")[0] for setting in recipe["ROWS"][name]}
        assert base.differences(changed).keys() == {"name", *keys}
