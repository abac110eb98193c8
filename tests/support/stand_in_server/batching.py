"""Requests that arrive together are run together, as by TensorFlow Serving."""

import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Tensors = Mapping[str, np.ndarray]
Run = Callable[[str, Tensors], Tensors]


@dataclass(frozen=True)
class BatchingParameters:
    """Two of TensorFlow Serving's parameters; the others have no effect here."""

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0

    @classmethod
    def read(cls, path: Path) -> "BatchingParameters":
        """Reads lines such as `max_batch_size { value: 32 }`."""
        found = dict(re.findall(r"(\w+) *\{ *value: *(\d+)", path.read_text()))
        return cls(**{name: int(found[name]) for name in cls.__annotations__ if name in found})


@dataclass
class _Task:
    signature: str
    inputs: Tensors
    size: int
    outputs: Future = field(default_factory=Future)


class BatchScheduler:
    """Puts requests for one signature together, runs them, and takes the answers apart.

    Args:
        run: Runs a signature on a batch.
        parameters: When a batch is full or has waited long enough.
    """

    def __init__(self, run: Run, parameters: BatchingParameters) -> None:
        self.sizes: deque[int] = deque(maxlen=100_000)  # of the batches that have been run
        self._run, self._parameters = run, parameters
        self._waiting: queue.Queue[_Task] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def __call__(self, signature: str, inputs: Tensors) -> Tensors:
        """Answers one request, or raises a `ValueError`."""
        sizes = {value.shape[:1] for value in inputs.values()}
        ((size,),) = sizes if len(sizes) == 1 and () not in sizes else ((-1,),)
        if not 0 <= size <= (limit := self._parameters.max_batch_size):
            raise ValueError(
                f"inputs must have one axis 0 of at most {limit} rows. Received: {sizes}"
            )
        self._waiting.put(task := _Task(signature, inputs, size))
        return task.outputs.result()

    def _work(self) -> None:
        held = None
        while True:
            batch, held = [held or self._waiting.get()], None
            end = time.monotonic() + self._parameters.batch_timeout_micros * 1e-6
            while held is None:
                try:
                    task = self._waiting.get(timeout=max(0.0, end - time.monotonic()))
                except queue.Empty:
                    break
                is_full = sum(x.size for x in [*batch, task]) > self._parameters.max_batch_size
                if is_full or task.signature != batch[0].signature:
                    held = task
                else:
                    batch.append(task)
            self._run_batch(batch)

    def _run_batch(self, batch: list[_Task]) -> None:
        sizes = [task.size for task in batch]
        self.sizes.append(sum(sizes))
        try:
            inputs = {
                name: np.concatenate([task.inputs[name] for task in batch])
                for name in batch[0].inputs
            }
            outputs = self._run(batch[0].signature, inputs)
        except Exception as error:  # it is the error of each request
            for task in batch:
                task.outputs.set_exception(error)
            return
        ends = np.cumsum(sizes)[:-1]
        parts = {name: np.split(value, ends) for name, value in outputs.items()}
        for i, task in enumerate(batch):
            task.outputs.set_result({name: part[i] for name, part in parts.items()})
