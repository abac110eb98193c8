"""TensorFlow Serving's gRPC interface, with the stubs of tensorflow-serving-api."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_transformer.errors import UserError
from keras_transformer.serving.endpoint import (
    NotFoundError,
    TemporaryError,
    Values,
    VersionState,
)

DEFAULT_ADDRESS = "localhost:8500"
# By default gRPC refuses messages over 4 MiB and reconnects after ever longer pauses.
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class GrpcEndpoint:
    """One model by gRPC, without encryption. Imports TensorFlow, which the stubs need.

    Args:
        model: The model's name on the server.
        address: `host:port`.
        version: Version of the model. Defaults to None: the newest.
        timeout: Maximum duration of a request in seconds.

    Raises:
        UserError: If tensorflow-serving-api is not installed.

    Source:
        PredictionService and ModelService in
        https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
    """

    def __init__(
        self,
        model: str,
        address: str = DEFAULT_ADDRESS,
        version: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        try:
            import grpc
            import tensorflow as tf
            from tensorflow_serving.apis import (
                get_model_status_pb2,
                model_service_pb2_grpc,
                predict_pb2,
                prediction_service_pb2_grpc,
            )
        except ImportError as error:
            raise UserError(
                "gRPC needs tensorflow-serving-api: pip install 'keras3-transformer[serving]' "
                f"({error})"
            ) from None
        self.model, self.address, self.version = model, address, version
        self._timeout = timeout
        self._grpc, self._tf = grpc, tf
        channel = grpc.insecure_channel(address, _CHANNEL_OPTIONS)
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self._models = model_service_pb2_grpc.ModelServiceStub(channel)
        self._predict_request = predict_pb2.PredictRequest
        self._status_request = get_model_status_pb2.GetModelStatusRequest

    def predict(self, signature: str, inputs: Mapping[str, Values]) -> dict[str, list[Any]]:
        request = self._predict_request()
        request.model_spec.name = self.model
        request.model_spec.signature_name = signature
        if self.version is not None:
            request.model_spec.version.value = self.version
        for name, values in inputs.items():
            request.inputs[name].CopyFrom(self._tf.make_tensor_proto(_array(values)))
        response = self._ask(self._predictions.Predict, request)
        return {
            name: _with_text(self._tf.make_ndarray(tensor).tolist())
            for name, tensor in response.outputs.items()
        }

    def states(self) -> list[VersionState]:
        request = self._status_request()
        request.model_spec.name = self.model
        response = self._ask(self._models.GetModelStatus, request)
        return [
            VersionState(entry.version, entry.State.Name(entry.state), entry.status.error_message)
            for entry in response.model_version_status
        ]

    def _ask(self, method: Callable[..., Any], request: Any) -> Any:
        code = self._grpc.StatusCode
        try:
            return method(request, timeout=self._timeout)
        except self._grpc.RpcError as error:
            message = f"{self.address} answers {error.code().name}: {error.details()}"
            if error.code() == code.NOT_FOUND:
                raise NotFoundError(error.details()) from None
            temporary = (code.UNAVAILABLE, code.RESOURCE_EXHAUSTED, code.DEADLINE_EXCEEDED)
            if error.code() in temporary:
                raise TemporaryError(message) from None
            raise UserError(message) from None


def _array(values: Values) -> np.ndarray:
    if not any(isinstance(value, str | bytes) for value in values):
        is_float = any(isinstance(value, float) for value in values)
        return np.array(values, "float32" if is_float else "int32")
    array = np.empty(len(values), object)  # NumPy's bytes dtype drops trailing zeros
    array[:] = [value.encode() if isinstance(value, str) else value for value in values]
    return array


def _with_text(values: Any) -> Any:
    if isinstance(values, list):
        return [_with_text(value) for value in values]
    return values.decode("utf-8", errors="replace") if isinstance(values, bytes) else values
