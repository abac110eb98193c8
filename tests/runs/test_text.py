"""The text of a run, read, downloaded, generated or split."""

import json

import pytest

from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs import text as module
from keras_transformer.runs.run import Run


def recipe_of(**data):
    return Recipe.model_validate({"name": "a", "data": data})


def test_text_finds_plain_and_gzipped_files_and_one_tsv(run, tmp_path):
    data = tmp_path / "data"
    assert run.text.files("train") == (data / "train.en", data / "train.de.gz")
    assert run.text.files("validation") == (data / "val.tsv", None)
    (data / "val.tsv").write_text("one\teins\n")
    (data / "test.en").write_text("two\n")
    (data / "test.de").write_text("zwei\n")
    assert list(run.text.pairs("validation")) == [("one", "eins")]
    assert list(run.text.pairs("test")) * 2 == [*run.text.pairs("test"), *run.text.pairs("test")]


def test_missing_file_is_named_and_no_folder_is_made(recipe, tmp_path):
    (tmp_path / "data" / "test.de").unlink()
    with pytest.raises(UserError, match="no file .*test.de.*--data-dir"):
        Run.create(tmp_path / "new", recipe)
    assert not (tmp_path / "new").exists()


def test_files_that_the_recipe_does_not_locate_are_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "download", lambda *given: given)
    url, sha256 = "https://example.org/data", "0" * 64
    splits = {name: {"source": "served.txt"} for name in ("train", "validation", "test")}
    recipe = recipe_of(**splits, download={"url": url, "sha256": {"served.txt": sha256}})
    run = Run.create(tmp_path / "run", recipe)
    assert run.text.files("train") == (("served.txt", url, sha256), None)


def test_generated_splits_are_as_large_as_asked_and_share_no_pair(tmp_path):
    sizes, seen = {"train": 30, "validation": 5, "test": 7}, set()
    run = Run.create(tmp_path / "run", recipe_of(generator=sizes))
    for split, size in sizes.items():
        source, target = run.text.files(split)
        assert (source.name, target.name) == (f"{split}.en", f"{split}.de")
        pairs = set(zip(source.open(), target.open(), strict=True))
        assert len(pairs) == size
        assert not pairs & seen
        seen |= pairs
    again = Run.create(tmp_path / "again", run.recipe)
    assert again.text.files("test")[0].read_bytes() == run.text.files("test")[0].read_bytes()


def test_held_out_splits_are_written_once_and_then_need_no_corpus(tmp_path, capsys):
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("".join(f"one {n}\teins {n}\n" for n in range(40)) * 2)
    recipe = recipe_of(train={"source": str(corpus)}, held_out={"validation": 5, "test": 7})
    run = Run.create(tmp_path / "run", recipe)
    pairs = {split: list(run.text.pairs(split)) for split in ("train", "validation", "test")}
    assert [len(found) for found in pairs.values()] == [56, 5, 7]
    output, errors = capsys.readouterr()
    assert output == ""  # It may be that of `translate`.
    assert errors == (
        "held out: 5 pairs for validation, 7 for test; 12 others dropped: they share a sentence "
        "with a held-out pair\n"
    )
    assert len(set(pairs["train"] + pairs["validation"] + pairs["test"])) == 40
    corpus.unlink()
    assert list(Run.open(run.directory).text.pairs("test")) == pairs["test"]


def test_filters_are_applied_once_before_pairs_are_held_out(tmp_path, capsys):
    pairs = [*[(f"one {n}", f"eins {n}") for n in range(40)] * 2, ("same", "same"), ("a", "b" * 99)]
    lines = [json.dumps({"translation": {"de": y, "en": x}}) for x, y in pairs]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(lines))
    text = {"source": str(corpus)}
    filters = {"identical": True, "repeated": True, "max_length_ratio": 9}
    for others, splits in (
        ({"held_out": {"validation": 5, "test": 7}}, [28, 5, 7]),
        ({"validation": text, "test": text}, [40, 82, 82]),
    ):
        recipe = recipe_of(train=text, filters=filters, **others)
        run = Run.create(tmp_path / f"run{splits[0]}", recipe)
        found = [list(run.text.pairs(split)) for split in ("train", "validation", "test")]
        assert [len(x) for x in found] == splits
        assert found[0][0] in pairs[:40]
        assert capsys.readouterr().err.startswith(
            "filters: 40 pairs kept; dropped: 40 with an equal pair before, 1 with equal sides, "
            "1 with a length ratio above 9\n"
        )
        assert not [*run.directory.rglob("filtered.*")]


def test_fingerprints_of_splits_are_kept_and_damage_is_told(run):
    assert run.text.fingerprints() == {}
    run.text.add_fingerprint("train", "a")
    run.text.add_fingerprint("validation", "b")
    run.text.add_fingerprint("train", "c")
    assert run.text.fingerprints() == {"train": "c", "validation": "b"}
    run.fingerprints_path.write_text("[3]")
    with pytest.raises(UserError, match=r"fingerprints\.json cannot be read"):
        run.text.fingerprints()


def test_both_directions_are_for_training_alone(run):
    forward = list(run.text.pairs("train"))
    data = run.recipe.data.model_copy(update={"both_directions": True})
    both = Run(run.directory, run.recipe.model_copy(update={"data": data})).text
    backward = [(target, source) for source, target in forward]
    assert list(both.pairs("train")) == list(both.pairs("train")) == forward + backward
    assert list(both.pairs("validation")) == list(run.text.pairs("validation"))


@pytest.fixture
def mixed(tmp_path):
    """Makes a run with two corpora and with more of its section data."""
    (tmp_path / "a.tsv").write_text("one\teins\n\tleer\nsame\tsame\n")
    (tmp_path / "b.tsv").write_text("two\tzwei\n")

    splits = {"validation": {"source": "b.tsv", "tag": "<b>"}, "test": {"source": "a.tsv"}}
    splits["train"] = [{"source": "a.tsv", "tag": "<a>"}, {"source": "b.tsv", "weight": 2}]

    def make(**more):
        recipe = recipe_of(**splits, directory=tmp_path, **more)
        return Run.create(tmp_path / "-".join(["run", *more]), recipe)

    return make


def test_a_tag_precedes_the_sources_of_its_corpus(mixed):
    text = mixed().text
    first = [("<a> one", "eins"), ("", "leer"), ("<a> same", "same")]
    assert [list(part) for part in text.pairs("train").parts] == [first, [("two", "zwei")]]
    assert list(text.pairs("train")) == list(text.pairs("train")) == [*first, ("two", "zwei")]
    assert list(text.pairs("validation")) == [("<b> two", "zwei")]
    assert list(text.pairs("validation", tagged=False)) == [("two", "zwei")]
    reverse = [("<a> eins", "one"), ("<a> leer", ""), ("<a> same", "same")]
    parts = mixed(both_directions=True).text.pairs("train").parts
    assert [list(x) for x in parts] == [first + reverse, [("two", "zwei"), ("zwei", "two")]]


def test_each_corpus_is_filtered(mixed, capsys):
    run = mixed(filters={"identical": True})
    assert list(run.text.pairs("train")) == [("<a> one", "eins"), ("", "leer"), ("two", "zwei")]
    assert capsys.readouterr().err == (
        "filters of corpus 0: 2 pairs kept; dropped: 1 with equal sides\n"
        "filters of corpus 1: 1 pairs kept; dropped: none\n"
    )
    assert {x.name for x in (run.directory / "text").iterdir()} == {
        *("train.en", "train.de", "train.1.en", "train.1.de")
    }


@pytest.mark.parametrize("languages", [("en", "en"), ("en_US", "EN_us")])
def test_one_language_on_both_sides_keeps_every_pair(tmp_path, languages):
    pairs = [(f"he go {n}", f"he goes {n}") for n in range(40)]
    (tmp_path / "a.tsv").write_text("".join(f"{x}\t{y}\n" for x, y in pairs))
    data = {"directory": tmp_path, "filters": {"repeated": True}}
    data |= dict(zip(("source_language", "target_language"), languages, strict=True))
    corpus, made = {"source": "a.tsv", "tag": "<a>"}, {"target": "a.tsv", "translated_by": "b"}
    for number, more in enumerate((
        {"train": corpus, "held_out": {"validation": 5, "test": 7}},
        {"train": [corpus, corpus], "validation": corpus, "test": corpus},
    )):  # fmt: skip
        text = Run.create(tmp_path / f"run{number}", recipe_of(**data, **more)).text
        assert set(text.pairs("train", tagged=False)) <= {*pairs}
        assert len({x.name.lower() for x in text.files("train")}) == 2
        splits = [list(text.pairs(x)) for x in ("train", "validation", "test")]
        assert [len(x) for x in splits] == [[28, 5, 7], [80, 40, 40]][number]
        assert all(source.startswith("<a> he go ") for source, _ in sum(splits, []))
    text = Run(tmp_path / "run2", recipe_of(**data, **more | {"train": [corpus, made]})).text
    assert text.made_file(1).name == f"train.1.source.{languages[0]}"
