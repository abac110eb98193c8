"""A checkpoint is complete or not there, damage is seen, and the average is the mean."""

import json

import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.runs.checkpoints import checkpoint_folders
from keras_transformer.runs.loading import load_checkpoint_model
from keras_transformer.training import TransformerAdam, average_checkpoints, check_same_options
from keras_transformer.training.checkpoint import clean_up, load_checkpoint, save_checkpoint
from keras_transformer.training.step.optimizer import averaged_weights


def new_model(optimizer=None, width=3):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(width)])
    model.compile(optimizer or TransformerAdam(0.1), loss="mse")
    return model


@pytest.fixture(scope="module")
def model():
    model = new_model()
    model.fit(np.ones((4, 2)), np.ones((4, 3)), verbose=0)
    return model


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def truncate(path):
    (path / "model.keras").write_bytes((path / "model.keras").read_bytes()[:-100])


@pytest.mark.parametrize("other", [{"width": 4}, {"optimizer": "sgd"}])
def test_another_model_or_optimizer_is_refused(model, tmp_path, other):
    path = save_checkpoint(tmp_path, model, step=1, keep=1)
    with pytest.raises(UserError, match="step-00000001 is of another model or optimizer"):
        load_checkpoint(path, new_model(**other))


def test_leftovers_and_old_checkpoints_are_removed_and_nothing_else(model, tmp_path):
    others = ["step-00000099.bak", "step-0000099", "step-000000999", ".partial-notes", ".mine"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".DS_Store").write_text("")
    (tmp_path / "step-00000098").write_text("a file")
    before = names(tmp_path)
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, model, step, keep=2)
    for name in (".partial-step-00000002", ".partial-step-00000001-k2j"):
        (tmp_path / name).mkdir()
    clean_up(tmp_path)
    kept = ["step-00000002", "step-00000003"]
    assert names(tmp_path) == sorted([*before, *kept])
    assert [path.name for path in checkpoint_folders(tmp_path)] == kept


def write_state(path, content):
    (path / "state.json").write_text(content)


def of_another_format(path):
    state = json.loads((path / "state.json").read_text())
    write_state(path, json.dumps({**state, "format": 3}))


@pytest.mark.parametrize(
    "damage, message",
    [
        (truncate, "step-00000001 cannot be loaded: the SHA-256 of model.keras must be"),
        (lambda path: (path / "state.json").unlink(), "step-00000001 cannot be loaded"),
        (lambda path: write_state(path, '{"step": 1}'), "step-00000001 cannot be loaded"),
        (of_another_format, "must have the format 2. Received: 3"),
    ],
)
def test_a_damaged_checkpoint_is_refused(model, tmp_path, damage, message):
    path = save_checkpoint(tmp_path, model, step=1, keep=1)
    damage(path)
    for load in (lambda path: load_checkpoint(path, model), load_checkpoint_model):
        with pytest.raises(UserError, match=message):
            load(path)


def checkpoint_of(directory, step, *weights):
    """A checkpoint of one dense layer with these weights."""
    width = len(weights)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(width, use_bias=False)])
    model.compile("adam", loss="mse")
    model.set_weights([np.array([weights], "float32")])
    return save_checkpoint(directory, model, step, keep=10)


def test_the_average_is_the_mean_without_rounding_and_has_no_optimizer(tmp_path):
    # In float32, 2^24 + 1 is 2^24: a running sum would lose every 1.
    values = [(2.0**24, 1.0), (1.0, 2.0), (1.0, 6.0), (1.0, 3.0)]
    paths = [checkpoint_of(tmp_path, step, *weights) for step, weights in enumerate(values)]
    average_checkpoints(paths, tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model.get_weights(), [[[np.float32((2**24 + 3) / 4), 3.0]]])
    assert not model.compiled


def test_averages_of_the_weights_stand_for_them(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(TransformerAdam(use_ema=True, ema_momentum=0.5), loss="mse")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(1)  # Before the first step, averages do not count.
    ((_, variable),) = averaged_weights(model.optimizer)
    for step, average in enumerate([1.0, 2.0]):
        variable.assign([[average]])
        save_checkpoint(tmp_path, model, step, keep=2)
    average_checkpoints(sorted(tmp_path.glob("step-*")), tmp_path / "model.keras")
    averaged = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(averaged.get_weights(), [[[1.5]]])
    assert not averaged.compiled


@pytest.mark.parametrize("change", [lambda x: x.quantize("int8"), lambda x: x.enable_lora(1)])
def test_refuses_to_average_codes_and_factors(tmp_path, change):
    for step in (1, 2):
        model = new_model()
        change(model.layers[0])
        model.optimizer.build(model.trainable_variables)
        save_checkpoint(tmp_path, model, step, keep=2)
    paths = sorted(tmp_path.glob("step-*"))
    with pytest.raises(UserError, match="quantized models or .* LoRA cannot be averaged.*00000001"):
        average_checkpoints(paths, tmp_path / "model.keras")
    average_checkpoints(paths[1:], tmp_path / "model.keras")


def test_other_options_are_refused_by_name(tmp_path):
    folder = tmp_path / "runs" / "mine"
    check_same_options(folder, {"steps": 3, "seed": 1, "data_dir": "a"}, may_change=["data_dir"])
    assert json.loads((folder / "options.json").read_text()) == {"steps": "3", "seed": "1"}
    check_same_options(folder, {"steps": 3, "seed": 1, "data_dir": "b"}, may_change=["data_dir"])
    with pytest.raises(UserError, match="Received: seed=2, before 1$"):
        check_same_options(folder, {"steps": 3, "seed": 2})
