"""Versions of a model in a folder: the newest is loaded, warmed up and run."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations, which TensorFlow Serving has built in)
from google.protobuf.message import DecodeError
from support.stand_in_server.batching import BatchingParameters, BatchScheduler, Run, Tensors
from support.stand_in_server.errors import Code, RequestError, invalid
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2
from tensorflow_serving.apis.get_model_status_pb2 import ModelVersionStatus

DEFAULT_SIGNATURE = "serving_default"
POLL_SECONDS = 1.0


class Servable:
    """One SavedModel, run in a session as by TensorFlow Serving.

    Args:
        path: A folder with saved_model.pb.
        batching: How requests are put together; None if they are not.
    """

    def __init__(self, path: Path, batching: BatchingParameters | None) -> None:
        self.version = int(path.name)
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            tags = [tf.saved_model.SERVING]
            graph = tf.compat.v1.saved_model.loader.load(self._session, tags, str(path))
        self.signatures = graph.signature_def
        for request in _warmup_requests(path):
            self.predict(request, self._run)
        self.scheduler = BatchScheduler(self._run, batching) if batching else None

    def signature(self, name: str) -> meta_graph_pb2.SignatureDef:
        """The definition of a signature, by default of `serving_default`."""
        name = name or DEFAULT_SIGNATURE
        if name not in self.signatures:
            raise RequestError(
                Code.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.'
            )
        return self.signatures[name]

    def predict(self, request: predict_pb2.PredictRequest, run: Run | None = None) -> Tensors:
        """Outputs of one request.

        Raises:
            RequestError: If the request does not fit the signature or the run fails.
        """
        name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        signature = self.signature(name)
        inputs = _checked_inputs(signature, request)
        unknown = set(request.output_filter) - set(signature.outputs)
        if unknown:
            raise invalid(f"output tensor alias not found in signature: {min(unknown)}")
        outputs = (run or self.scheduler or self._run)(name, inputs)
        wanted = request.output_filter or outputs
        return {name: outputs[name] for name in wanted}

    def _run(self, name: str, inputs: Tensors) -> Tensors:
        signature = self.signatures[name]
        feeds = {signature.inputs[key].name: value for key, value in inputs.items()}
        fetches = {key: info.name for key, info in signature.outputs.items()}
        try:
            return self._session.run(fetches, feeds)
        except tf.errors.OpError as error:
            raise RequestError(error.error_code, error.message) from None
        except (ValueError, TypeError) as error:  # raised by Python before the session runs
            raise invalid(str(error)) from None


def _checked_inputs(
    signature: meta_graph_pb2.SignatureDef, request: predict_pb2.PredictRequest
) -> Tensors:
    sent, wanted = set(request.inputs), set(signature.inputs)
    if sent != wanted:
        raise invalid(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({{{','.join(sorted(sent))}}}) != len({{{','.join(sorted(wanted))}}}). "
            f"Sent extra: {{{','.join(sorted(sent - wanted))}}}. "
            f"Missing but required: {{{','.join(sorted(wanted - sent))}}}."
        )
    inputs = {}
    for name, tensor in request.inputs.items():
        expected = signature.inputs[name].dtype
        if tensor.dtype != expected:
            types = [tf.dtypes.as_dtype(dtype).name for dtype in (expected, tensor.dtype)]
            raise invalid(f"input {name} expected type {types[0]} but got {types[1]}")
        try:
            inputs[name] = tf.make_ndarray(tensor)
        except (ValueError, TypeError) as error:
            raise invalid(f"tensor parsing error: {name}: {error}") from None
    return inputs


def _warmup_requests(path: Path) -> Iterator[predict_pb2.PredictRequest]:
    """What assets.extra/tf_serving_warmup_requests holds."""
    file = path / "assets.extra" / "tf_serving_warmup_requests"
    if not file.exists():
        return
    for record in tf.compat.v1.io.tf_record_iterator(str(file)):
        try:
            log = prediction_log_pb2.PredictionLog.FromString(record)
        except DecodeError as error:
            raise invalid(f"Failed to parse warmup record: {error}") from None
        if log.WhichOneof("log_type") != "predict_log":
            raise RequestError(Code.UNIMPLEMENTED, "Unsupported log_type for warmup")
        yield log.predict_log.request


class Model:
    """All versions of a model in a folder; the newest is served, and a newer one replaces it.

    Args:
        name: What clients call it.
        base_path: The folder with a folder for each version.
        batching: How requests are put together; None if they are not.
    """

    def __init__(self, name: str, base_path: Path, batching: BatchingParameters | None) -> None:
        self.name = name
        self._base_path, self._batching = base_path, batching
        self._servables: dict[int, Servable] = {}
        self._states: dict[int, ModelVersionStatus] = {}

    def watch(self) -> None:
        """Load the newest version, now and whenever there is a newer one."""
        stop = threading.Event()
        while True:
            self.load_newest()
            stop.wait(POLL_SECONDS)

    def load_newest(self) -> None:
        newest = max(self._versions_on_disk(), default=None)
        if newest is None or newest in self._states:
            return
        status = self._state(newest, ModelVersionStatus.LOADING)
        try:
            self._servables[newest] = Servable(self._base_path / str(newest), self._batching)
        except Exception as error:  # whatever is wrong with it, the server goes on
            status.status.error_code = getattr(error, "code", Code.UNKNOWN)
            status.status.error_message = str(error)
            status.state = ModelVersionStatus.END
            return
        self._state(newest, ModelVersionStatus.AVAILABLE)
        for version in sorted(self._servables)[:-1]:
            self._state(version, ModelVersionStatus.END)
            self._servables.pop(version)  # requests that have it go on

    def _versions_on_disk(self) -> Iterable[int]:
        if not self._base_path.is_dir():
            return []
        return [int(path.name) for path in self._base_path.iterdir() if path.name.isdecimal()]

    def _state(self, version: int, state: int) -> ModelVersionStatus:
        status = self._states.setdefault(version, ModelVersionStatus(version=version))
        status.state = state
        status.status.SetInParent()
        return status

    def servable(self, spec: model_pb2.ModelSpec) -> Servable:
        """What a request names: a version, or the newest."""
        servables = dict(self._servables)
        version = spec.version.value if spec.HasField("version") else max(servables, default=None)
        if spec.name != self.name or version not in servables:
            wanted = (
                f"Specific({spec.name}, {version})"
                if spec.HasField("version")
                else f"Latest({spec.name})"
            )
            raise RequestError(Code.NOT_FOUND, f"Servable not found for request: {wanted}")
        return servables[version]

    def servables(self) -> list[Servable]:
        return list(self._servables.values())

    def statuses(self, spec: model_pb2.ModelSpec) -> list[ModelVersionStatus]:
        """How the versions fare, or the one that a request names; the newest first."""
        known = dict(self._states) if spec.name == self.name else {}
        if spec.HasField("version"):
            if spec.version.value not in known:
                raise RequestError(
                    Code.NOT_FOUND,
                    f"Could not find version {spec.version.value} of model {spec.name}",
                )
            return [known[spec.version.value]]
        if not known:
            message = f"Could not find any versions of model {spec.name}"
            raise RequestError(Code.NOT_FOUND, message)
        return [known[version] for version in sorted(known, reverse=True)]
