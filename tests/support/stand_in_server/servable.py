"""The newest version of a model in a folder, run as by TensorFlow Serving."""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations, which TensorFlow Serving has built in)
from support.stand_in_server.batching import BatchingParameters, BatchScheduler, Tensors
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import prediction_log_pb2

DEFAULT_SIGNATURE = "serving_default"


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
