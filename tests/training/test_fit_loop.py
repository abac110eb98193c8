"""One loop for any model and any batches; a stop makes no difference."""

import itertools
import os
from pathlib import Path

import keras
import numpy as np
import pytest
from support import fitting_process
from support.cases import once
from support.command_line import python
from support.contract import assert_same_arrays, to_numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_transformer.errors import UserError
from keras_transformer.runs.checkpoints import checkpoint_folders, logged_scalars
from keras_transformer.runs.loading import load_checkpoint_model
from keras_transformer.training import TransformerAdam, array_batches, fit
from keras_transformer.training.devices.base import Distribution

X = np.arange(20, dtype="float32").reshape(10, 2) / 20
Y = X.sum(axis=1, keepdims=True)


def new_model(optimizer="sgd", dropout_rate=0.0, **compiling):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(dropout_rate)(inputs)))
    model.compile(optimizer, "mse", **compiling)
    return model


def fit_quietly(model, directory, batches=None, **arguments):
    arguments = {"steps": 5, "checkpoint_every": 2, **arguments}
    return fit(model, batches or array_batches(X, Y, 4), directory, progress=False, **arguments)


def names(directory) -> list[str]:
    return [path.name for path in checkpoint_folders(Path(directory) / "checkpoints")]


def state_of(model) -> list:
    return [*model.weights, *model.optimizer.variables]


@pytest.mark.each_backend_if_slow
def test_a_script_of_ten_lines_is_killed_and_resumes_to_the_same_bits(tmp_path):
    python(fitting_process.__file__, tmp_path / "killed", 8, status=-9)
    assert names(tmp_path / "killed") == ["step-00000003", "step-00000006"]
    (tmp_path / "killed" / "checkpoints" / ".DS_Store").write_text("")
    (tmp_path / "killed" / "checkpoints" / "step-00000060.bak").mkdir()
    models = []
    for folder in ("killed", "whole"):
        fitting_process.train(tmp_path / folder)
        newest = checkpoint_folders(tmp_path / folder / "checkpoints")[-1]
        assert newest.name == "step-00000011"
        models.append(keras.saving.load_model(newest / "model.keras"))
    assert_same_arrays(*map(state_of, models))
    assert type(models[0].optimizer) is type(keras.optimizers.AdamW())


@pytest.mark.each_backend
@pytest.mark.parametrize(
    ("hook", "calls", "accumulation_steps", "dropout_rate", "kept"),
    [
        # Amid a pass over the arrays, at the end of an epoch.
        ("on_epoch_end", 2, 2, 0.5, [2, 4]),
        *once(("on_epoch_end", 2, None, 0.5, [2, 4])),
        # Within an optimizer step, which is completed. Later masks would be others.
        ("on_train_batch_begin", 7, 3, 0.0, [2, 3]),
        *once(("on_train_batch_end", 7, 3, 0.0, [2, 3])),
    ],
)
def test_a_stop_makes_no_difference_to_weights_and_states(
    tmp_path, hook, calls, accumulation_steps, dropout_rate, kept
):
    """The states are those of the optimizer and of dropout."""

    def new():
        many = {"gradient_accumulation_steps": accumulation_steps}
        return new_model(keras.optimizers.Adam(0.1, **many), dropout_rate)

    class Stop(keras.callbacks.Callback):
        count = 0

        def stop(self, *_, **__):
            self.count += 1
            self.model.stop_training |= self.count == calls

    setattr(Stop, hook, Stop.stop)
    whole, resumed = new(), new()
    fit_quietly(whole, tmp_path / "whole", steps=9)
    fit_quietly(new(), tmp_path / "parts", steps=9, callbacks=[Stop()])
    assert names(tmp_path / "parts") == [f"step-0000000{step}" for step in kept]
    fit_quietly(resumed, tmp_path / "parts", steps=9)
    assert_same_arrays(state_of(resumed), state_of(whole))


def test_dropout_masks_depend_on_seed_and_step(tmp_path):
    """A rate of 0 leaves the weights alone: the losses of one batch differ by dropout only."""
    losses = []
    for seed in (1, 2):
        model, folder = new_model(keras.optimizers.SGD(0.0), dropout_rate=0.5), tmp_path / f"{seed}"
        batches = {"batches": lambda count: itertools.repeat((X, Y))}
        fit_quietly(model, folder, **batches, seed=seed, report_every=1)
        losses += logged_scalars(folder / "logs")["loss"].values()
    assert len(set(losses)) == len(losses) == 10


@pytest.mark.each_backend
@pytest.mark.parametrize("accumulation_steps", [2, *once(None)])
def test_reports_count_optimizer_steps_over_epochs_and_processes(tmp_path, accumulation_steps):
    for steps in (3, 9):
        optimizer = keras.optimizers.SGD(gradient_accumulation_steps=accumulation_steps)
        reports = {"checkpoint_every": 3, "report_every": 2}
        fit_quietly(new_model(optimizer), tmp_path, steps=steps, **reports)
    assert [*logged_scalars(tmp_path / "logs")["loss"]] == [2, 3, 5, 6, 8, 9]


def test_reports_are_means_since_the_last_one(tmp_path):
    found = []
    for every in (1, 2):
        reports = {"checkpoint_every": 4, "report_every": every}
        fit_quietly(new_model(), tmp_path / str(every), steps=4, **reports)
        found.append([*logged_scalars(tmp_path / str(every) / "logs")["loss"].values()])
    each, pairs = found
    assert len(set(each)) == 4
    np.testing.assert_allclose(pairs, [np.mean(each[:2]), np.mean(each[2:])], rtol=1e-5)


def test_users_callbacks_see_validation_and_come_before_the_checkpoint(tmp_path):
    seen = []

    class Watcher(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((epoch, sorted(logs), names(tmp_path)))

    fit_quietly(new_model(), tmp_path, validation=[(X, Y)], callbacks=[Watcher()], steps=4)
    assert seen == [(0, ["loss", "val_loss"], []), (1, ["loss", "val_loss"], ["step-00000002"])]


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    move = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: os.chdir("other"))
    fit_quietly(new_model(), "mine", callbacks=[move])
    assert names(tmp_path / "mine")[-1] == "step-00000005" and (tmp_path / "mine" / "logs").is_dir()
    assert not os.listdir(tmp_path / "other")


def test_logs_metrics_and_what_a_function_measures(tmp_path):
    def measure(model, step):
        loss = keras.ops.convert_to_tensor([10.0 - step])
        return {"loss": loss, "sample": f"step {step}", "mae": np.float32(2.0)}

    seen = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    history = fit_quietly(
        new_model(metrics=["mae"]),
        tmp_path,
        validation=measure,
        report_every=1,
        steps=3,
        callbacks=[watch],
    )
    assert [sorted(logs) for logs in seen] == [["loss", "mae", "val_loss", "val_mae"]] * 2

    assert history.losses == {2: 8.0, 3: 7.0}
    logs = EventAccumulator(str(tmp_path / "logs")).Reload()
    training = {"loss", "mae", "learning_rate", "steps_per_second"}
    assert set(logs.Tags()["scalars"]) == {*training, "validation/loss", "validation/mae"}
    assert [scalar.step for scalar in logs.Scalars("mae")] == [1, 2, 3]
    assert len(logs.Tensors("validation/sample")) == 2


def test_ends_early_keeps_the_best_and_remembers_both(tmp_path):
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.0}
    arguments = {
        "steps": 20,
        "keep_checkpoints": 1,
        "keep_best": 1,
        "patience": 2,
        "validation": lambda model, step: {"loss": losses[step]},
        "tensorboard": False,
    }
    assert fit_quietly(new_model(), tmp_path, **arguments).losses == losses
    assert names(tmp_path) == ["step-00000004", "step-00000008"]
    assert fit_quietly(new_model(), tmp_path, **arguments).losses == losses
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("ends, expected", [(True, [2]), (False, [2, 4, 6])])
def test_all_processes_end_early_if_the_chief_does(tmp_path, ends, expected):
    distribution = Distribution()
    distribution.chief_first = lambda action: action()
    distribution.of_chief = lambda flag: ends
    arguments = {"patience": 9, "validation": [(X, Y)], "distribution": distribution}
    history = fit_quietly(new_model(), tmp_path, steps=6, **arguments)
    assert list(history.losses) == expected


@pytest.mark.each_backend
def test_batches_that_end_are_an_error_and_leave_no_wrong_checkpoint(tmp_path):
    with pytest.raises(Exception, match="batches without end"):  # TensorFlow's own
        fit_quietly(new_model(), tmp_path, lambda count: [(X, Y)] * 3)
    assert names(tmp_path) == ["step-00000002"]


def unbuilt():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def with_lora():
    model = new_model()
    model.layers[-1].enable_lora(1)
    return model


NO_LOSS = {"validation": lambda model, step: {"score": float(step)}}


def with_ema():
    return new_model(keras.optimizers.Adam(0.1, use_ema=True))


SWAP = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)


@pytest.mark.parametrize(
    "make, arguments, message",
    [
        (new_model, {"steps": 0}, "steps=0"),
        (new_model, {"steps": 6.0}, "`steps` must be an integer"),
        (new_model, {"patience": 1}, r"number as `loss`. Received: .* \[\]"),
        (new_model, {"keep_best": 1, **NO_LOSS}, r"number as `loss`. Received: .* \['score'\]"),
        (unbuilt, {}, "and built"),
        (lambda: new_model(steps_per_execution=2), {}, "`steps_per_execution=1`"),
        (with_lora, {}, "would not train after a resume"),
        (with_ema, {"callbacks": [SWAP]}, "use_ema.*callback=SwapEMAWeights"),
    ],
)
def test_what_would_be_trained_or_saved_otherwise_than_asked_is_refused(
    tmp_path, make, arguments, message
):
    with pytest.raises(ValueError, match=message):
        fit_quietly(make(), tmp_path, **arguments)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"steps": 2}, "already holds step 3; .* Received: steps=2"),
        ({"resume": False}, "already holds checkpoints"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, arguments, message):
    fit_quietly(new_model(), tmp_path, steps=3)
    with pytest.raises(UserError, match=message):
        fit_quietly(new_model(), tmp_path, **arguments)


@pytest.mark.parametrize("arguments", [{"y": Y[:9]}, {"sample_weight": np.ones(10)}])
def test_array_batches_refuse_rows_that_do_not_belong_together(arguments):
    with pytest.raises(ValueError, match="same number of rows"):
        array_batches(X, **arguments)


def test_array_batches_are_a_function_of_seed_and_number():
    def take(first, seed=1):
        stream = array_batches({"x": X}, Y, 4, seed)(first)
        return [batch[0]["x"].tolist() for batch in itertools.islice(stream, 7 - first)]

    whole = take(0)
    assert [take(first) for first in range(7)] == [whole[first:] for first in range(7)]
    assert take(0, seed=2) != whole


@pytest.mark.each_backend
def test_a_loss_that_is_not_finite_ends_training(tmp_path):
    rows = itertools.repeat((X, Y))
    broken = itertools.chain([(X, Y)] * 3, itertools.repeat((X, Y * np.inf)))
    with pytest.raises(UserError, match="diverged: the loss is infinite or NaN at step 4"):
        fit_quietly(new_model(), tmp_path, lambda count: broken)
    assert names(tmp_path) == ["step-00000002"]
    fit_quietly(new_model(), tmp_path, lambda count: rows)
    assert names(tmp_path)[-1] == "step-00000005"


@pytest.mark.each_backend
def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    seen = []

    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weight = self.model.trainable_variables[0]
            weight.assign(to_numpy(weight) * np.nan)

    options = {"validation": lambda model, step: seen.append(step), "callbacks": [Break()]}
    with pytest.raises(UserError, match="diverged: the weights are infinite or NaN at step 1"):
        fit_quietly(new_model(), tmp_path, checkpoint_every=1, **options)
    assert names(tmp_path) == seen == []


@pytest.mark.each_backend
def test_skipped_steps_leave_the_weights_and_their_averages(tmp_path):
    adam = TransformerAdam(0.1, use_ema=True)
    optimizer = keras.optimizers.LossScaleOptimizer(adam, initial_scale=3e38)
    model = new_model(optimizer)
    before = model.get_weights()
    fit_quietly(model, tmp_path, array_batches(X, Y + 100, 4))
    assert int(optimizer.iterations) == 0
    loaded = load_checkpoint_model(checkpoint_folders(tmp_path / "checkpoints")[-1])
    for found in (model, loaded):
        np.testing.assert_array_equal(found.get_weights()[0], before[0])
