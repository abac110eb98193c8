"""One training step of one model in three engines. As a program: a worker that makes such steps.

The model is the paper's: post-norm, sinusoids, one matrix for all embeddings, biases, ReLU. The
loss is cross-entropy with label smoothing 0.1 over V, averaged over real tokens, without a one-hot
tensor; the optimizer is Adam. Dropout is 0.1 where each engine has it: all on embeddings and
sublayer outputs, both peers on attention weights too, PyTorch also inside the feed-forward network.
"""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import _common
import numpy as np

DROPOUT_RATE = 0.1
LABEL_SMOOTHING = 0.1
ADAM = {"learning_rate": 1e-4, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
PAD_ID = 0
MATRIX_SIZE = 2048


@dataclass(frozen=True)
class Case:
    """Sizes of a model and of its batch."""

    name: str
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    vocabulary_size: int
    batch_size: int
    source_length: int
    target_length: int

    @property
    def target_tokens(self) -> int:
        return self.batch_size * self.target_length

    @property
    def flops(self) -> int:
        """Floating point operations of one training step's matrix products.

        Forward, each weight of a matrix makes one multiply-add a token, and attention 2 D for each
        query and key (QK^T, and the weights times V), masked or not. Backward takes twice as many.
        A multiply-add is 2 operations. Biases, norms, softmax, dropout and Adam are not counted.
        """
        d, source, target = self.d_model, self.source_length, self.target_length
        feed_forward = 2 * d * self.d_ff
        encoder = source * (4 * d * d + feed_forward + 2 * source * d)
        memory = source * 2 * d * d  # cross-attention's keys and values
        decoder = target * (6 * d * d + feed_forward + 2 * (target + source) * d)
        projection = target * d * self.vocabulary_size
        multiply_adds = self.num_layers * (encoder + memory + decoder) + projection
        return 2 * 3 * self.batch_size * multiply_adds


CASES = {
    "tiny": Case("tiny", 4, 128, 4, 256, 10_000, 256, 16, 16),
    "base": Case("base", 6, 512, 8, 2048, 32_000, 64, 32, 32),
}


@dataclass(frozen=True)
class Setting:
    """An engine and how it is run.

    mixed_bfloat16 means float32 weights and products in bfloat16. `keeps_memory` is for
    `keep_freed_memory`.
    """

    engine: str
    backend: str
    dtype: str = "float32"
    jit_compile: bool = False
    keeps_memory: bool = False

    def __str__(self) -> str:
        return f"{self.engine} on {self.backend}, {self.dtype}{', jit' if self.jit_compile else ''}"


@dataclass(frozen=True)
class Engine:
    """What a worker times.

    `step` makes a training step and returns its loss; `matmul` multiplies two square float32
    matrices.
    """

    step: Callable[[], float]
    matmul: Callable[[], Any]
    num_parameters: int


def new_transformer(case: Case) -> Any:
    from keras_transformer.models import Transformer

    return Transformer(
        case.vocabulary_size,
        num_layers=case.num_layers,
        d_model=case.d_model,
        num_heads=case.num_heads,
        d_ff=case.d_ff,
        dropout_rate=DROPOUT_RATE,
    )


def our_trainer(case: Case, dtype: str, jit_compile: bool | str) -> tuple[Any, Any, np.ndarray]:
    """This package's trainer, compiled, its inputs and labels; accuracy comes with the loss."""
    import keras

    from keras_transformer.training import (
        MaskedCrossentropy,
        SlicedLogitsTrainer,
        TransformerAdam,
    )

    keras.config.set_dtype_policy(dtype)
    trainer = SlicedLogitsTrainer(
        new_transformer(case), MaskedCrossentropy(LABEL_SMOOTHING, PAD_ID)
    )
    trainer.compile(TransformerAdam(**ADAM), jit_compile=jit_compile)
    source_ids, target_ids, labels = batch_of(case)
    return trainer, {"source_ids": source_ids, "target_ids": target_ids}, labels


def keras_hub_model(case: Case, dtype: str, jit_compile: bool) -> tuple[Any, Any, np.ndarray]:
    """A model of KerasHub's encoder and decoder layers, compiled, its inputs and labels."""
    import keras
    from keras_hub import layers as hub

    keras.config.set_dtype_policy(dtype)
    embedding = hub.ReversibleEmbedding(
        case.vocabulary_size,
        case.d_model,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=case.d_model**-0.5),
    )
    positions = hub.SinePositionEncoding()
    dropout = keras.layers.Dropout(DROPOUT_RATE)

    def embed(ids: Any) -> Any:
        vectors = embedding(ids) * math.sqrt(case.d_model)
        return dropout(vectors + positions(vectors))

    source = keras.Input((case.source_length,), dtype="int32")
    target = keras.Input((case.target_length,), dtype="int32")
    mask = keras.ops.not_equal(source, PAD_ID)
    sizes = {"intermediate_dim": case.d_ff, "num_heads": case.num_heads, "dropout": DROPOUT_RATE}
    memory, x = embed(source), embed(target)
    for _ in range(case.num_layers):
        memory = hub.TransformerEncoder(**sizes)(memory, padding_mask=mask)
    for _ in range(case.num_layers):
        x = hub.TransformerDecoder(**sizes)(x, memory, encoder_padding_mask=mask)
    model = keras.Model([source, target], embedding(x, reverse=True))
    model.compile(keras.optimizers.Adam(**ADAM), keras_loss, jit_compile=jit_compile)
    source_ids, target_ids, labels = batch_of(case)
    return model, [source_ids, target_ids], labels


def torch_step(
    case: Case, dtype: str, device: str = "cpu", compiled: bool = False
) -> tuple[Callable[[], Any], Any]:
    """A training step of `torch.nn.Transformer`, which returns the loss, and the model."""
    import torch

    model = _torch_model(case).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(),
        ADAM["learning_rate"],
        betas=(ADAM["beta_1"], ADAM["beta_2"]),
        eps=ADAM["epsilon"],
        fused=True,
    )
    loss = torch.nn.CrossEntropyLoss(ignore_index=PAD_ID, label_smoothing=LABEL_SMOOTHING)
    batch = [torch.from_numpy(ids).long().to(device) for ids in batch_of(case)]
    bfloat16 = dtype == "mixed_bfloat16"

    def loss_of(source_ids: Any, target_ids: Any, labels: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            logits = model(source_ids, target_ids)
        return loss(logits.float().flatten(0, 1), labels.flatten())

    if compiled:
        loss_of = torch.compile(loss_of)

    def step() -> Any:
        optimizer.zero_grad()
        value = loss_of(*batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return step, model


def keras_transformer_engine(case: Case, setting: Setting) -> Engine:
    return keras_engine(*our_trainer(case, setting.dtype, setting.jit_compile))


def keras_hub_engine(case: Case, setting: Setting) -> Engine:
    return keras_engine(*keras_hub_model(case, setting.dtype, setting.jit_compile))


def torch_engine(case: Case, setting: Setting) -> Engine:
    import torch

    torch.set_num_threads(_common.THREADS)
    step, model = torch_step(case, setting.dtype)
    matrix = torch.randn(MATRIX_SIZE, MATRIX_SIZE)
    num_parameters = sum(weight.numel() for weight in model.parameters())
    return Engine(lambda: step().item(), lambda: (matrix @ matrix)[0, 0].item(), num_parameters)


ENGINES = {
    "keras_transformer": keras_transformer_engine,
    "keras_hub": keras_hub_engine,
    "torch.nn.Transformer": torch_engine,
}


def settings_of(engine: str, backend: str, keep_memory: bool = False) -> list[Setting]:
    """The settings worth trying; this package keeps freed memory in any case, as `train` does.

    XLA gains nothing from bfloat16 on CPUs, JAX without jit and torch.compile are far slower.
    """
    ways: dict[str, list[dict[str, Any]]] = {
        "tensorflow": [{"jit_compile": True}, {"jit_compile": False}],
        "jax": [{"jit_compile": True}],
        "torch": [{"dtype": "float32"}, {"dtype": "mixed_bfloat16"}],
    }
    keeps_memory = keep_memory or engine == "keras_transformer"
    return [Setting(engine, backend, keeps_memory=keeps_memory, **way) for way in ways[backend]]


def batch_of(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source ids, target ids and labels; random, none of them padding."""
    random = np.random.default_rng(0)
    source_shape = (case.batch_size, case.source_length)
    target_shape = (case.batch_size, case.target_length + 1)
    source, target = (
        random.integers(PAD_ID + 1, case.vocabulary_size, shape, dtype="int32")
        for shape in (source_shape, target_shape)
    )
    return source, target[:, :-1], target[:, 1:]


def keras_engine(model: Any, inputs: Any, labels: np.ndarray) -> Engine:
    """Steps through `train_on_batch`."""
    import keras

    random = np.random.default_rng(0)
    matrix = keras.ops.convert_to_tensor(
        random.standard_normal((MATRIX_SIZE, MATRIX_SIZE), dtype="float32")
    )

    def matmul() -> None:
        float(keras.ops.matmul(matrix, matrix)[0, 0])  # JAX waits only so

    def step() -> float:
        return float(model.train_on_batch(inputs, labels, return_dict=True)["loss"])

    return Engine(step, matmul, model.count_params())


def keras_loss(labels: Any, logits: Any) -> Any:
    """A KerasHub user's own version of the common loss."""
    from keras import ops

    logits = ops.cast(logits, "float32")
    labels = ops.cast(labels, "int32")
    of_label = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    smoothed = (1 - LABEL_SMOOTHING) * of_label + LABEL_SMOOTHING * ops.mean(logits, axis=-1)
    real = ops.cast(labels != PAD_ID, "float32")
    return ops.sum(real * (ops.logsumexp(logits, axis=-1) - smoothed)) / ops.sum(real)


def _torch_model(case: Case) -> Any:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(case.vocabulary_size, case.d_model)
            nn.init.normal_(self.embedding.weight, std=case.d_model**-0.5)
            self.dropout = nn.Dropout(DROPOUT_RATE)
            self.transformer = nn.Transformer(
                case.d_model,
                case.num_heads,
                case.num_layers,
                case.num_layers,
                case.d_ff,
                DROPOUT_RATE,
                batch_first=True,
            )
            length = max(case.source_length, case.target_length)
            even = torch.arange(0, case.d_model, 2)
            angles = torch.arange(length)[:, None] * 10_000.0 ** (-even / case.d_model)
            positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
            self.register_buffer("positions", positions)

        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            vectors = self.embedding(ids) * math.sqrt(case.d_model)
            return self.dropout(vectors + self.positions[: ids.shape[1]])

        def forward(self, source_ids: torch.Tensor, target_ids: torch.Tensor) -> torch.Tensor:
            length = target_ids.shape[1]
            padding = source_ids == PAD_ID
            x = self.transformer(
                self.embed(source_ids),
                self.embed(target_ids),
                tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )
            return x @ self.embedding.weight.T

    return Model()


def _actions(case: Case, setting: Setting) -> dict[str, Callable[..., Any]]:
    if setting.keeps_memory:
        from keras_transformer.cli.process import keep_freed_memory

        keep_freed_memory()
    engine = ENGINES[setting.engine](case, setting)

    def first_step() -> dict[str, float]:
        return {"loss": engine.step(), "num_parameters": engine.num_parameters}

    def seconds_per_step(steps: int) -> float:
        return _seconds(engine.step, steps) / steps

    def matmul_flops(repeats: int) -> float:
        fastest = min(_seconds(engine.matmul, 1) for _ in range(repeats))
        return 2 * MATRIX_SIZE**3 / fastest

    return {action.__name__: action for action in (first_step, seconds_per_step, matmul_flops)}


def _seconds(action: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        action()
    return time.perf_counter() - start


def start_worker(case: Case, setting: Setting) -> _common.Worker:
    """Start a worker with the actions `first_step`, `seconds_per_step` and `matmul_flops`."""
    specification = json.dumps([dataclasses.asdict(case), dataclasses.asdict(setting)])
    return _common.Worker(
        _common.ROOT / "scripts" / "bench" / "_training_engines.py",
        specification,
        KERAS_BACKEND=setting.backend,
    )


def main() -> None:
    case, setting = json.loads(sys.argv[1])
    _common.serve(lambda: _actions(Case(**case), Setting(**setting)))


if __name__ == "__main__":
    main()
