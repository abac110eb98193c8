"""Several processes and devices train as one does."""

import functools
from pathlib import Path

import keras
import numpy as np
import pytest
from support import job
from support.contract import assert_same_arrays

from keras_transformer.errors import UserError
from keras_transformer.runs.checkpoints import logged_scalars
from keras_transformer.runs.loading import load_checkpoint_model
from keras_transformer.runs.run import Run
from keras_transformer.training.devices.base import Distribution
from keras_transformer.translation.open_run import open_model

FIGURES = ("loss", "perplexity", "accuracy", "gradient_norm", "validation/loss")

# Processes, devices in each, settings: what each engine can do in so many ways.
TEACHER = [
    f"training.teacher={Path(__file__).parents[2] / 'fixtures' / 'trained_run'}",
    *("tokenizer.vocabulary_size=160", "tokenizer.normalization=identity"),
    *("tokenizer.model_type=bpe", "training.subword_regularization=null"),
    *("tokenizer.target_normalization=null", "training.validation_bleu_sentences=2"),
]
TWO_PROCESSES = dict.fromkeys(("tensorflow", "jax", "torch"), (2, 1, TEACHER))
PACKED = ["training.packing=true", "training.accumulation_steps=2"]
MANY_DEVICES = {
    "tensorflow": (1, 2, PACKED),
    "jax": (1, 2, ["training.packing=true", "model.normalization=batch"]),
    "torch": (2, 1, PACKED),
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


def test_the_chief_acts_first_and_the_others_when_it_has_left_its_files():
    done = {}
    for rank in (0, 1):
        worker = Worker(rank)
        worker.chief_first(lambda worker=worker: worker.done.append("act"))
        done[rank] = worker.done
    assert done == {0: ["act", "wait"], 1: ["wait", "act"]}


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


def train_together(directory, processes, devices, settings) -> Run:
    job.prepare(directory, settings)
    codes, logs = job.run_job(directory, "run", "new", processes, devices)
    assert set(codes) == {0}, logs
    return Run.open(directory / "run")


@pytest.fixture(scope="module")
def train_alone(tmp_path_factory):
    """Trains in one process on one device, once for the same settings."""

    @functools.cache
    def train_alone(*settings: str) -> Run:
        directory = tmp_path_factory.mktemp("alone") / "run"
        return train_together(directory, 1, 1, [*settings, "training.distribution=none"])

    return train_alone


def assert_same_training(run: Run, expected: Run) -> None:
    found, wanted = (logged_scalars(x.logs_dir) for x in (run, expected))
    for tag in FIGURES:
        pairs = ([*x[tag].items()] for x in (found, wanted))
        np.testing.assert_allclose(*pairs, rtol=1e-4, err_msg=tag)
    names = [path.name for path in expected.checkpoints()]
    assert [path.name for path in run.checkpoints()] == names
    models = [load_checkpoint_model(each.checkpoints()[-1]) for each in (run, expected)]
    for own, other in zip(*(model.weights for model in models), strict=True):
        arrays = (keras.ops.convert_to_numpy(weight) for weight in (own, other))
        np.testing.assert_allclose(*arrays, atol=2e-5, err_msg=own.path)


@pytest.mark.each_backend
@pytest.mark.slow
@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(TWO_PROCESSES, id="two_processes"),
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


@pytest.mark.each_backend
@pytest.mark.slow
def test_a_job_that_lost_a_worker_goes_on_from_its_newest_checkpoint(tmp_path):
    settings = ["model.dropout_rate=0.1", "training.length_multiple=1"]
    whole = train_together(tmp_path / "whole", 2, 1, settings)
    stopped = tmp_path / "stopped"
    job.prepare(stopped, settings)
    codes, _ = job.run_job(stopped, "run", "new", 2, dies=3)
    assert codes[0] != 0 and codes[1] == -9
    run = Run.open(stopped / "run")
    assert [path.name for path in run.checkpoints()] == ["step-00000002"]
    codes, logs = job.run_job(stopped, "run", "new", 2)
    assert codes == [0, 0], logs
    assert_same_training(run, whole)
    assert_same_arrays(open_model(run).weights, open_model(whole).weights)
