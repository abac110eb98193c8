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
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _engines import OURS, PAD_ID, Setting, Sizes, keras_hub_model, matmul_flops, new_transformer

DROPOUT_RATE = 0.1
LABEL_SMOOTHING = 0.1
ADAM = {"learning_rate": 1e-4, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}


@dataclass(frozen=True)
class Case(Sizes):
    """Sizes of a model and of its batch."""

    @property
    def flops(self) -> int:
        """Floating point operations of one training step's matrix products.

        All queries see all keys, masked or not. The backward pass takes twice as many as the
        forward pass. A multiply-add is 2 operations. Nothing else is counted.
        """
        return 2 * 3 * self.multiply_adds(seen=self.target_length**2)


CASES = {
    "tiny": Case("tiny", 4, 128, 4, 256, 10_000, 256, 16, 16),
    "base": Case("base", 6, 512, 8, 2048, 32_000, 64, 32, 32),
}


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
        new_transformer(case, dropout_rate=DROPOUT_RATE),
        MaskedCrossentropy(LABEL_SMOOTHING, PAD_ID),
    )
    trainer.compile(TransformerAdam(**ADAM), jit_compile=jit_compile)
    source_ids, target_ids, labels = batch_of(case)
    return trainer, {"source_ids": source_ids, "target_ids": target_ids}, labels


def keras_hub_trainer(case: Case, dtype: str, jit_compile: bool) -> tuple[Any, Any, np.ndarray]:
    """A model of KerasHub's encoder and decoder layers, compiled, its inputs and labels."""
    import keras
    from keras_hub import layers as hub

    keras.config.set_dtype_policy(dtype)
    model = keras_hub_model(case, hub.SinePositionEncoding(), DROPOUT_RATE)
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


TRAINERS = {OURS: our_trainer, "keras_hub": keras_hub_trainer}


def step_of(case: Case, setting: Setting) -> tuple[Callable[[], float], int]:
    """A training step, which returns its loss, and the number of the model's parameters."""
    if setting.engine == "torch.nn.Transformer":
        import torch

        torch.set_num_threads(_common.THREADS)
        step, model = torch_step(case, setting.dtype)
        return lambda: step().item(), sum(weight.numel() for weight in model.parameters())
    make = TRAINERS[setting.engine]
    model, inputs, labels = make(case, setting.dtype, setting.jit_compile)

    def train_on_batch() -> float:
        return float(model.train_on_batch(inputs, labels, return_dict=True)["loss"])

    return train_on_batch, model.count_params()


def settings_of(engine: str, backend: str, keep_memory: bool = False) -> list[Setting]:
    """The settings worth trying; this package keeps freed memory in any case, as `train` does.

    XLA gains nothing from bfloat16 on CPUs, JAX without jit and torch.compile are far slower.
    """
    ways: dict[str, list[dict[str, Any]]] = {
        "tensorflow": [{"jit_compile": True}, {"jit_compile": False}],
        "jax": [{"jit_compile": True}],
        "torch": [{"dtype": "float32"}, {"dtype": "mixed_bfloat16"}],
    }
    keeps_memory = keep_memory or engine == OURS
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
    step, num_parameters = step_of(case, setting)

    def first_step() -> dict[str, float]:
        return {"loss": step(), "num_parameters": num_parameters}

    def seconds_per_step(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - start) / steps

    return {action.__name__: action for action in (first_step, seconds_per_step, matmul_flops)}


def start_worker(case: Case, setting: Setting) -> _common.Worker:
    """Start a worker with the actions `first_step`, `seconds_per_step` and `matmul_flops`."""
    specification = json.dumps([dataclasses.asdict(case), dataclasses.asdict(setting)])
    return _common.Worker(Path(__file__), specification, KERAS_BACKEND=setting.backend)


def main() -> None:
    case, setting = json.loads(sys.argv[1])
    _common.serve(lambda: _actions(Case(**case), Setting(**setting)))


if __name__ == "__main__":
    main()
