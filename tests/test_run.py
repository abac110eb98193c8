"""The run folder."""

import hashlib
import json
import zipfile
from datetime import UTC, datetime

import pytest
from support.local_server import answer, local_server

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.models import Transformer
from keras_transformer.recipe import load_recipe
from keras_transformer.run import Run, load_model

FILES = """
name: files
data:
  train: {source: train.en, target: train.de}
  validation: {source: val.tsv}
  test: {source: test.en, target: test.de}
  directory: DIRECTORY
"""


@pytest.fixture
def recipe(tmp_path):
    """A recipe whose files lie in tmp_path/data, some of them gzipped."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train.en", "train.de.gz", "val.tsv", "test.en", "test.de"):
        (data / name).write_bytes(b"")
    path = tmp_path / "files.yaml"
    path.write_text(FILES.replace("DIRECTORY", str(data)))
    return load_recipe(path)


@pytest.fixture
def run(tmp_path, recipe):
    return Run.create(tmp_path / "run", recipe)


def tiny_model():
    return Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7)


def add_score(run, score):
    run.add_score(
        split="test",
        metric="BLEU",
        score=score,
        signature="nrefs:1",
        options=SearchOptions(),
    )


def test_open_gives_back_the_recipe_as_used(run, recipe):
    assert Run.open(run.directory).recipe == recipe


def test_an_existing_run_is_not_begun_again(run, recipe):
    with pytest.raises(UserError, match="already holds a run: continue it with --resume"):
        Run.create(run.directory, recipe)


def test_opening_another_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="is no run folder"):
        Run.open(tmp_path)


def test_resume_takes_the_same_recipe_and_refuses_another(run, tmp_path):
    recipe_file = tmp_path / "files.yaml"
    assert Run.resume(run.directory, load_recipe(recipe_file)).directory == run.directory
    with pytest.raises(UserError, match=r"differ in seed \(1 and 2\)"):
        Run.resume(run.directory, load_recipe(recipe_file, ["seed=2"]))


def test_text_finds_plain_and_gzipped_files_and_one_tsv(run, tmp_path):
    data = tmp_path / "data"
    assert run.text("train") == (data / "train.en", data / "train.de.gz")
    assert run.text("validation") == (data / "val.tsv", None)


def test_pairs_are_those_of_a_tsv_or_of_two_files(run, tmp_path):
    data = tmp_path / "data"
    (data / "val.tsv").write_text("one\teins\n")
    (data / "test.en").write_text("two\n")
    (data / "test.de").write_text("zwei\n")
    assert list(run.pairs("validation")) == [("one", "eins")]
    assert list(run.pairs("test")) * 2 == [*run.pairs("test"), *run.pairs("test")]


def test_missing_file_is_named_and_no_folder_is_made(recipe, tmp_path):
    (tmp_path / "data" / "test.de").unlink()
    with pytest.raises(UserError, match="no file .*test.de.*--data-dir"):
        Run.create(tmp_path / "new", recipe)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def download_recipe(tmp_path, monkeypatch):
    """Makes a recipe whose only file, served.txt, is downloaded."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))

    def make(url, sha256):
        names = {name: {"source": "served.txt"} for name in ("train", "validation", "test")}
        data = {**names, "download": {"url": url, "sha256": {"served.txt": sha256}}}
        path = tmp_path / "download.yaml"
        path.write_text(json.dumps({"name": "a", "data": data}))
        return load_recipe(path)

    return make


def test_download_is_recognised_by_its_checksum(download_recipe, tmp_path):
    content = b"a line\n"
    digest = hashlib.sha256(content).hexdigest()
    with local_server() as server:
        server.answers["/served.txt"] = answer(content)
        run = Run(tmp_path / "run", download_recipe(server.url, digest.upper()))
        assert run.text("train")[0].read_bytes() == content
        with pytest.raises(UserError, match="served.txt cannot be fetched"):
            Run.create(tmp_path / "new", download_recipe(server.url, "0" * 64))
    cached = tmp_path / "cache" / "keras_transformer" / digest[:16] / "served.txt"
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [cached]
    assert not (tmp_path / "new").exists()


def test_failed_download_is_one_line_with_the_address(download_recipe, tmp_path):
    recipe = download_recipe("http://127.0.0.1:1/data/", "0" * 64)  # nothing listens there
    with pytest.raises(UserError, match="http://127.0.0.1:1/data/served.txt cannot be fetched"):
        Run.create(tmp_path / "new", recipe)


def test_checkpoints_are_listed_oldest_first_and_only_complete_ones(run):
    for name in ("step-00000020", "step-00000003", ".partial-step-00000040"):
        (run.checkpoints_dir / name).mkdir(parents=True)
    assert [path.name for path in run.checkpoints()] == ["step-00000003", "step-00000020"]


def test_every_score_is_kept_with_what_it_was_made_of(run):
    model = tiny_model()
    model.save(run.model_path)
    before = datetime.now(UTC).replace(microsecond=0)
    add_score(run, 41.0)
    add_score(run, 42.0)
    first, second = json.loads(run.scores_path.read_text())
    assert [first.pop("score"), second.pop("score")] == [41.0, 42.0]
    assert datetime.fromisoformat(first.pop("time")) >= before
    assert first == {
        "split": "test",
        "metric": "BLEU",
        "signature": "nrefs:1",
        "checkpoint_sha256": hashlib.sha256(run.model_path.read_bytes()).hexdigest(),
        "beam_size": 4,
        "length_penalty": 0.6,
    }


def test_model_comes_back_with_its_weights(run):
    model = tiny_model()
    model.save(run.model_path)
    loaded = run.model()
    assert type(loaded) is Transformer
    for mine, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        assert (mine == theirs).all()


def test_missing_model_and_tokenizer_are_told(run):
    with pytest.raises(UserError, match="no model .*model.keras"):
        run.model()
    with pytest.raises(UserError, match="no tokenizer yet"):
        run.tokenizer()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_truncated_model_is_one_line_with_the_path(tmp_path, share):
    path = tmp_path / "model.keras"
    tiny_model().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match=f"{path} is not a complete Keras model file"):
        load_model(path)


def test_model_with_a_huge_configuration_is_refused(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * 2**26)
    with pytest.raises(UserError, match="config.json must have at most 4,194,304 bytes"):
        load_model(path)


def test_generated_splits_are_as_large_as_asked_and_share_no_pair(tmp_path):
    path = tmp_path / "generated.yaml"
    path.write_text("{name: a, data: {generator: {train: 30, validation: 5, test: 7}}}")
    run = Run.create(tmp_path / "run", load_recipe(path))
    sizes, seen = {"train": 30, "validation": 5, "test": 7}, set()
    for split, size in sizes.items():
        source, target = run.text(split)
        assert (source.name, target.name) == (f"{split}.en", f"{split}.de")
        pairs = set(zip(source.open(), target.open(), strict=True))
        assert len(pairs) == size
        assert not pairs & seen
        seen |= pairs
    again = Run.create(tmp_path / "again", load_recipe(path))
    assert again.text("test")[0].read_bytes() == run.text("test")[0].read_bytes()
