"""Training by a recipe: what it leaves, and that a stop makes no difference."""

import json
import shutil
import sys
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from support import tiny_run
from support.command_line import python
from support.contract import assert_same_arrays, to_numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from keras_transformer.data import Tokenizer, TokenStore
from keras_transformer.data.vocabulary import converted
from keras_transformer.errors import UserError
from keras_transformer.formats import ExportOptions, export_run
from keras_transformer.models import merge_lora
from keras_transformer.recipe.files import load_recipe
from keras_transformer.recipe.sections import Data
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.checkpoints import TOKENIZER_MEMBER, load_history, read_member
from keras_transformer.runs.info import run_info
from keras_transformer.runs.loading import load_checkpoint_model
from keras_transformer.runs.run import Run
from keras_transformer.training import train
from keras_transformer.training.callbacks import CompileAhead
from keras_transformer.training.devices.base import ONE_DEVICE
from keras_transformer.training.run.finish import write_average
from keras_transformer.training.run.prepare import in_languages, new_trainer, prepare
from keras_transformer.training.run.train import start
from keras_transformer.training.run.validate import TranslationValidation
from keras_transformer.translation.open_run import open_model


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Run, str]:
    """A run that nothing interrupted, and what it printed."""
    directory = tmp_path_factory.mktemp("whole")
    process = python(tiny_run.__file__, directory)
    return Run.open(directory / "run"), process.stdout


@pytest.fixture
def copy(whole, tmp_path) -> Run:
    """The finished run in another folder, where its text lies too."""
    folder = shutil.copytree(whole[0].directory.parent, tmp_path / "copy")
    data = whole[0].recipe.data.model_copy(update={"directory": folder})
    run = Run(folder / "run", whole[0].recipe.model_copy(update={"data": data}))
    run.recipe_path.write_text(run.recipe.to_yaml())
    return run


def changed(run: Run, **sections) -> Run:
    """The run with other settings, by the sections of its recipe."""
    update = {
        name: getattr(run.recipe, name).model_copy(update=settings)
        for name, settings in sections.items()
    }
    return Run(run.directory, run.recipe.model_copy(update=update))


def run_after(first: Run, directory: Path, settings: dict | None = None, **sections) -> Run:
    """One step that goes on from the weights of another run, with `settings` of training."""
    training = {"initial_run": first.directory, "steps": 1, "accumulation_steps": 1}
    training |= {"validation_bleu_sentences": 0, "warmup_steps": 4_000, "simcut": 5.0}
    training |= settings or {}
    return tiny_run.new_run(directory, training=training, **sections)


def arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array in a `.keras` file, by its name."""
    items = []
    with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as file:
        h5py.File(file).visititems(lambda *item: items.append(item))
        return {name: x[()] for name, x in items if isinstance(x, h5py.Dataset)}


def assert_same_bits(actual: Path, expected: Path) -> None:
    found, wanted = arrays(actual), arrays(expected)
    assert len(wanted) > 10
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def assert_resumes_bit_for_bit(whole: Run, stopped: Run, steps: int) -> Run:
    """Trains to more steps than the recipe has, one run at once. Returns this one."""
    whole = changed(whole, training={"steps": steps})
    train(whole)
    train(stopped)
    train(changed(stopped, training={"steps": steps}), resume=True)
    assert_same_bits(*(x.checkpoints()[-1] / "model.keras" for x in (stopped, whole)))
    assert_same_bits(stopped.model_path, whole.model_path)
    return whole


def test_weight_decay_shrinks_matrices_and_the_cosine_ends_at_zero(tmp_path):
    settings = {"accumulation_steps": 1, "peak_learning_rate": 0.1, "global_clipnorm": None}
    settings |= {"warmup_steps": 2, "cosine_steps": 8, "simcut": 0.0}
    ids = np.array([[2, 5, 6, 3]])
    steps = []
    for decay in (0.0, 0.5):
        keras.utils.set_random_seed(1)
        training = settings | {"weight_decay": decay}
        trainer = new_trainer(tiny_run.recipe_for(tmp_path, training=training))
        before = [to_numpy(x) for x in trainer.trainable_variables]
        rate = float(trainer.optimizer.learning_rate)
        trainer.train_on_batch({"source_ids": ids, "target_ids": ids}, ids)
        steps.append(
            [to_numpy(x) - y for x, y in zip(trainer.trainable_variables, before, strict=True)]
        )
    np.testing.assert_allclose(rate, 0.05)
    for weight, without, decayed in zip(before, *steps, strict=True):
        shrunk = 0.5 * rate * weight if weight.ndim > 1 else 0.0
        np.testing.assert_allclose(decayed, without - shrunk, atol=1e-4)
    schedule = trainer.optimizer._learning_rate
    np.testing.assert_allclose([float(schedule(x)) for x in (1, 5, 9)], [0.1, 0.05, 0], atol=1e-7)


@pytest.mark.each_backend_if_slow
def test_leaves_a_complete_run_folder(whole):
    run, printed = whole
    names = {path.name for path in run.directory.iterdir()}
    assert {"recipe.yaml", "history.json", "tokenizer", "checkpoints", "logs"} <= names
    steps = [path.name for path in run.checkpoints()]
    assert steps == ["step-00000002", "step-00000004", "step-00000005"]
    assert read_member(run.model_path, TOKENIZER_MEMBER) == run.tokenizer().fingerprint
    kept = load_checkpoint_model(run.checkpoints()[-1]).tokenizer_files
    assert kept == run.tokenizer().files
    expected = "loaded" if keras.config.backend() == "tensorflow" else "absent"
    assert printed.splitlines()[-1] == f"TensorFlow is {expected}"


@pytest.mark.each_backend
def test_on_a_gpu_jax_compiles_all_shapes_before_the_first_step(tmp_path, monkeypatch, caplog):
    if keras.config.backend() != "jax":
        return

    def programs() -> int:
        return sum("XLA compilation of jit(train_step)" in x for x in caplog.messages)

    def on_train_begin(callback, logs=None):
        compile_all(callback, logs)
        counts.extend([len(callback.batches), programs()])

    compile_all = CompileAhead.on_train_begin
    counts: list[int] = []
    monkeypatch.setattr(sys.modules[train.__module__], "is_on_cpu", lambda: False)
    monkeypatch.setattr(CompileAhead, "on_train_begin", on_train_begin)
    with caplog.at_level("DEBUG", "jax"):
        several_shapes = {"length_multiple": 2, "subword_regularization": None}
        train(
            tiny_run.new_run(tmp_path, training={**several_shapes, "validation_bleu_sentences": 0})
        )
    assert counts == [programs()] * 2 and programs() > 1


@pytest.mark.each_backend_if_slow
def test_logs_what_there_is_to_watch(whole):
    logs = EventAccumulator(str(whole[0].logs_dir)).Reload()
    training = {"loss", "accuracy", "perplexity", "learning_rate", "gradient_norm"}
    validation = {"validation/loss", "validation/accuracy", "validation/perplexity"}
    expected = {*training, "tokens_per_second", *validation, "validation/bleu"}
    assert set(logs.Tags()["scalars"]) == expected
    for tag in expected:
        assert [scalar.step for scalar in logs.Scalars(tag)] == [2, 4, 5]
    content = logs.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    settings = metadata.parse_session_start_info_plugin_data(content).hparams
    assert settings["model.d_model"].number_value == 4
    assert settings["training.steps"].number_value == tiny_run.STEPS
    rates = [scalar.value for scalar in logs.Scalars("learning_rate")]
    # warmup_steps=2, d_model=4: 4^-0.5 / sqrt(step) of the steps that come next.
    np.testing.assert_allclose(rates, 0.5 / np.sqrt([3, 5, 6]), rtol=1e-6)
    assert len(logs.Tensors("validation/translations")) == 3
    assert len(logs.Tensors("validation/attention/cross")) == 3
    words = (whole[0].logs_dir / "projector_joint_words.tsv").read_text("utf-8").splitlines()
    assert words == whole[0].tokenizer().source_pieces


@pytest.mark.each_backend
@pytest.mark.slow
def test_resume_continues_bit_for_bit(whole, tmp_path):
    for place, step in [("step", 0), ("checkpoint", 2), ("step", 3), ("checkpoint", 4)]:
        python(tiny_run.__file__, tmp_path, place, step, status=-9)
    left = tmp_path / "run" / "checkpoints"
    names = sorted(path.name for path in left.iterdir())
    assert [name[:22] for name in names] == [".partial-step-00000004", "step-00000002"]
    run = tiny_run.go_on(tmp_path)
    assert not list(left.glob(".*"))
    assert [path.name for path in run.checkpoints()][-1] == whole[0].checkpoints()[-1].name
    assert_same_bits(run.model_path, whole[0].model_path)
    assert_same_bits(*(x.checkpoints()[-1] / "model.keras" for x in (run, whole[0])))


@pytest.mark.slow
@pytest.mark.parametrize("packing", [False, True])
def test_a_mixture_of_corpora_resumes_bit_for_bit(tmp_path, packing):
    files = {"source": "text.en", "target": "text.de"}
    tagged = {**files, "tag": "<x>"}
    run = tiny_run.new_run(
        tmp_path,
        data={"train": [tagged, {**files, "weight": 0.3}], "validation": tagged},
        training={"steps": 4, "validation_bleu_sentences": 0, "tokens_per_batch": 32}
        | {"packing": packing},
    )
    train(run)
    tokenizer = run.tokenizer()
    assert tokenizer.source_pieces[4] == "▁<x>"
    for split, counts in {"train": [60, 0], "validation": [60]}.items():
        store = TokenStore(run.store_dir / split)
        parts = np.split(np.arange(len(store)), np.cumsum(store.corpora)[:-1])
        tags = [sum(store.pair(pair)[0][0] == 4 for pair in part) for part in parts]
        assert tags == counts and not (store._ids["target"] == 4).any()
    copy = shutil.copytree(run.directory, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints" / "step-00000004")
    (copy / "model.keras").unlink()
    train(Run.resume(copy, run.recipe), resume=True)
    assert_same_bits(copy / "model.keras", run.model_path)


@pytest.mark.each_backend
@pytest.mark.slow
def test_training_ends_when_the_validation_loss_has_not_fallen(tmp_path, capsys):
    # A rate of almost 0 leaves the loss as it is after the first step.
    settings = {"steps": 9, "checkpoint_every": 1, "accumulation_steps": 1, "ema_momentum": None}
    settings |= {"peak_learning_rate": 1e-30, "early_stopping_patience": 2}
    settings |= {"validation_bleu_sentences": 0, "gradient_checkpointing": True}
    run = tiny_run.new_run(tmp_path, training=settings, evaluation={"average_last": 1})
    train(run)
    names = [f"step-0000000{step}" for step in (1, 2, 3)]
    assert [path.name for path in run.checkpoints()] == names
    told = "ended after 2 checkpoints without a lower validation loss, step-00000003."
    assert told in capsys.readouterr().out
    first = load_checkpoint_model(run.checkpoints()[0])
    assert_same_arrays(open_model(run).weights, first.weights)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize(
    "name", ["schedule_free", *(pytest.param(x, marks=pytest.mark.slow) for x in ("muon", "lion"))]
)
def test_another_optimizer_resumes_bit_for_bit_and_its_means_are_served(name, tmp_path):
    settings = {"checkpoint_every": 1, "accumulation_steps": 2, "ema_momentum": None, "steps": 2}
    settings |= {"validation_bleu_sentences": 0, "keep_checkpoints": 3, "optimizer": name}
    settings |= {"warmup_steps": 1, "peak_learning_rate": 0.01, "weight_decay": 0.1}
    sections = {"training": settings, "evaluation": {"average_last": 1}}
    runs = [tiny_run.new_run(tmp_path / folder, **sections) for folder in ("whole", "stopped")]
    whole = assert_resumes_bit_for_bit(*runs, steps=3)
    # the model served holds the means, if there are any, and the checkpoint the weights in training
    saved = arrays(whole.checkpoints()[-1] / "model.keras")
    served = {x.tobytes() for x in map(to_numpy, open_model(whole).trainable_variables)}
    means = {x.tobytes() for key, x in saved.items() if key.startswith("optimizer")}
    assert (served <= means) == (name == "schedule_free")
    # so does the loss of validation
    losses = load_history(whole.checkpoints()[-1]).losses
    trainer = new_trainer(whole.recipe)
    trainer.model.set_weights(open_model(whole).get_weights())
    batches = prepare(whole, True, ONE_DEVICE)[3]
    found = TranslationValidation(whole, whole.tokenizer(), batches)(trainer, 3)
    np.testing.assert_allclose(losses[3], found["loss"], rtol=1e-6)


def run_of_student(teacher: Run, directory: Path) -> Run:
    training = {"teacher": teacher.directory, "steps": 2, "validation_bleu_sentences": 0}
    return tiny_run.new_run(directory, training=training, model={"d_model": 6, "dropout_rate": 0.3})


@pytest.mark.each_backend
@pytest.mark.slow
def test_a_student_of_a_teacher_resumes_bit_for_bit(whole, tmp_path):
    students = [run_of_student(whole[0], tmp_path / name) for name in ("once", "twice")]
    student = assert_resumes_bit_for_bit(*students, steps=4)
    assert student.tokenizer().fingerprint == whole[0].tokenizer().fingerprint


def test_a_teacher_keeps_its_model_and_its_tokenizer(copy, tmp_path):
    run = run_of_student(copy, tmp_path / "student")
    train(run)
    write_average(copy, copy.checkpoints()[:1])
    with pytest.raises(UserError, match=r"training\.teacher: .* Received: another model"):
        train(run, resume=True)
    shutil.rmtree(run.tokenizer_dir)
    Tokenizer.train([("a b c", "d e f")], 17).save(run.tokenizer_dir)
    run.fingerprints_path.unlink()
    with pytest.raises(UserError, match=r"training\.teacher: .* Received: another tokenizer"):
        train(run, resume=True)


@pytest.mark.once
def test_a_multilingual_tokenizer_gets_the_languages_of_the_recipe():
    plain = Tokenizer.train([("a b c", "d e f")], 17)
    model = converted(
        plain.source_model, [*plain.source_pieces, "eng_Latn", "deu_Latn", "fra_Latn"]
    )
    tokenizer = Tokenizer(model, source_prefix=["eng_Latn"], target_prefix=["deu_Latn"])

    def data(**changes):
        files = {x: {"source": "a.tsv"} for x in ("train", "validation", "test")}
        return Data(**{"source_language": "fr", "target_language": "en", **files, **changes})

    found = in_languages(tokenizer, data())
    assert found.frames["source_prefix"] == ["fra_Latn"]
    assert found.frames["target_prefix"] == ["eng_Latn"]
    assert in_languages(plain, data()) is plain
    for changes, message in (
        ({"target_language": "sw"}, "3 target languages, eng_Latn, .* Received: sw"),
        ({"both_directions": True}, "both_directions must be false"),
    ):
        with pytest.raises(UserError, match=message):
            in_languages(tokenizer, data(**changes))


@pytest.mark.parametrize("name, value, trained", [("d_ff", 8, 4), ("activation", "gelu", "relu")])
def test_another_run_must_have_the_model_of_the_recipe(whole, tmp_path, name, value, trained):
    run = run_after(whole[0], tmp_path, model={name: value})
    message = rf"training\.initial_run: .* trained with {name}={trained}, .* has {name}={value}"
    with pytest.raises(UserError, match=message):
        train(run)
    assert not run.store_dir.exists()


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(
            {"lora_rank": 1, "lora_parts": ["decoder"]},
            marks=[pytest.mark.each_backend, pytest.mark.slow],
        ),
        {"frozen": ["encoder", "embedding"]},
    ],
)
def test_adapters_and_frozen_layers_keep_what_they_change_and_name_the_rest(
    training, whole, tmp_path
):
    first = Run.open(shutil.copytree(whole[0].directory, tmp_path / "first"))
    training |= {"steps": 2, "peak_learning_rate": 0.1, "warmup_steps": 1}
    runs = [run_after(first, tmp_path / name, training) for name in ("whole", "twice")]
    run = assert_resumes_bit_for_bit(*runs, steps=4)

    model, before = open_model(run), {x.path: to_numpy(x) for x in open_model(first).weights}
    for weight in model.weights:
        if not weight.trainable:
            np.testing.assert_array_equal(to_numpy(weight), before[weight.path])
        else:
            assert not np.array_equal(to_numpy(weight), before.get(weight.path))
            assert not any(part in weight.path for part in training.get("frozen", ()))
    assert len(arrays(run.model_path)) == sum(x.trainable for x in model.weights)
    assert run_info(run.directory)["parameters"] == model.count_params()
    merged = merge_lora(model)
    inputs = {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7, 8]])}
    np.testing.assert_allclose(to_numpy(merged(inputs)), to_numpy(model(inputs)), atol=1e-6)

    train(following := run_after(run, tmp_path / "next", {"peak_learning_rate": 1e-30}))
    assert_same_arrays(open_model(following).weights, merged.weights, atol=1e-6)
    copy = export_run(run, ExportOptions(format="run", output=tmp_path / "copy")).directory
    write_average(first, first.checkpoints()[:1])
    with pytest.raises(UserError, match="which must be as it was. Received: another file"):
        open_model(run)
    first.model_path.unlink()
    assert_same_arrays(open_model(Run.open(copy)).weights, merged.weights)
    with pytest.raises(UserError, match="Received: no such file"):
        train(changed(run, training={"steps": 5}), resume=True)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.position_encoding=learned", "must be at most model.max_length=16.*24 tokens"),
        ("model.activation=reluu", "tiny_run cannot be trained: .*reluu"),
        ("training.tokens_per_batch=1", "tokens_per_batch"),
        ("tokenizer.vocabulary_size=50000", "vocabulary_size"),
        ("training.frozen=[spiral]", "cannot be trained: no layer has this part .*'spiral'"),
        (
            "training.packing=true model.decoder_layer=keras_transformer>SSRUDecoderLayer",
            "tiny_run cannot be trained: .*packing.*`call` takes.*decoder_layer=.*SSRUDecoderLayer",
        ),
    ],
)
def test_settings_are_refused_before_anything_is_made(tmp_path, setting, message):
    tiny_run.write_text(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(tiny_run.recipe_for(tmp_path).to_yaml())
    small = ["model.max_length=16", "data.max_length=16"]
    run = Run.create(tmp_path / "run", load_recipe(path, [*small, *setting.split()]))
    with pytest.raises(UserError, match=message):
        train(run)
    assert not run.directory.exists()


def test_resuming_a_finished_run_changes_nothing(copy, capsys):
    write_average(copy, copy.checkpoints()[:1])
    content = copy.model_path.read_bytes()
    train(copy, resume=True)
    assert copy.model_path.read_bytes() == content
    assert f"{copy.model_path} is not changed" in capsys.readouterr().out


def test_another_number_of_checkpoints_is_averaged_again_even_after_a_kill(copy, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sys.modules[train.__module__], "fit", interrupted)
        train(changed(copy, evaluation={"average_last": 1}), resume=True)
    before = copy.model_path.read_bytes()
    train(Run.open(copy.directory), resume=True)
    assert_same_arrays(open_model(copy).weights, open_model(copy, checkpoint="last").weights)
    assert (copy.directory / "model.previous.keras").read_bytes() == before


def test_more_steps_replace_the_model_and_changes_are_recorded(copy, capsys):
    content = copy.model_path.read_bytes()
    (entry,) = copy.history()
    backend = keras.config.backend()
    assert (entry["step"], entry["backend"], entry["changes"]) == (0, backend, {})
    copy.history_path.write_text(json.dumps([{**entry, "backend": "other"}]))
    longer = changed(copy, training={"steps": tiny_run.STEPS + 1, "logits_mebibytes": 1})
    train(longer, resume=True)
    shown = capsys.readouterr().out
    assert f"step 5 on: the backend was 'other' and is now '{backend}'" in shown
    assert "step 5 on: training.steps was 5 and is now 6" in shown
    entry = copy.history()[-1]
    assert (entry["step"], entry["backend"]) == (tiny_run.STEPS, backend)
    assert entry["changes"]["training.logits_mebibytes"] == [None, 1]
    assert Run.open(copy.directory).recipe.training == longer.recipe.training
    assert (copy.directory / "model.previous.keras").read_bytes() == content
    assert copy.model_path.read_bytes() != content


@pytest.mark.parametrize("is_removed", [False, True])
def test_training_does_not_resume_with_another_text_or_tokenizer(copy, is_removed):
    if is_removed:
        shutil.rmtree(copy.store_dir)
    path = copy.directory.parent / "text.en"
    text = path.read_text()
    path.write_text(text.replace("a", "b"))
    with pytest.raises(UserError, match="store/train was encoded from another text"):
        train(copy, resume=True)
    assert len(copy.history()) == 1
    path.write_text(text)
    for pair, size, message in (
        (("a b c", "d e f"), 17, "with another tokenizer. Restore"),
        (("f e", "d c"), 10, "must have the recipe's vocabulary sizes"),
    ):
        shutil.rmtree(copy.tokenizer_dir)
        Tokenizer.train([pair], size).save(copy.tokenizer_dir)
        with pytest.raises(UserError, match=message):
            train(copy, resume=True)
    with pytest.raises(UserError, match="has other pieces than the tokenizer"):
        open_model(copy)


# What tells a process that it is one of many.
OF_MANY = {
    "torch": ("WORLD_SIZE", "2"),
    "jax": ("KERAS_DISTRIBUTION_NUM_PROCESSES", "2"),
    "tensorflow": ("TF_CONFIG", "{}"),
}


@pytest.mark.parametrize(
    "backend, training, message",
    [
        ("torch", {"distribution": "model_parallel"}, "with .*=model_parallel: .* or .*=jax"),
        ("tensorflow", {"jit_compile": True}, "tensorflow cannot .* training.jit_compile=true"),
        ("torch", {"model_shards": 2}, "model_shards needs training.distribution=model_parallel"),
        (
            "jax",
            {"distribution": "model_parallel", "model_shards": 3},
            "must divide num_heads, .*model_shards=3",
        ),
        *[(each, {"distribution": "none"}, "set .*=data_parallel") for each in OF_MANY],
    ],
)
def test_what_an_engine_cannot_do_is_refused(backend, training, message, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    monkeypatch.setenv(*OF_MANY[backend])
    files = {split: {"source": "a.tsv"} for split in ("train", "validation", "test")}
    settings = {"distribution": "data_parallel", **training}
    with pytest.raises(UserError, match=message):
        start(Recipe.model_validate({"name": "any", "data": files, "training": settings}))
