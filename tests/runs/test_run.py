"""The run folder."""

import os
import shutil
import warnings
import zipfile

import keras
import numpy as np
import pytest
from support.contract import to_numpy
from support.locking_process import locked_by_another_process

from keras_transformer.data import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.layers.base import Dense
from keras_transformer.models import Transformer
from keras_transformer.models.base import in_float32
from keras_transformer.recipe.files import load_recipe
from keras_transformer.runs.model_file import TOKENIZER_MEMBER, load_checkpoint_model
from keras_transformer.runs.run import Run, training_lock
from keras_transformer.runs.validation_history import ValidationHistory
from keras_transformer.training.checkpoint import save_checkpoint
from keras_transformer.translation.engines import open_translator
from keras_transformer.translation.open_run import open_model, open_shortlist


def tiny_model(**options):
    return Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7, **options)


def test_open_gives_back_the_recipe_as_used(run, recipe):
    assert Run.open(run.directory).recipe == recipe


def test_an_existing_run_is_not_begun_again(run, recipe):
    with pytest.raises(UserError, match="already holds a run: continue it with `Run.resume`"):
        Run.create(run.directory, recipe)
    other = recipe.model_copy(update={"seed": 2})
    with pytest.raises(
        UserError, match=r"another run, .* in seed \(1 and 2\): continue it with its own recipe"
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
        found, expected = open_model(unfinished, which), load_checkpoint_model(path)
        for one, other in zip(found.get_weights(), expected.get_weights(), strict=True):
            assert (one == other).all()


@pytest.mark.parametrize("which", [5, "worst"])
def test_an_unknown_checkpoint_names_those_that_there_are(unfinished, which):
    with pytest.raises(UserError, match=f"no checkpoint {which!r}: .* checkpoints: 4, 6, 8$"):
        open_model(unfinished, which)


def test_no_checkpoint_is_told(run):
    tiny_model().save(run.model_path)
    for which in ("best", "last", 5):
        with pytest.raises(UserError, match="has no checkpoints: omit `checkpoint`$"):
            run.checkpoint(which)


def test_an_unfinished_run_says_which_checkpoints_can_be_used(unfinished):
    for use in (open_model, open_translator):
        with pytest.raises(UserError, match=r"`checkpoint`: best, last or a step \(4, 6, 8\)$"):
            use(unfinished)


def test_a_run_without_checkpoints_shows_the_command_that_trains_it(run):
    name = run.directory.rename(run.directory.with_name("my run"))
    run = Run.open(name)
    command = f"Train it first: keras-transformer train '{name}' --resume$"
    uses = (open_model, open_translator, open_shortlist, Run.tokenizer)
    for use in (*uses, lambda x: open_model(x, "last")):
        with pytest.raises(UserError, match=command):
            use(run)


def test_a_checkpoint_with_another_tokenizer_is_refused(unfinished):
    shutil.rmtree(unfinished.tokenizer_dir)
    Tokenizer.train([("f e", "d c")], vocabulary_size=10).save(unfinished.tokenizer_dir)
    with pytest.raises(UserError, match="tokenizer that .*/step-00000008 was trained with"):
        open_model(unfinished, "last")


def test_a_damaged_model_does_not_stop_the_use_of_a_checkpoint(unfinished):
    before = open_model(unfinished, "last").count_params()
    unfinished.model_path.write_bytes(b"damaged")
    assert open_model(unfinished, "last").count_params() == before


def test_a_damaged_model_can_be_made_again_from_the_checkpoints(unfinished):
    unfinished.model_path.write_bytes(b"damaged")
    message = f"remove this file. Then: keras-transformer train {unfinished.directory} --resume$"
    with pytest.raises(UserError, match=message):
        open_model(unfinished)
    shutil.rmtree(unfinished.checkpoints_dir)
    with pytest.raises(UserError, match="model.keras is not a complete .* not a zip file$"):
        open_model(unfinished)


def test_a_model_that_is_older_than_the_newest_checkpoint_is_told(unfinished):
    tiny_model().save(unfinished.model_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_model(unfinished)
    os.utime(unfinished.model_path, (0, 0))
    for use in (unfinished.model, unfinished.model_place):
        with pytest.warns(
            UserWarning, match="is older than .* step 8. Commands .* --checkpoint last$"
        ):
            use()


def test_ctranslate2_refuses_a_checkpoint(unfinished):
    with pytest.raises(ValueError, match="finished model of one run.*checkpoint='best'"):
        open_translator(unfinished, engine="ctranslate2", checkpoint="best")


def test_model_comes_back_with_its_weights(run):
    model = tiny_model()
    model.save(run.model_path)
    loaded = open_model(run)
    assert type(loaded) is Transformer
    for mine, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        assert (mine == theirs).all()


def test_missing_model_and_tokenizer_are_told(run):
    with pytest.raises(UserError, match="has no model and no checkpoint yet"):
        open_model(run)
    with pytest.raises(UserError, match="no tokenizer yet"):
        run.tokenizer()


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
        assert run.is_training()
        with pytest.raises(UserError, match="no checkpoint yet. Another process is training"):
            raise run.unfinished()
        (run.checkpoints_dir / "step-00000001").mkdir(parents=True)
        with pytest.raises(UserError, match=r"Another process is training: wait .* a step \(1\)"):
            raise run.unfinished()
    assert not run.is_training()
    with training_lock(run.directory), training_lock(run.directory):
        assert run.recipe_path.exists()


def add_score_of_a_model(run):
    run.model_path.write_bytes(b"weights")
    entry = {"split": "test", "metric": "BLEU", "score": 41.0, "signature": "nrefs:1"}
    run.scores.add(**entry, options=SearchOptions())
    assert [entry["score"] for entry in run.scores.entries()] == [41.0]


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


def tokenizer_of(words, size, **options):
    return Tokenizer.train([(words, words)], vocabulary_size=size, **options)


def test_a_tokenizer_of_another_run_is_refused(run):
    tokenizer = tokenizer_of("a b c d e f g", 16)
    tokenizer.save(run.tokenizer_dir)
    model = Transformer(16, num_layers=1, d_model=6, num_heads=2, d_ff=7)
    model.save(run.model_path)  # as releases did that stored no fingerprint
    assert open_model(run).vocabulary_size == 16
    with zipfile.ZipFile(run.model_path, "a") as archive:
        archive.writestr(TOKENIZER_MEMBER, tokenizer.fingerprint)
    assert open_model(run).vocabulary_size == 16
    others = {
        "same sizes": tokenizer_of("h i j k l m n", 16),
        "smaller": tokenizer_of("a b c d e f g", 15),
        "separate": tokenizer_of("a b c d e f g", 16, joint=False),
    }
    for other in others.values():
        shutil.rmtree(run.tokenizer_dir)
        other.save(run.tokenizer_dir)
        with pytest.raises(UserError, match="is not the tokenizer that .*model.keras was trained"):
            open_model(run)


def test_another_tokenizer_is_refused_by_its_size_alone(run):
    tiny_model().save(run.model_path)
    tokenizer_of("a b c d e f g", 16).save(run.tokenizer_dir)
    with pytest.raises(UserError, match=r"vocabularies of \(11, 11\) ids. Received: \(16, 16\)"):
        open_model(run)


def test_a_model_of_another_kind_is_refused(run):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(run.model_path)
    with pytest.raises(UserError, match="must contain a model that translates.*class Sequential"):
        open_model(run)


def test_mixed_precision_computes_in_float32_where_that_is_faster(run):
    trained = tiny_model(dtype="mixed_bfloat16")
    trained.save(run.model_path)
    assert open_model(run).compute_dtype == "bfloat16"
    model = open_model(run, for_inference=True)
    compiles = keras.config.backend() != "torch"
    assert model.compute_dtype == ("float32" if compiles else "bfloat16")
    for found, expected in zip(model.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("change", ["lora", "int8", "frozen"])
def test_a_changed_model_computes_in_float32_as_its_twin_does(run, change):
    model = tiny_model(dtype="mixed_bfloat16")
    if change == "int8":
        model.quantize("int8")
    elif change == "frozen":
        model.layers[2].trainable = False
    else:
        for layer in model._flatten_layers():
            if isinstance(layer, Dense):
                layer.enable_lora(2)
                layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    model.save(run.model_path)
    ids = {"source_ids": np.array([[4, 5, 6, 3]]), "target_ids": np.array([[2, 7, 8]])}
    twin = model if keras.config.backend() == "torch" else in_float32(model)
    loaded = open_model(run, for_inference=True)
    np.testing.assert_allclose(to_numpy(loaded(ids)), to_numpy(twin(ids)), atol=1e-5)
    assert len(loaded.trainable_variables) == len(model.trainable_variables)


def test_pure_half_precision_stays(run):
    tiny_model(dtype="float16").save(run.model_path)
    assert open_model(run, for_inference=True).compute_dtype == "float16"
