"""Sends requests to one model on TensorFlow Serving, by REST or by gRPC."""

import base64
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from http.client import BadStatusLine
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import numpy as np
import requests

from keras_transformer.errors import UserError

REST_ADDRESS, GRPC_ADDRESS = "http://localhost:8501", "localhost:8500"
# HTTP status: too many requests, bad gateway, service unavailable, gateway timeout.
_TEMPORARY = (429, 502, 503, 504)
# What gRPC says of a server that answers in HTTP/1.
_NOT_GRPC = ("http1.x server", "Failed parsing HTTP/2")
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


class UnreachableError(TemporaryError):
    """There is no connection to the server."""


class NotFoundError(Exception):
    """The server does not serve this model or version now. `Endpoint.states` tells why."""


class VersionState(NamedTuple):
    """The state of one version of a model on the server."""

    version: int
    state: str  # START, LOADING, AVAILABLE, UNLOADING or END
    error: str  # "" if there is none


class Endpoint(Protocol):
    """A connection to one model on one server.

    The constructor of each implementation takes the arguments `model`, `address`, `version` and
    `timeout` of `connect`.
    """

    address: str
    model: str
    version: int | None

    def predict(self, signature: str, inputs: Mapping[str, Values]) -> dict[str, list[Any]]:
        """Runs a signature of the model.

        Args:
            signature: Name of the signature.
            inputs: Maps the name of each input to its values. All inputs have the same number of
                values. Bytes need not be UTF-8. Integers become int32. Floats become float32.

        Returns:
            A dict that maps the name of each output to a nested list. Bytes that are not UTF-8
            become the character U+FFFD.

        Raises:
            TemporaryError: If the same request may succeed later.
            NotFoundError: If the server does not serve this model or version now.
            UserError: If the server refuses the request for another reason.
        """
        ...

    def states(self) -> list[VersionState]:
        """Returns the states of all model versions. Raises the same errors as `predict`."""
        ...


class RestEndpoint:
    """Sends requests over HTTP and reuses connections. The address may also start with `https://`.

    An address without a scheme gets `http://`.

    Source: https://www.tensorflow.org/tfx/serving/api_rest
    """

    def __init__(
        self,
        model: str,
        address: str = REST_ADDRESS,
        version: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        if "://" not in address:
            address = f"http://{address}"
        self.model, self.address, self.version = model, address, version
        self._timeout = timeout
        self._model_url = f"{address.rstrip('/')}/v1/models/{quote(model, safe='')}"
        self._session = requests.Session()

    def predict(self, signature: str, inputs: Mapping[str, Values]) -> dict[str, list[Any]]:
        version = "" if self.version is None else f"/versions/{self.version}"
        body = {
            "signature_name": signature,
            "inputs": {name: _json_values(values) for name, values in inputs.items()},
        }
        answer = self._ask("POST", f"{self._model_url}{version}:predict", body)
        if "outputs" not in answer:
            raise UserError(f"{self.address} answers without 'outputs': {str(answer)[:200]}")
        return answer["outputs"]

    def states(self) -> list[VersionState]:
        answer = self._ask("GET", self._model_url)
        try:
            states = answer.get("model_version_status", ())
            errors = [entry.get("status", {}).get("error_message", "") for entry in states]
            return [
                VersionState(int(entry["version"]), entry["state"], error)
                for entry, error in zip(states, errors, strict=True)
            ]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            message = f"{self.address} answers without a list of versions: {str(answer)[:200]}"
            raise UserError(message) from None

    def _ask(self, method: str, url: str, body: Any = None) -> dict[str, Any]:
        try:
            response = self._request(method, url, body)
        except (requests.Timeout, TimeoutError):
            message = f"{self.address} gave no answer within {self._timeout:g} s"
            raise TemporaryError(message) from None
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            if _is_not_http(error):
                raise UserError(
                    f"{self.address} does not answer in HTTP. If this is the port of gRPC, use the "
                    "protocol grpc, or give the port of REST"
                ) from None
            raise UnreachableError(f"{self.address} cannot be reached: {_reason(error)}") from None
        except ValueError as error:  # raised by requests for an invalid address
            raise UserError(
                f"the address must look like {REST_ADDRESS}. Received: {self.address} ({error})"
            ) from None
        return self._read(response)

    def _request(self, method: str, url: str, body: Any) -> requests.Response:
        """Sends a request and waits for the whole answer, at most `timeout` seconds.

        The time-out of the package `requests` restarts with every received byte. Therefore, a
        daemon thread waits for the answer. This method waits at most `timeout` seconds for the
        thread.
        """
        answer: Future[requests.Response] = Future()
        session = self._session

        def wait() -> None:
            try:
                answer.set_result(session.request(method, url, json=body, timeout=self._timeout))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()
        try:
            return answer.result(self._timeout)
        except TimeoutError:
            self._session = requests.Session()  # the thread still uses the old session
            raise

    def _read(self, response: requests.Response) -> dict[str, Any]:
        text = response.content.decode("utf-8", errors="replace")
        try:
            answer = json.loads(text)  # the server also writes NaN and -Infinity
        except (ValueError, RecursionError):  # also too many digits or levels
            answer = None
        message = answer.get("error") if isinstance(answer, dict) else text[:200]
        if response.status_code == 404:
            raise NotFoundError(message)
        if response.status_code in _TEMPORARY:
            raise TemporaryError(f"{self.address} answers {response.status_code}: {message}")
        if response.status_code != 200 or not isinstance(answer, dict):
            raise UserError(f"{self.address} answers {response.status_code}: {message}")
        return answer


def _json_values(values: Values) -> Sequence[Any]:
    return [_json_text(value) if isinstance(value, bytes) else value for value in values]


def _json_text(value: bytes) -> str | dict[str, str]:
    """Decodes UTF-8 bytes to a string. Encodes other bytes as base64, because JSON is text."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode("ascii")}


def _reason(error: Exception) -> str:
    """Returns the last part of the innermost error's message."""
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", inner)).rsplit(": ", 1)[-1]


def _is_not_http(error: Exception) -> bool:
    """Returns whether the server answered in another protocol than HTTP/1."""
    inner = error.args[0] if error.args else None
    causes = getattr(inner, "args", ())
    return any(type(cause) is BadStatusLine for cause in causes)  # subclasses have no answer


class GrpcEndpoint:
    """Sends requests over gRPC, without encryption. This class imports TensorFlow.

    Source: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
    """

    def __init__(
        self,
        model: str,
        address: str = GRPC_ADDRESS,
        version: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        if address.startswith(("http://", "https://")):
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
            if error.code() == code.NOT_FOUND:
                raise NotFoundError(error.details()) from None
            details = error.details() or ""
            if any(text in details for text in _NOT_GRPC):
                raise UserError(
                    f"{self.address} does not answer in gRPC. If this is the port of REST, use the "
                    "protocol rest, or give the port of gRPC"
                ) from None
            kinds = {
                code.UNAVAILABLE: UnreachableError,
                code.RESOURCE_EXHAUSTED: TemporaryError,
                code.DEADLINE_EXCEEDED: TemporaryError,
            }
            message = f"{self.address} answers {error.code().name}: {error.details()}"
            raise kinds.get(error.code(), UserError)(message) from None


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
