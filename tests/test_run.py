"""The run folder."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from datetime import UTC, datetime

import keras
import pytest
from support.local_server import answer, local_server
from support.locking_process import locked_by_another_process

from keras_transformer.data import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.models import Transformer
from keras_transformer.recipe import load_recipe
from keras_transformer.run import TOKENIZER_MEMBER, Run, load_model, training_lock
from keras_transformer.training.checkpoint import load_checkpoint_model, save_checkpoint
from keras_transformer.validation_history import ValidationHistory

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
    with pytest.raises(UserError, match="already holds a run: continue it with `Run.resume`"):
        Run.create(run.directory, recipe)
    other = recipe.model_copy(update={"seed": 2})
    with pytest.raises(
        UserError, match=r"another run, .* in seed \(1 and 2\): remove it or choose"
    ):
        Run.create(run.directory, other)


@pytest.mark.parametrize(
    "name", ["model.keras", "checkpoints", "tokenizer", "store", "logs", "history.json"]
)
def test_files_of_others_are_not_replaced_by_a_new_run(recipe, tmp_path, name):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / name).write_text("years of work")
    with pytest.raises(UserError, match=f"{folder} holds no run, but already holds {name}, "):
        Run.create(folder, recipe)
    assert [path.name for path in folder.iterdir()] == [name]


def test_opening_another_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="is no run folder"):
        Run.open(tmp_path)


def test_resume_takes_the_same_recipe_and_refuses_another(run, tmp_path):
    recipe_file = tmp_path / "files.yaml"
    assert Run.resume(run.directory, load_recipe(recipe_file)).directory == run.directory
    with pytest.raises(UserError, match=r"differ in seed \(1 and 2\), model.d_ff \(None and 9\)$"):
        changes = ["seed=2", "model.d_ff=9", "training.checkpoint_every=3"]
        Run.resume(run.directory, load_recipe(recipe_file, changes))


def changed(run, *settings):
    return load_recipe(run.directory, settings)


def test_steps_may_change_but_not_to_fewer_than_are_done(run):
    (run.checkpoints_dir / "step-00000020").mkdir(parents=True)
    for steps in (20, 200_000):
        recipe = changed(run, f"training.steps={steps}")
        assert Run.resume(run.directory, recipe).recipe.training.steps == steps
    message = r"training\.steps \(100000 and 19; 20 steps are already done\)$"
    with pytest.raises(UserError, match=message):
        Run.resume(run.directory, changed(run, "training.steps=19"))
    assert changed(run) == run.recipe


def test_changes_and_backends_are_recorded_with_their_step(run):
    for _ in range(2):
        assert run.record(0, "jax") == {}
    more = Run.resume(run.directory, changed(run, "training.steps=7", "evaluation.beam_size=2"))
    expected = {"training.steps": (100_000, 7), "evaluation.beam_size": (4, 2)}
    assert more.record(5, "jax") == expected
    assert Run.open(run.directory).recipe == more.recipe
    assert more.record(6, "torch") == {}
    entries = run.history()
    assert [(entry["step"], entry["backend"]) for entry in entries] == [
        (0, "jax"),
        (5, "jax"),
        (6, "torch"),
    ]
    changes = {key: list(pair) for key, pair in expected.items()}
    assert [entry["changes"] for entry in entries] == [{}, changes, {}]


def test_a_run_that_was_not_created_gets_its_recipe(recipe, tmp_path):
    run = Run(tmp_path, recipe)
    assert run.record(0, "jax") == {}
    assert Run.open(tmp_path).recipe == recipe


def test_a_refused_change_is_not_recorded(run):
    with pytest.raises(UserError, match=r"differ in seed \(1 and 2\)"):
        Run(run.directory, changed(run, "seed=2")).record(0, "jax")
    assert Run.open(run.directory).recipe == run.recipe
    assert run.history() == []


@pytest.mark.parametrize("content", [b"[{", b"{}", b"[3]"])
def test_a_damaged_history_is_refused_and_kept(run, content):
    run.history_path.write_bytes(content)
    with pytest.raises(UserError, match=r"history\.json"):
        run.record(0, "jax")
    assert run.history_path.read_bytes() == content


@pytest.fixture
def unfinished(run):
    """A run with three checkpoints of different models, but no finished model."""
    Tokenizer.train([("a b", "c d")], vocabulary_size=11).save(run.tokenizer_dir)
    losses = ValidationHistory({2: 1.0, 4: 5.0, 6: 3.0, 8: float("nan")})
    for step in (4, 6, 8):
        model = tiny_model()
        model.compile("sgd", "mse")
        save_checkpoint(run.checkpoints_dir, model, step, keep=3, history=losses)
    return run


def test_a_checkpoint_is_best_last_or_has_a_step(unfinished):
    for which, step in (("best", 6), ("last", 8), (4, 4)):
        path = unfinished.checkpoint(which)
        assert path.name == f"step-0000000{step}"
        found, expected = unfinished.model(which), load_checkpoint_model(path)
        for one, other in zip(found.get_weights(), expected.get_weights(), strict=True):
            assert (one == other).all()


@pytest.mark.parametrize("which", [5, "worst"])
def test_an_unknown_checkpoint_names_those_that_there_are(unfinished, which):
    with pytest.raises(UserError, match=f"no checkpoint {which!r}: .* checkpoints: 4, 6, 8$"):
        unfinished.model(which)


def test_no_checkpoint_is_told(run):
    tiny_model().save(run.model_path)
    for which in ("best", "last", 5):
        with pytest.raises(UserError, match="has no checkpoints: omit `checkpoint`$"):
            run.checkpoint(which)


def test_an_unfinished_run_says_which_checkpoints_can_be_used(unfinished):
    for use in (unfinished.model, unfinished.translator):
        with pytest.raises(UserError, match="`checkpoint`: best, last or .* steps 4, 6, 8$"):
            use()


def test_a_run_without_checkpoints_shows_the_command_that_trains_it(run):
    name = run.directory.rename(run.directory.with_name("my run"))
    run = Run.open(name)
    command = f"Train it first: keras-transformer train '{name}' --resume$"
    uses = (run.model, run.translator, run.tokenizer, run.shortlist)
    for use in (*uses, lambda: run.model("last"), lambda: run.translator(engine="ctranslate2")):
        with pytest.raises(UserError, match=command):
            use()


def test_a_checkpoint_with_another_tokenizer_is_refused(unfinished):
    shutil.rmtree(unfinished.tokenizer_dir)
    Tokenizer.train([("f e", "d c")], vocabulary_size=10).save(unfinished.tokenizer_dir)
    with pytest.raises(UserError, match="tokenizer that .*/step-00000008 was trained with"):
        unfinished.model("last")


def test_a_damaged_model_does_not_stop_the_use_of_a_checkpoint(unfinished):
    before = unfinished.model("last").count_params()
    unfinished.model_path.write_bytes(b"damaged")
    assert unfinished.model("last").count_params() == before


def test_ctranslate2_refuses_a_checkpoint(unfinished):
    with pytest.raises(ValueError, match="only with the finished model.*checkpoint='best'"):
        unfinished.translator(engine="ctranslate2", checkpoint="best")


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
    with pytest.raises(UserError, match="has no model and no checkpoint yet"):
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


def test_held_out_splits_are_written_once_and_then_need_no_corpus(tmp_path, capsys):
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("".join(f"one {n}\teins {n}\n" for n in range(40)) * 2)
    path = tmp_path / "held.yaml"
    held_out = "held_out: {validation: 5, test: 7}"
    path.write_text(f"{{name: a, data: {{train: {{source: {corpus}}}, {held_out}}}}}")
    run = Run.create(tmp_path / "run", load_recipe(path))
    pairs = {split: list(run.pairs(split)) for split in ("train", "validation", "test")}
    assert {split: len(found) for split, found in pairs.items()} == {
        "train": 56,
        "validation": 5,
        "test": 7,
    }
    assert capsys.readouterr().out == (
        "held out: 5 pairs for validation, 7 for test; 12 others dropped: they share a sentence "
        "with a held-out pair\n"
    )
    assert len(set(pairs["train"] + pairs["validation"] + pairs["test"])) == 40
    corpus.unlink()
    assert list(Run.open(run.directory).pairs("test")) == pairs["test"]


def test_a_run_that_splits_its_text_does_not_replace_a_folder_of_the_user(tmp_path):
    (tmp_path / "corpus.tsv").write_text("one\teins\n")
    path = tmp_path / "held.yaml"
    path.write_text("{name: a, data: {train: {source: corpus.tsv}, held_out: {}}}")
    recipe = load_recipe(path, [f"data.directory={tmp_path}"])
    (tmp_path / "text").mkdir()
    with pytest.raises(UserError, match="already holds text"):
        Run.create(tmp_path, recipe)


def test_one_process_trains_in_a_run_and_a_kill_leaves_no_lock(run, recipe, tmp_path):
    with locked_by_another_process(run.directory):
        with pytest.raises(UserError, match=f"another process is training in {run.directory}"):
            training_lock(run.directory).__enter__()
        with pytest.raises(UserError, match="another process is training"):
            Run.create(run.directory, recipe)
        with pytest.raises(UserError, match="another process is training"):
            run.discard()
        assert Run.open(run.directory).recipe == recipe
        add_score_of_a_model(run)
    with training_lock(run.directory), training_lock(run.directory):
        assert run.recipe_path.exists()


def add_score_of_a_model(run):
    run.model_path.write_bytes(b"weights")
    add_score(run, 41.0)
    assert [entry["score"] for entry in run.scores()] == [41.0]


def test_a_failed_start_leaves_no_folder(run, tmp_path):
    run.tokenizer_dir.mkdir()
    run.discard()
    assert not run.directory.exists()


def test_a_failed_start_leaves_what_was_there_before(recipe, tmp_path):
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    (folder / "notes.txt").write_text("years of work")
    run = Run.create(folder, recipe)
    run.store_dir.mkdir()
    run.discard()
    assert {path.name for path in folder.iterdir()} == {"data", "notes.txt"}


def test_a_failed_start_leaves_files_of_others(run):
    run.store_dir.mkdir()
    (run.directory / "notes.txt").write_text("written during the start")
    run.discard()
    assert [path.name for path in run.directory.iterdir()] == ["notes.txt"]


def test_a_run_with_a_checkpoint_or_from_elsewhere_is_not_discarded(run):
    Run.open(run.directory).discard()
    assert run.recipe_path.exists()
    (run.checkpoints_dir / "step-00000003").mkdir(parents=True)
    run.discard()
    assert run.recipe_path.exists()


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/run"])
def test_a_place_without_room_for_a_run_is_refused(recipe, tmp_path, place):
    (tmp_path / "file").write_text("text")
    with pytest.raises(UserError, match=f"{place} cannot be a run folder: "):
        Run.create(tmp_path / place, recipe)
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("content", [b"[{", b"[" * 100_000, b"\xff", b"{}", b"3"])
def test_damaged_scores_are_refused(run, content):
    run.scores_path.write_bytes(content)
    with pytest.raises(UserError, match="scores.json"):
        run.check_scores()
    assert run.scores_path.read_bytes() == content


def test_a_folder_in_place_of_the_lock_is_refused_before_scoring(run):
    (run.directory / ".write.lock").mkdir()
    with pytest.raises(UserError, match=r"\.write\.lock must be a file"):
        run.check_scores()


def test_a_file_in_place_of_the_translations_is_refused_before_scoring(run):
    run.hypotheses_dir.touch()
    with pytest.raises(UserError, match="hypotheses must be a folder"):
        run.check_scores()


def test_fingerprints_of_splits_are_kept_and_damage_is_told(run):
    assert run.fingerprints() == {}
    run.add_fingerprint("train", "a")
    run.add_fingerprint("validation", "b")
    run.add_fingerprint("train", "c")
    assert run.fingerprints() == {"train": "c", "validation": "b"}
    run.fingerprints_path.write_text("[3]")
    with pytest.raises(UserError, match=r"fingerprints\.json cannot be read"):
        run.fingerprints()


def test_a_read_only_run_is_refused_before_scoring(run, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(UserError, match=f"{run.directory} is read-only"):
        run.check_scores()


SCORING = """
import sys
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.run import Run
run = Run.open(sys.argv[1])
for score in range(20):
    run.add_score(split="test", metric="BLEU", score=score, signature="", options=SearchOptions())
"""


def test_scores_of_several_processes_are_all_kept(run):
    run.model_path.write_bytes(b"weights")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCORING, str(run.directory)]
    children = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert sorted(entry["score"] for entry in run.scores()) == sorted([*range(20)] * 3)


def tokenizer_of(words, size, **options):
    return Tokenizer.train([(words, words)], vocabulary_size=size, **options)


def test_a_tokenizer_of_another_run_is_refused(run):
    tokenizer = tokenizer_of("a b c d e f g", 16)
    tokenizer.save(run.tokenizer_dir)
    model = Transformer(16, num_layers=1, d_model=6, num_heads=2, d_ff=7)
    model.save(run.model_path)  # as releases did that stored no fingerprint
    assert run.model().vocabulary_size == 16
    with zipfile.ZipFile(run.model_path, "a") as archive:
        archive.writestr(TOKENIZER_MEMBER, tokenizer.fingerprint)
    assert run.model().vocabulary_size == 16
    others = {
        "same sizes": tokenizer_of("h i j k l m n", 16),
        "smaller": tokenizer_of("a b c d e f g", 15),
        "separate": tokenizer_of("a b c d e f g", 16, joint=False),
    }
    for other in others.values():
        shutil.rmtree(run.tokenizer_dir)
        other.save(run.tokenizer_dir)
        with pytest.raises(UserError, match="is not the tokenizer that .*model.keras was trained"):
            run.model()


def test_another_tokenizer_is_refused_by_its_size_alone(run):
    tiny_model().save(run.model_path)
    tokenizer_of("a b c d e f g", 16).save(run.tokenizer_dir)
    with pytest.raises(UserError, match=r"vocabularies of \(11, 11\) ids. Received: \(16, 16\)"):
        run.model()


def test_a_model_of_another_kind_is_refused(run):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(run.model_path)
    with pytest.raises(UserError, match="must contain a model that translates.*class Sequential"):
        run.model()


def test_text_that_has_moved_is_told_by_what_the_command_has(run, tmp_path):
    shutil.move(tmp_path / "data", tmp_path / "moved")
    with pytest.raises(UserError, match=f"test.en: .* in {run.recipe_path}"):
        Run.open(run.directory).pairs("test")
