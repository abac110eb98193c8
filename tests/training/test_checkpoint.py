"""A checkpoint is complete or not there, damage is seen, and the average is the mean."""

import json

import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.runs.checkpoints import (
    ValidationHistory,
    checkpoint_folders,
    load_checkpoint_model,
    load_history,
)
from keras_transformer.training import TransformerAdam, average_checkpoints
from keras_transformer.training.checkpoint import (
    load_checkpoint,
    newest_checkpoint,
    remove_unfinished,
    save_checkpoint,
)
from keras_transformer.training.optimizer import averaged_weights

pytestmark = pytest.mark.once


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


def test_gives_back_weights_optimizer_and_step(model, tmp_path):
    path = save_checkpoint(tmp_path, model, step=7, keep=1)
    again = new_model()
    assert load_checkpoint(path, again) == 7
    for found in (again, keras.saving.load_model(path / "model.keras")):
        pairs = zip(
            model.weights + model.optimizer.variables,
            found.weights + found.optimizer.variables,
            strict=True,
        )
        for one, other in pairs:
            np.testing.assert_array_equal(
                keras.ops.convert_to_numpy(other), keras.ops.convert_to_numpy(one)
            )


@pytest.mark.parametrize("other", [{"width": 4}, {"optimizer": "sgd"}])
def test_another_model_or_optimizer_is_refused(model, tmp_path, other):
    path = save_checkpoint(tmp_path, model, step=1, keep=1)
    with pytest.raises(UserError, match="step-00000001 is of another model or optimizer"):
        load_checkpoint(path, new_model(**other))


def test_other_files_among_the_checkpoints_do_no_harm_and_take_none(model, tmp_path):
    others = ["step-00000099.bak", "step-0000099", "step-000000999", ".partial-notes", ".mine"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".DS_Store").write_text("")
    (tmp_path / "step-00000098").write_text("a file")
    before = names(tmp_path)
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, model, step, keep=2)
    remove_unfinished(tmp_path)
    kept = ["step-00000002", "step-00000003"]
    assert names(tmp_path) == sorted([*before, *kept])
    assert [path.name for path in checkpoint_folders(tmp_path)] == kept
    assert newest_checkpoint(tmp_path).name == "step-00000003"


def test_keeps_the_best_besides_and_what_validation_found(model, tmp_path):
    history = ValidationHistory()
    for step, loss in enumerate([3.0, 1.0, 2.0, 4.0], start=1):
        history.report(step, {"validation/loss": loss})
        path = save_checkpoint(tmp_path, model, step, 1, history, keep_best=2)
    assert names(tmp_path) == ["step-00000002", "step-00000003", "step-00000004"]
    assert load_history(path).losses == history.losses
    assert load_history(tmp_path / "step-00000002").losses == {1: 3.0, 2: 1.0}


def write_state(path, content):
    (path / "state.json").write_text(content)


def of_another_format(path):
    state = json.loads((path / "state.json").read_text())
    write_state(path, json.dumps({**state, "format": 3}))


@pytest.mark.parametrize(
    "damage, message",
    [
        (truncate, "step-00000001 is damaged"),
        (lambda path: (path / "state.json").unlink(), "step-00000001 is incomplete"),
        (lambda path: write_state(path, "[]"), "step-00000001 is incomplete"),
        (lambda path: write_state(path, '{"step": 1}'), "step-00000001 is incomplete"),
        (of_another_format, "must have the format 2. Received: format=3"),
    ],
)
def test_a_damaged_checkpoint_is_refused(model, tmp_path, damage, message):
    path = save_checkpoint(tmp_path, model, step=1, keep=1)
    damage(path)
    for load in (lambda path: load_checkpoint(path, model), load_checkpoint_model):
        with pytest.raises(UserError, match=message):
            load(path)
    with pytest.raises(UserError, match=message):
        newest_checkpoint(tmp_path)
    assert names(tmp_path) == ["step-00000001"]


def test_newest_undamaged_checkpoint_is_found_and_damage_reported(model, tmp_path):
    for step in (1, 2):
        path = save_checkpoint(tmp_path, model, step, keep=2)
    truncate(path)
    with pytest.warns(UserWarning, match="step-00000002 is damaged.*resuming from step-00000001"):
        assert newest_checkpoint(tmp_path) == tmp_path / "step-00000001"
    assert names(tmp_path) == ["damaged-step-00000002", "step-00000001"]


def test_leftovers_are_removed_and_nothing_else(model, tmp_path):
    save_checkpoint(tmp_path, model, step=1, keep=1)
    for name in (".partial-step-00000002", ".removed-step-00000000"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000001" / ".partial-k2j").mkdir()
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["step-00000001"]
    assert names(tmp_path / "step-00000001") == ["model.keras", "state.json"]


def checkpoint_of(directory, step, *weights):
    """A checkpoint of one dense layer with these weights."""
    width = len(weights)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(width, use_bias=False)])
    model.compile("adam", loss="mse")
    model.set_weights([np.array([weights], "float32")])
    return save_checkpoint(directory, model, step, keep=10)


def test_is_the_mean_of_weights_and_has_no_optimizer(tmp_path):
    paths = [
        checkpoint_of(tmp_path, step, *weights)
        for step, weights in enumerate([(1.0, 10.0), (2.0, 20.0), (6.0, 0.0)])
    ]
    average_checkpoints(paths, tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model.get_weights(), [[[3.0, 10.0]]])
    assert not model.compiled


def test_sums_without_rounding(tmp_path):
    # In float32, 2^24 + 1 is 2^24: a running sum would lose every 1.
    paths = [checkpoint_of(tmp_path, step, 2.0**24 if step == 0 else 1.0) for step in range(4)]
    average_checkpoints(paths, tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model.get_weights(), [[[np.float32((2**24 + 3) / 4)]]])


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
