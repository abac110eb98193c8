"""Steps by CUDA graphs, with a stand-in that records and replays the operations of a CPU."""

import keras
import numpy as np
import pytest
from support.contract import assert_same_arrays

from keras_transformer.models import Transformer
from keras_transformer.training import (
    MaskedCrossentropy,
    SlicedLogitsTrainer,
    TransformerAdam,
    TransformerSchedule,
)

torch = pytest.importorskip("torch")
compile_graph = pytest.importorskip("keras_transformer._backend.compile_graph")
graphed_step = pytest.importorskip("keras_transformer.training.step.graphed_step")
cuda_on_cpu = pytest.importorskip("support.cuda_on_cpu").cuda_on_cpu


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(compile_graph, "BACKEND", "aot_eager")
    monkeypatch.setattr(graphed_step, "is_on_cuda", lambda: True)
    monkeypatch.setattr(graphed_step, "has_triton", lambda: True)
    for name, function in vars(cuda_on_cpu()).items():
        monkeypatch.setattr(torch.cuda, name, function)


def trainer_of(jit_compile, optimizer, dtype="float32", has_teacher=False, **options):
    keras.utils.set_random_seed(5)
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16, "dropout_rate": 0.1}
    model = Transformer(20, **sizes, dtype=dtype)
    if has_teacher:
        options["teacher"] = Transformer(20, **sizes, norm_first=True)
    trainer = SlicedLogitsTrainer(model, MaskedCrossentropy(0.1), **options)
    trainer.compile(TransformerAdam(**{"learning_rate": 0.01} | optimizer), jit_compile=jit_compile)
    return trainer


def train(trainer, steps=6, shapes=2):
    """Returns the results of each step."""
    generator = np.random.default_rng(2)
    losses = []
    for i in range(steps):
        ids = generator.integers(1, 20, (3, 3, 4 + i % shapes), "int32")
        ids[:, 0, -1] = 0
        inputs = {"source_ids": ids[0], "target_ids": ids[1]}
        losses.append(trainer.train_on_batch(inputs, ids[2], return_dict=True))
    return losses


def graphs(trainer):
    function = trainer.train_function
    recordings = getattr(function, "_recordings", {}).values()
    return [recording.graph for recording in recordings if recording]


@pytest.mark.parametrize(
    ("optimizer", "options", "cosine_steps"),
    [
        ({"global_clipnorm": 0.1}, {"r_drop": 2.0, "dtype": "mixed_bfloat16"}, None),
        ({"use_ema": True}, {"gradient_checkpointing": True, "has_teacher": True}, 3),
        ({"weight_decay": 0.1}, {"simcut": 1.0}, None),
    ],
    ids=["clipping, R-Drop, bfloat16", "EMA, checkpointing, teacher, cosine", "decay, SimCut"],
)
def test_replayed_steps_train_as_others_do(gpu, optimizer, options, cosine_steps):
    schedule = TransformerSchedule(peak=0.01, warmup_steps=2, cosine_steps=cosine_steps)
    optimizer = optimizer | {"learning_rate": schedule}
    plain = trainer_of(False, optimizer, **options)
    trainer = trainer_of("auto", optimizer, **options)
    assert train(trainer) == train(plain)
    assert_same_arrays(trainer.weights, plain.weights)
    assert [graph.replays for graph in graphs(trainer)] == [2, 2]
    assert not graphs(plain)


@pytest.mark.parametrize(
    ("optimizer", "options", "needed"),
    [
        ({"gradient_accumulation_steps": 2}, {}, "no gradient accumulation"),
        ({}, {"dtype": "mixed_float16"}, "no loss scaling, as in mixed_float16"),
        ({"use_ema": True, "ema_overwrite_frequency": 3}, {}, "no ema_overwrite_frequency"),
    ],
    ids=["accumulation", "float16", "overwriting"],
)
def test_steps_that_decide_in_python_have_no_graphs(gpu, optimizer, options, needed):
    trainer = trainer_of("auto", optimizer, **options)
    train(trainer, 2)
    assert not graphs(trainer)
    with pytest.raises(ValueError, match=f"CUDA graphs, which needs {needed}: use jit"):
        trainer_of(True, optimizer, **options)


def test_batches_of_too_many_shapes_run_without_graphs(gpu, monkeypatch):
    monkeypatch.setattr(graphed_step, "MOST_GRAPHS", 1)
    plain, trainer = trainer_of(False, {}), trainer_of("auto", {})
    with pytest.warns(UserWarning, match="no CUDA graphs, because the batches have more than 1"):
        assert train(trainer, 3) == train(plain, 3)
    assert not graphs(trainer)


@pytest.mark.slow
def test_a_step_that_cannot_be_recorded_runs_without_a_graph(gpu):
    branches = keras.optimizers.schedules.CosineDecay(0.0, 9, warmup_target=0.1, warmup_steps=2)
    plain, trainer, required = (
        trainer_of(x, {"learning_rate": branches}) for x in (False, "auto", True)
    )
    with pytest.warns(UserWarning, match=r"no CUDA graphs, because .* Cond\.call"):
        assert train(trainer, 3, shapes=1) == train(plain, 3, shapes=1)
    with pytest.raises(ValueError, match=r"The reason: .* Cond\.call"):
        train(required, shapes=1)


def test_jit_compile_on_pytorch_needs_a_gpu():
    with pytest.raises(ValueError, match="CUDA graphs, which needs a GPU of CUDA: use"):
        trainer_of(True, {})
    assert not isinstance(trainer_of("auto", {}).train_function, graphed_step.GraphedStep)


def test_a_training_after_compile_records_anew(gpu):
    trainer = trainer_of("auto", {})
    train(trainer, 2)
    before = trainer.train_function
    trainer.compile(TransformerAdam(0.02))
    train(trainer, 2)
    assert trainer.train_function is not before
