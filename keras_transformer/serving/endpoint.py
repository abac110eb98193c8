"""Sends requests to one model on TensorFlow Serving, by REST or by gRPC."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import requests

from keras_transformer.errors import UserError

REST_ADDRESS, GRPC_ADDRESS = "http://localhost:8501", "localhost:8500"
# HTTP status: too many requests, bad gateway, service unavailable, gateway timeout.
_TEMPORARY = (429, 502, 503, 504)
# By default, gRPC refuses messages over 4 MiB and makes ever longer pauses before it reconnects.
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

Values = Sequence[str | bytes] | Sequence[int] | Sequence[float]


class TemporaryError(Exception):
    """The server is unreachable, overloaded or slow, so the same request may succeed later."""


class NotFoundError(Exception):
    """The server does not serve this model or version now. `states` tells why."""


class VersionState(NamedTuple):
    """The state of one version of a model on the server."""

    version: int
    state: str  # START, LOADING, AVAILABLE, UNLOADING or END
    error: str  # "" if there is none


class RestEndpoint:
    """Sends requests over HTTP or HTTPS. An address without a scheme gets `http://`.

    The methods raise `TemporaryError`, `NotFoundError`, or `UserError` if the server refuses the
    request for another reason.

    Source: https://www.tensorflow.org/tfx/serving/api_rest
    """

    def __init__(
        self,
        model: str,
        address: str | None = None,
        version: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        address = address or REST_ADDRESS
        self.address = address if "://" in address else f"http://{address}"
        self.model, self.version, self._timeout = model, version, timeout
        self._url = f"{self.address.rstrip('/')}/v1/models/{quote(model, safe='')}"
        self._session = requests.Session()

    def predict(self, signature: str, inputs: Mapping[str, Values]) -> dict[str, list[Any]]:
        """Runs a signature of the model.

        Args:
            signature: Name of the signature.
            inputs: Maps the name of each input to its values. All inputs have the same number of
                values. Bytes need not be UTF-8. Integers become int32. Floats become float32.

        Returns:
            A dict that maps the name of each output to a nested list. Bytes that are not UTF-8
            become the character U+FFFD.
        """
        version = "" if self.version is None else f"/versions/{self.version}"
        columns = {name: [_json_value(x) for x in values] for name, values in inputs.items()}
        body = {"signature_name": signature, "inputs": columns}
        return self._ask("POST", f"{self._url}{version}:predict", body, "outputs")

    def states(self) -> list[VersionState]:
        """Returns the states of all model versions."""
        return [
            VersionState(int(x["version"]), x["state"], x["status"].get("error_message", ""))
            for x in self._ask("GET", self._url, None, "model_version_status")
        ]

    def _ask(self, method: str, url: str, body: Any, key: str) -> Any:
        """Returns the value of `key` in the answer."""
        try:
            response = self._session.request(method, url, json=body, timeout=self._timeout)
        except requests.Timeout:
            message = f"{self.address} gave no answer within {self._timeout:g} s"
            raise TemporaryError(message) from None
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            reason = getattr(error.args[0] if error.args else error, "reason", error)
            reason = str(reason).rsplit(": ", 1)[-1]
            raise TemporaryError(f"{self.address} cannot be reached: {reason}") from None
        except ValueError as error:  # raised by requests for an invalid address
            raise UserError(
                f"the address must look like {REST_ADDRESS}. Received: {self.address} ({error})"
            ) from None
        text = response.content.decode("utf-8", errors="replace")
        try:
            answer = json.loads(text)  # the server also writes NaN and -Infinity
            if response.status_code == 200:
                return answer[key]
            message = answer["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            message = text[:200]
        if response.status_code == 404:
            raise NotFoundError(message)
        is_temporary = response.status_code in _TEMPORARY
        error_class = TemporaryError if is_temporary else UserError
        raise error_class(f"{self.address} answers {response.status_code}: {message}")


def _json_value(value: Any) -> Any:
    """Decodes UTF-8 bytes to a string. Encodes other bytes as base64, because JSON is text."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode("ascii")}


class GrpcEndpoint:
    """Does the same as `RestEndpoint` over gRPC, without encryption. Imports TensorFlow.

    Source: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
    """

    def __init__(
        self,
        model: str,
        address: str | None = None,
        version: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.model, self.version, self._timeout = model, version, timeout
        self.address = address or GRPC_ADDRESS
        if "://" in self.address:
            raise UserError(
                f"the address of gRPC must look like {GRPC_ADDRESS}, without http://. "
                f"Received: {address}"
            )
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
        self._grpc, self._tf = grpc, tf
        channel = grpc.insecure_channel(self.address, _CHANNEL_OPTIONS)
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
            if error.code() == code.NOT_FOUND:
                raise NotFoundError(error.details()) from None
            temporary = (code.UNAVAILABLE, code.RESOURCE_EXHAUSTED, code.DEADLINE_EXCEEDED)
            error_class = TemporaryError if error.code() in temporary else UserError
            message = f"{self.address} answers {error.code().name}: {error.details()}"
            raise error_class(message) from None


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
