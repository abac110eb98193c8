"""The compiled step of PyTorch equals the eager one bit for bit, but for Inductor's fusions."""

import ablation_layers  # noqa: F401  registers batch normalization
import keras
import numpy as np
import pytest
from support.contract import assert_same_arrays

from keras_transformer import models
from keras_transformer.training import MaskedCrossentropy, SlicedLogitsTrainer, TransformerAdam

torch = pytest.importorskip("torch")
compile_graph = pytest.importorskip("keras_transformer._backend.compile_graph")
compiled_step = pytest.importorskip("keras_transformer.training.step.compiled_step")

SIZES = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32, "dropout_rate": 0.1}


@pytest.fixture(autouse=True)
def without_fusions(monkeypatch):
    monkeypatch.setattr(compile_graph, "BACKEND", "aot_eager")


def ids(batch=4, source=6, target=8):
    random = np.random.default_rng(2)
    source_ids = random.integers(1, 50, (batch, source), "int32")
    target_ids = random.integers(1, 50, (batch, target), "int32")
    source_ids[0], target_ids[0], source_ids[1, -2:] = 0, 0, 0
    return {"source_ids": source_ids, "target_ids": target_ids[:, :-1]}, target_ids[:, 1:]


def translator(options=None, trainer=None, optimizer=None, dtype="mixed_bfloat16"):
    model = models.Transformer(50, **SIZES, dtype=dtype, **(options or {}))
    trained = SlicedLogitsTrainer(model, MaskedCrossentropy(0.1), **(trainer or {}))
    trained.compile(TransformerAdam(1e-3, **(optimizer or {})), jit_compile=False)
    return trained, ids()


def dense(**compiling):
    """A user's own model, with a loss of its own, a regularizer and batch normalization."""
    inputs = keras.Input((6,))
    x = keras.layers.Dense(8, activity_regularizer="l2", kernel_regularizer="l1")(inputs)
    x = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(x))
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile(loss="mse", metrics=["mae"], jit_compile=False, **compiling)
    random = np.random.default_rng(1)
    return model, (random.normal(size=(5, 6)).astype("float32"), np.ones((5, 1), "float32"))


CASES = {
    "T5, SimCut, checkpointing, EMA, teacher": lambda: translator(
        {"position_encoding": "t5", "attention_dropout_rate": 0.1},
        {
            **{"simcut": 3.0, "simcut_rate": 0.3, "gradient_checkpointing": True},
            "teacher": models.Transformer(50, **SIZES),
        },
        {"use_ema": True},
    ),
    "learned positions, batch normalization, all scores at once, R-Drop, clipping": lambda: (
        translator(
            {
                **{"position_encoding": "learned", "normalization": "batch"},
                **{"attention_pattern": "full", "attention_dropout_rate": 0.1},
            },
            {"r_drop": 2.0, "logits_mebibytes": 0},
            {"global_clipnorm": 0.1},
        )
    ),
    "rotary, local attention, pre-norm, accumulation, float16": lambda: translator(
        {
            **{"position_encoding": "rotary", "norm_first": True},
            **{"attention_pattern": "local", "attention_window": 2},
        },
        optimizer={"gradient_accumulation_steps": 2},
        dtype="mixed_float16",
    ),
    "a user's model": lambda: dense(optimizer=keras.optimizers.SGD(0.1, momentum=0.9)),
}


def seeded(function, seed):
    keras.utils.set_random_seed(seed)
    return function()


def one_step(model, step, batch):
    model.reset_metrics()
    return {name: float(x) for name, x in step(batch).items()}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(x, id=name, marks=[pytest.mark.slow] * (" all scores" in name or "T5" in name))
        for name, x in CASES.items()
    ],
)
def test_compiled_steps_equal_eager_steps_bit_for_bit(make):
    (eager, batch), (compiled, _) = (seeded(make, 1) for _ in range(2))
    expected = seeded(lambda: [eager.train_on_batch(*batch, return_dict=True) for _ in "abc"], 2)
    compiled.evaluate(*batch, verbose=0)  # builds the metrics and the state, as `fit` does
    compiled.train()
    step = compiled_step.CompiledStep(compiled)
    found = seeded(lambda: [one_step(compiled, step, batch) for _ in "abc"], 2)
    assert found == expected
    for name in ("weights", "metrics_variables"):
        assert_same_arrays(getattr(compiled, name), getattr(eager, name))
    assert_same_arrays(compiled.optimizer.variables, eager.optimizer.variables)


def test_each_shape_of_batches_is_compiled():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(np.ones((1, 6)), np.ones((1, 1)))  # builds the metrics and the optimizer
    step = compiled_step.CompiledStep(model)
    with torch._dynamo.config.patch(recompile_limit=1):  # 8, unless the step allows more
        for rows in (2, 3):
            batch = np.ones((rows, 6), "float32"), np.ones((rows, 1), "float32")
            assert np.isfinite(float(step(batch)["loss"]))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_functions_of_equal_shapes_have_programs_of_their_own(monkeypatch, backend):
    monkeypatch.setattr(compile_graph, "BACKEND", backend)
    x = torch.ones(3)
    functions = [lambda x, factor=factor: [x * factor] for factor in (2, 3)]
    results = [compiled_step._compiled(function)(x)[0] for function in functions]
    assert [float(result[0]) for result in results] == [2, 3]
