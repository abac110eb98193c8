"""Requests that arrive together are run together, by TensorFlow Serving's rules.

A queue for each signature, one pool of threads for all: see `SharedBatchScheduler` and
`BatchingSession` in https://github.com/tensorflow/serving.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf import wrappers_pb2 as wrappers
from support.stand_in_server.errors import Code, RequestError, invalid

Tensors = Mapping[str, np.ndarray]
Run = Callable[[str, Tensors], Tensors]

_PARAMETERS = {
    "max_batch_size": "Int64Value",
    "batch_timeout_micros": "Int64Value",
    "max_enqueued_batches": "Int64Value",
    "num_batch_threads": "Int64Value",
    "thread_pool_name": "StringValue",
    "enable_large_batch_splitting": "BoolValue",
}


@dataclass(frozen=True)
class BatchingParameters:
    """The defaults are those of TensorFlow Serving, except for the number of threads."""

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = 2
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length_inputs: bool = False
    enable_large_batch_splitting: bool = False

    @classmethod
    def read(cls, path: Path) -> "BatchingParameters":
        """Read a text protobuf, such as `max_batch_size { value: 32 }`."""
        message = text_format.Parse(path.read_text(), _parameters_message()())
        given = {
            name: getattr(message, name).value
            for name in _PARAMETERS
            if name != "thread_pool_name" and message.HasField(name)
        }
        sizes = tuple(message.allowed_batch_sizes)
        if sizes and (list(sizes) != sorted(sizes) or sizes[-1] != given.get("max_batch_size")):
            raise ValueError(f"{path}: allowed_batch_sizes must rise to max_batch_size")
        return cls(
            **given,
            allowed_batch_sizes=sizes,
            pad_variable_length_inputs=message.pad_variable_length_inputs,
        )


def _parameters_message() -> type:
    """`BatchingParameters` of session_bundle_config.proto, which no Python package holds."""
    file = descriptor_pb2.FileDescriptorProto(
        name="batching_parameters.proto", syntax="proto3", dependency=[wrappers.DESCRIPTOR.name]
    )
    message = file.message_type.add(name="BatchingParameters")
    for name, wrapper in _PARAMETERS.items():
        message.field.add(
            name=name,
            number=len(message.field) + 1,
            label=1,
            type=11,
            type_name=f".google.protobuf.{wrapper}",
        )
    message.field.add(name="allowed_batch_sizes", number=101, label=3, type=3)
    message.field.add(name="pad_variable_length_inputs", number=102, label=1, type=8)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("BatchingParameters"))


@dataclass
class _Task:
    inputs: Tensors
    size: int
    outputs: Future = field(default_factory=Future)


@dataclass
class _Batch:
    begun: float
    tasks: list[_Task] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(task.size for task in self.tasks)


class BatchScheduler:
    """Puts requests together, runs them, and takes the answers apart.

    Args:
        run: Runs a signature on a batch.
        parameters: When a batch is full or has waited long enough, and how many may wait.
    """

    def __init__(self, run: Run, parameters: BatchingParameters) -> None:
        self.sizes: deque[int] = deque(maxlen=100_000)  # of the batches that have been run
        self._run = run
        self._parameters = parameters
        self._changed = threading.Condition()
        self._queues: dict[str, deque[_Batch]] = {}
        for _ in range(parameters.num_batch_threads):
            threading.Thread(target=self._work, daemon=True).start()

    def __call__(self, signature: str, inputs: Tensors) -> Tensors:
        """Answer one request.

        Raises:
            RequestError: If the request cannot be batched, the queue is full, or the run of
                its batch fails.
        """
        size = _size(inputs)
        limit = self._parameters.max_batch_size
        if size > limit and self._parameters.enable_large_batch_splitting:
            starts = range(0, size, limit)
            parts = [{n: v[i : i + limit] for n, v in inputs.items()} for i in starts]
            answers = [task.outputs.result() for task in self._put(signature, parts)]
            return {name: _join([answer[name] for answer in answers]) for name in answers[0]}
        if size > limit:
            raise invalid(f"Task size {size} is larger than maximum input batch size {limit}")
        (task,) = self._put(signature, [inputs])
        return task.outputs.result()

    def _put(self, signature: str, parts: list[Tensors]) -> list[_Task]:
        tasks = [_Task(inputs, _size(inputs)) for inputs in parts]
        with self._changed:
            queue = self._queues.setdefault(signature, deque())
            for task in tasks:
                full = queue and queue[-1].size + task.size > self._parameters.max_batch_size
                if not queue or full:
                    if len(queue) >= self._parameters.max_enqueued_batches:
                        raise RequestError(
                            Code.UNAVAILABLE,
                            "The batch scheduling queue to which this task was submitted is full",
                        )
                    queue.append(_Batch(time.monotonic()))
                queue[-1].tasks.append(task)
            self._changed.notify()
        return tasks

    def _work(self) -> None:
        while True:
            signature, batch = self._next_batch()
            try:
                outputs = self._run_batch(signature, batch)
            except Exception as error:
                for task in batch.tasks:
                    task.outputs.set_exception(error)
            else:
                for task, part in zip(batch.tasks, outputs, strict=True):
                    task.outputs.set_result(part)

    def _next_batch(self) -> tuple[str, _Batch]:
        """The batch that has waited longest of those that are closed, full or due."""
        patience = self._parameters.batch_timeout_micros * 1e-6
        with self._changed:
            while True:
                now = time.monotonic()
                waiting = [(q[0].begun, name) for name, q in self._queues.items() if q]
                for _, name in sorted(waiting):
                    queue = self._queues[name]
                    is_full = queue[0].size >= self._parameters.max_batch_size
                    if len(queue) > 1 or is_full or now - queue[0].begun >= patience:
                        return name, queue.popleft()
                first = min((begun for begun, _ in waiting), default=None)
                self._changed.wait(None if first is None else first + patience - now)

    def _run_batch(self, signature: str, batch: _Batch) -> list[Tensors]:
        self.sizes.append(batch.size)
        inputs = {
            name: self._merge(name, [task.inputs[name] for task in batch.tasks])
            for name in batch.tasks[0].inputs
        }
        outputs = self._run(signature, inputs)
        for value in outputs.values():
            if not value.ndim or len(value) != _size(inputs):
                raise RequestError(
                    Code.FAILED_PRECONDITION,
                    "Batched output tensor's 0th dimension does not equal the sum of the 0th "
                    "dimension sizes of the input tensors",
                )
        ends = np.cumsum([task.size for task in batch.tasks])
        parts = {name: np.split(value, ends) for name, value in outputs.items()}
        return [{name: part[i] for name, part in parts.items()} for i in range(len(batch.tasks))]

    def _merge(self, name: str, values: list[np.ndarray]) -> np.ndarray:
        if self._parameters.pad_variable_length_inputs:
            values = _padded(values)
        elif len({value.shape[1:] for value in values}) > 1:
            raise RequestError(
                Code.FAILED_PRECONDITION,
                f"Tensors with name '{name}' from different tasks have different shapes and "
                "padding is turned off.",
            )
        merged = np.concatenate(values)
        allowed = [n for n in self._parameters.allowed_batch_sizes if n >= len(merged)]
        missing = allowed[0] - len(merged) if allowed else 0
        return np.concatenate([merged, np.repeat(values[-1][:1], missing, axis=0)])


def _size(inputs: Tensors) -> int:
    """The common length of the first axis."""
    if any(not value.ndim for value in inputs.values()):
        raise invalid("Batching input tensors must have at least one dimension")
    sizes = {len(value) for value in inputs.values()}
    if len(sizes) != 1:
        raise invalid(
            "Batching input tensors supplied in a given request must have equal 0th-dimension size",
        )
    return sizes.pop()


def _join(values: list[np.ndarray]) -> np.ndarray:
    """Answers to the parts of a request; their other axes may differ."""
    return np.concatenate(_padded(values))


def _padded(values: list[np.ndarray]) -> list[np.ndarray]:
    """All as long as the longest on every axis but the first, filled with their first value."""
    shape = np.max([value.shape[1:] for value in values], axis=0).astype(int)
    padded = []
    for value in values:
        wider = np.full((len(value), *shape), value.flat[0] if value.size else 0, value.dtype)
        wider[tuple(slice(n) for n in value.shape)] = value
        padded.append(wider)
    return padded
