"""Several processes and devices train as one does."""

import functools
import re
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from support import tiny_job
from support.small_models import new_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.loading import load_checkpoint_model
from keras_transformer.runs.run import Run
from keras_transformer.training import MaskedCrossentropy, SlicedLogitsTrainer, TransformerAdam
from keras_transformer.training.distribution import (
    Distribution,
    TorchProcesses,
    _rank,
    layout_map,
    shard_of,
)
from keras_transformer.training.train_run import start
from keras_transformer.translation.open_run import open_model

FIGURES = ("loss", "perplexity", "accuracy", "gradient_norm", "validation/loss")

# Processes, devices in each, settings: what each engine can do in so many ways.
TEACHER = [
    f"training.teacher={Path(__file__).parents[1] / 'fixtures' / 'trained_run'}",
    *("tokenizer.vocabulary_size=160", "tokenizer.normalization=identity"),
    *("tokenizer.model_type=bpe", "training.subword_regularization=null"),
    *("tokenizer.target_normalization=null", "training.validation_bleu_sentences=2"),
]
TWO_PROCESSES = dict.fromkeys(("tensorflow", "jax", "torch"), (2, 1, TEACHER))
MANY_DEVICES = {
    "tensorflow": (1, 2, ["training.accumulation_steps=2"]),
    "jax": (1, 2, ["model.normalization=batch"]),
    "torch": (2, 1, ["training.accumulation_steps=2"]),
}
SPLIT = ["training.distribution=model_parallel", "training.model_shards=2"]
BOTH = {
    "tensorflow": (2, 2, ["training.accumulation_steps=2"]),
    "jax": (2, 2, SPLIT),
    "torch": (4, 1, ["training.accumulation_steps=2"]),
}
# With another seed, rounding grows beyond the tolerance of the weights on JAX.
OWN_OUTPUT = ["model.tie_word_embeddings=false", "model.use_logits_bias=true", "seed=2"]
SPLIT_WEIGHTS = {
    "tensorflow": (4, 1, OWN_OUTPUT),
    "jax": (2, 1, [*OWN_OUTPUT, *SPLIT]),
    "torch": (2, 1, OWN_OUTPUT),
}


class Worker(Distribution):
    """Writes down when it waits."""

    chief_succeeds = True

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.done: list[str] = []

    def of_chief(self, flag: bool) -> bool:
        self.done.append("wait")
        return flag and self.chief_succeeds


@pytest.mark.once
def test_the_chief_acts_first_and_the_others_when_it_has_left_its_files():
    done = {}
    for rank in (0, 1):
        worker = Worker(rank)
        worker.chief_first(lambda worker=worker: worker.done.append("act"))
        done[rank] = worker.done
    assert done == {0: ["act", "wait"], 1: ["wait", "act"]}


@pytest.mark.once
def test_if_the_chief_fails_the_others_fail_too_and_do_not_wait():
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Worker(0).chief_first(fail)
    other = Worker(1)
    other.chief_succeeds = False
    with pytest.raises(UserError, match="the first process failed"):
        other.chief_first(lambda: other.done.append("act"))
    assert other.done == ["wait"]


def test_an_action_sees_weights_and_optimizer_in_the_copy():
    trainer = SlicedLogitsTrainer(new_model(), MaskedCrossentropy(0.1))
    trainer.compile(TransformerAdam(0.1))
    trainer.optimizer.build(trainer.trainable_variables)
    trainer.optimizer.iterations.assign(7)
    alone, seen = [], []

    class Replicas(Worker):
        needs_copy = True

        @contextmanager
        def alone(self):
            alone.append(True)
            yield
            alone.clear()

    def action(model):
        seen.append((model, bool(alone)))

    for rank in (1, 0):  # Only the chief has a copy and acts; all processes read.
        distribution = Replicas(rank)
        copy = distribution.local(trainer)
        distribution.on_chief(action, trainer, copy)
    assert copy.token_loss.label_smoothing == 0.1
    assert seen == [(copy, True)]
    assert int(copy.optimizer.iterations) == 7
    for own, other in zip(copy.weights, trainer.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (own, other)))


def train_together(directory, processes, devices, settings) -> Run:
    directory.mkdir()
    tiny_job.prepare(directory, settings)
    for process in tiny_job.run_job(directory, processes, devices=devices):
        assert process.returncode == 0, process.stderr
    return Run.open(directory / "run")


@pytest.fixture(scope="module")
def train_alone(tmp_path_factory):
    """Trains in one process on one device, once for the same settings."""

    @functools.cache
    def train_alone(*settings: str) -> Run:
        directory = tmp_path_factory.mktemp("alone") / "run"
        return train_together(directory, 1, 1, [*settings, "training.distribution=none"])

    return train_alone


def figures(run: Run) -> dict[str, list[tuple[int, float]]]:
    logs = EventAccumulator(str(run.logs_dir))
    logs.Reload()
    return {tag: [(event.step, event.value) for event in logs.Scalars(tag)] for tag in FIGURES}


def assert_same_training(run: Run, expected: Run) -> None:
    found, wanted = figures(run), figures(expected)
    for tag in FIGURES:
        np.testing.assert_allclose(found[tag], wanted[tag], rtol=1e-4, err_msg=tag)
    names = [path.name for path in expected.checkpoints()]
    assert [path.name for path in run.checkpoints()] == names
    models = [load_checkpoint_model(each.checkpoints()[-1]) for each in (run, expected)]
    for own, other in zip(*(model.weights for model in models), strict=True):
        arrays = (keras.ops.convert_to_numpy(weight) for weight in (own, other))
        np.testing.assert_allclose(*arrays, atol=2e-5, err_msg=own.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(TWO_PROCESSES, id="two_processes"),
        pytest.param(dict.fromkeys(MANY_DEVICES, (4, 1, [])), id="four_processes"),
        pytest.param(MANY_DEVICES, id="many_devices"),
        pytest.param(BOTH, id="processes_of_many_devices"),
        pytest.param(SPLIT_WEIGHTS, id="split_weights"),
    ],
)
def test_many_train_to_the_same_weights_as_one(ways, train_alone, tmp_path):
    processes, devices, settings = ways[keras.config.backend()]
    many = train_together(tmp_path / "many", processes, devices, settings)
    alone = [each for each in settings if "distribution" not in each and "shards" not in each]
    assert_same_training(many, train_alone(*alone))


@pytest.mark.slow
def test_a_job_that_lost_a_worker_goes_on_from_its_newest_checkpoint(tmp_path):
    settings = ["model.dropout_rate=0.1", "training.length_multiple=1"]
    whole = train_together(tmp_path / "whole", 2, 1, settings)
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    tiny_job.prepare(stopped, settings)
    *_, last = tiny_job.run_job(stopped, 2, dies=3)
    assert last.returncode == -9
    run = Run.open(stopped / "run")
    assert [path.name for path in run.checkpoints()] == ["step-00000002"]
    processes = tiny_job.run_job(stopped, 2)
    assert [process.returncode for process in processes] == [0, 0], processes[0].stderr
    assert_same_training(run, whole)
    for own, other in zip(
        open_model(run).get_weights(), open_model(whole).get_weights(), strict=True
    ):
        np.testing.assert_array_equal(own, other)


TEXT = {"source": "text.en", "target": "text.de"}


def recipe_with(normalization: str | None = None, **training) -> Recipe:
    sections = {
        "data": {"train": TEXT, "validation": TEXT, "test": TEXT},
        "model": {"normalization": normalization},
        "training": training,
    }
    return Recipe.model_validate({"name": "any", **sections})


# What tells a process that it is one of many.
OF_MANY = {
    "torch": ("WORLD_SIZE", "2"),
    "jax": ("KERAS_DISTRIBUTION_NUM_PROCESSES", "2"),
    "tensorflow": ("TF_CONFIG", "{}"),
}


@pytest.mark.once
@pytest.mark.parametrize(
    "backend, training, message",
    [
        ("torch", {"distribution": "model_parallel"}, "with .*=model_parallel: .* or .*=jax"),
        ("tensorflow", {"jit_compile": True}, "tensorflow cannot .* training.jit_compile=true"),
        ("tensorflow", {"dtype_policy": "mixed_float16"}, "mixed_float16"),
        ("torch", {"dtype_policy": "mixed_float16"}, "mixed_float16"),
        ("torch", {"normalization": "batch"}, "model.normalization=batch"),
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
    with pytest.raises(UserError, match=message):
        start(recipe_with(**{"distribution": "data_parallel", **training}))


@pytest.mark.once
@pytest.mark.parametrize(
    "processes, devices, model_shards, expected",
    [
        (1, 1, 1, [(0, 1, 1)]),
        (1, 4, 1, [(0, 4, 4)]),
        (1, 4, 2, [(0, 2, 2)]),
        (2, 2, 1, [(0, 2, 4), (2, 4, 4)]),
        (2, 2, 2, [(0, 1, 2), (1, 2, 2)]),
        # One copy of the weights over two processes: both have all rows.
        (2, 2, 4, [(0, 1, 1), (0, 1, 1)]),
        (4, 1, 2, [(0, 1, 2), (0, 1, 2), (1, 2, 2), (1, 2, 2)]),
    ],
)
def test_rows_of_every_process_by_hand(processes, devices, model_shards, expected):
    found = [shard_of(process, processes, devices, model_shards) for process in range(processes)]
    assert found == expected


@pytest.mark.once
@pytest.mark.parametrize("processes, devices, model_shards", [(1, 4, 3), (1, 2, 4), (2, 3, 2)])
def test_weights_over_devices_that_do_not_divide_are_refused(processes, devices, model_shards):
    with pytest.raises(UserError, match=f"model_shards={model_shards}"):
        shard_of(0, processes, devices, model_shards)


@pytest.mark.once
def test_heads_inner_units_and_embeddings_are_divided_and_nothing_else():
    mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0", "cpu:1"])
    layouts = layout_map(mesh)
    found = {}
    for weight in new_model("all_of_opennmt").weights:
        name = re.sub(r"\w+_layer_\d+/", "", weight.path)
        if layout := layouts[weight.path]:
            found[re.sub("self_|cross_", "", name)] = layout.axes
    split_columns, split_rows = (None, "model"), ("model", None)
    assert found == {
        "source_embedding/embeddings": split_rows,
        "target_embedding/embeddings": split_rows,
        "target_embedding/output_embeddings": split_rows,
        "target_embedding/bias": ("model",),
        **{f"attention/{name}/kernel": split_columns for name in ("query", "key", "value")},
        **{f"attention/{name}/bias": ("model",) for name in ("query", "key", "value")},
        "attention/output/kernel": split_rows,
        "feed_forward/inner/kernel": split_columns,
        "feed_forward/inner/bias": ("model",),
        "feed_forward/outer/kernel": split_rows,
    }


@pytest.mark.once
@pytest.mark.parametrize(
    "cluster, task_type, task_id, expected",
    [
        ({"worker": ["a:1", "b:1"]}, "worker", 0, 0),
        ({"worker": ["a:1", "b:1"]}, "worker", 1, 1),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "chief", 0, 0),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", 1, 2),
    ],
)
def test_a_chief_comes_before_the_workers(cluster, task_type, task_id, expected):
    specification = SimpleNamespace(as_dict=lambda: cluster)
    resolver = SimpleNamespace(
        cluster_spec=lambda: specification, task_type=task_type, task_id=task_id
    )
    assert _rank(resolver) == expected


@pytest.mark.once
def test_a_single_process_needs_no_launcher_and_sums_keep_their_shapes():
    torch = pytest.importorskip("torch")
    alone = TorchProcesses()
    assert alone.is_chief
    assert alone.shard == (0, 1, 1)
    assert alone.of_chief(True)
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0), torch.ones(0)]
    found = alone._sum(tensors)
    torch.distributed.destroy_process_group()
    torch.testing.assert_close(list(found), tensors)
