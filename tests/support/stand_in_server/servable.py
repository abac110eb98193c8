"""The newest version of a model in a folder, run as by TensorFlow Serving, in batches if asked."""

import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations, which TensorFlow Serving has built in)
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import prediction_log_pb2

DEFAULT_SIGNATURE = "serving_default"
Tensors = Mapping[str, np.ndarray]
Run = Callable[[str, Tensors], Tensors]


class Code(IntEnum):
    """The codes that TensorFlow and gRPC share."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    FAILED_PRECONDITION = 9


class RequestError(Exception):
    """A request that fails, with a code of gRPC and a message for the client."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def invalid(message: object) -> RequestError:
    return RequestError(Code.INVALID_ARGUMENT, str(message))


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


class Servable:
    """One SavedModel, run in a session as by TensorFlow Serving.

    Args:
        path: A folder with saved_model.pb.
        batching: How requests are put together; None if they are not.
    """

    def __init__(self, path: Path, batching: BatchingParameters | None) -> None:
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            tags = [tf.saved_model.SERVING]
            graph = tf.compat.v1.saved_model.loader.load(self._session, tags, str(path))
        self._signatures = graph.signature_def
        for request in _warmup_requests(path):
            inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
            self._run(request.model_spec.signature_name, inputs)
        self.scheduler = BatchScheduler(self._run, batching) if batching else None

    def signature(self, name: str) -> meta_graph_pb2.SignatureDef:
        if name not in self._signatures:
            message = f'Serving signature key "{name}" not found.'
            raise RequestError(Code.FAILED_PRECONDITION, message)
        return self._signatures[name]

    def predict(self, name: str, inputs: Tensors) -> Tensors:
        """Returns the outputs of one request.

        Raises:
            RequestError: If the request does not fit the signature, or the run fails.
        """
        wanted = self.signature(name).inputs
        if set(inputs) != set(wanted):
            message = f"input size does not match signature: {len(inputs)}!={len(wanted)}"
            raise invalid(f"{message}: {sorted(inputs)}")
        for key, value in inputs.items():
            expected, found = tf.as_dtype(wanted[key].dtype), tf.as_dtype(value.dtype)
            if found != expected:
                raise invalid(f"input {key} expected type {expected.name} but got {found.name}")
        try:
            return (self.scheduler or self._run)(name, inputs)
        except ValueError as error:
            raise invalid(error) from None

    def _run(self, name: str, inputs: Tensors) -> Tensors:
        signature = self.signature(name)
        feeds = {signature.inputs[key].name: value for key, value in inputs.items()}
        fetches = {key: info.name for key, info in signature.outputs.items()}
        try:
            return self._session.run(fetches, feeds)
        except tf.errors.OpError as error:
            raise RequestError(error.error_code, error.message) from None
        except (ValueError, TypeError) as error:  # raised by Python before the session runs
            raise invalid(error) from None


def _warmup_requests(path: Path) -> Iterator[prediction_log_pb2.PredictLog]:
    file = path / "assets.extra" / "tf_serving_warmup_requests"
    if file.exists():
        for record in tf.compat.v1.io.tf_record_iterator(str(file)):
            yield prediction_log_pb2.PredictionLog.FromString(record).predict_log.request


class Model:
    """The newest version of a model in a folder.

    Args:
        name: What clients call it.
        base_path: The folder with a folder for each version.
        batching: How requests are put together; None if they are not.
    """

    def __init__(self, name: str, base_path: Path, batching: BatchingParameters | None) -> None:
        self.name = name
        self.version = max(int(path.name) for path in base_path.iterdir() if path.name.isdecimal())
        self._servable = Servable(base_path / str(self.version), batching)

    def servable(self, name: str, version: int | None) -> Servable:
        """Returns the version that a request names. None means the newest."""
        if name != self.name or version not in (None, self.version):
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise RequestError(Code.NOT_FOUND, f"Servable not found for request: {wanted}")
        return self._servable

    def batch_sizes(self) -> list[int]:
        """Returns the sizes of the batches that have been run."""
        scheduler = self._servable.scheduler
        return list(scheduler.sizes) if scheduler else []


def arrays(protos: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Decodes the inputs of a request."""
    try:
        return {name: tf.make_ndarray(proto) for name, proto in protos.items()}
    except (ValueError, TypeError) as error:
        raise invalid(f"tensor parsing error: {error}") from None
