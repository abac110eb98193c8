"""A checkpoint is complete or not there, and damage is seen."""

import errno
import hashlib
import json
import zipfile

import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.training import TransformerAdam, checkpoint
from keras_transformer.training.checkpoint import (
    load_checkpoint,
    load_checkpoint_model,
    load_history,
    newest_checkpoint,
    remove_unfinished,
    save_checkpoint,
)
from keras_transformer.training.validation_history import ValidationHistory


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile(TransformerAdam(0.1), loss="mse")
    model.fit(np.ones((4, 2)), np.ones((4, 3)), verbose=0)
    return model


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def truncate(path):
    (path / "model.keras").write_bytes((path / "model.keras").read_bytes()[:-100])


def test_gives_back_weights_optimizer_and_step(model, tmp_path):
    again, step = load_checkpoint(save_checkpoint(tmp_path, model, step=7, keep=1))
    assert step == 7
    pairs = zip(
        model.weights + model.optimizer.variables,
        again.weights + again.optimizer.variables,
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(other), keras.ops.convert_to_numpy(one)
        )


def test_keeps_the_newest(model, tmp_path):
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, model, step, keep=2)
    assert names(tmp_path) == ["step-00000002", "step-00000010"]


def test_keeps_the_best_besides_and_what_validation_found(model, tmp_path):
    history = ValidationHistory()
    for step, loss in enumerate([3.0, 1.0, 2.0, 4.0], start=1):
        history.report(step, {"validation/loss": loss})
        path = save_checkpoint(tmp_path, model, step, 1, history, keep_best=2)
    assert names(tmp_path) == ["step-00000002", "step-00000003", "step-00000004"]
    assert load_history(path).losses == history.losses
    assert load_history(tmp_path / "step-00000002").losses == {1: 3.0, 2: 1.0}


def test_full_disk_leaves_older_checkpoints_and_no_half_one(model, tmp_path, monkeypatch):
    save_checkpoint(tmp_path, model, step=1, keep=1)

    def disk_is_full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_sha256", disk_is_full)
    with pytest.raises(UserError, match="no space left on the disk for .*step-00000002"):
        save_checkpoint(tmp_path, model, step=2, keep=1)
    monkeypatch.undo()
    assert names(tmp_path) == ["step-00000001"]
    assert load_checkpoint(tmp_path / "step-00000001")[1] == 1


def test_truncated_model_is_refused(model, tmp_path):
    path = save_checkpoint(tmp_path, model, step=1, keep=1)
    truncate(path)
    with pytest.raises(UserError, match="step-00000001 is damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("load", [load_checkpoint, load_checkpoint_model])
def test_huge_configuration_is_refused(model, tmp_path, load):
    path = save_checkpoint(tmp_path, model, step=1, keep=1)
    with zipfile.ZipFile(path / "model.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * 2**26)
    digest = hashlib.sha256((path / "model.keras").read_bytes()).hexdigest()
    (path / "state.json").write_text(json.dumps({"step": 1, "sha256": {"model.keras": digest}}))
    with pytest.raises(UserError, match="config.json must have at most 4,194,304 bytes"):
        load(path)


@pytest.mark.parametrize(
    "content", [None, "", "[]", "[" * 10**5, " " * 2**25, json.dumps({"step": 1})]
)
def test_incomplete_state_is_refused(model, tmp_path, content):
    path = save_checkpoint(tmp_path, model, step=1, keep=1)
    (path / "state.json").unlink()
    if content is not None:
        (path / "state.json").write_text(content)
    with pytest.raises(UserError, match="step-00000001 is incomplete"):
        load_checkpoint(path)


def test_newest_undamaged_checkpoint_is_found_and_damage_reported(model, tmp_path):
    for step in (1, 2):
        path = save_checkpoint(tmp_path, model, step, keep=2)
    truncate(path)
    with pytest.warns(UserWarning, match="step-00000002 is damaged.*going on from step-00000001"):
        assert newest_checkpoint(tmp_path) == tmp_path / "step-00000001"
    assert names(tmp_path) == ["damaged-step-00000002", "step-00000001"]


def test_refuses_if_every_checkpoint_is_damaged(model, tmp_path):
    truncate(save_checkpoint(tmp_path, model, step=1, keep=1))
    with pytest.raises(UserError, match="step-00000001 is damaged"):
        newest_checkpoint(tmp_path)
    assert names(tmp_path) == ["step-00000001"]


def test_no_checkpoint_is_no_error(tmp_path):
    assert newest_checkpoint(tmp_path / "nowhere") is None


def test_leftovers_are_removed_and_nothing_else(model, tmp_path):
    save_checkpoint(tmp_path, model, step=1, keep=1)
    for name in (".partial-step-00000002", ".removed-step-00000000"):
        (tmp_path / name).mkdir()
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["step-00000001"]
