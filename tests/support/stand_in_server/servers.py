"""The interfaces of TensorFlow Serving: predict requests by REST and by gRPC (its own stubs).

After https://www.tensorflow.org/tfx/serving/api_rest; numbers that JSON does not know are written
as NaN, Infinity and -Infinity, and strings as the bytes that they are, as the server does.
"""

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from support.stand_in_server.servable import (
    DEFAULT_SIGNATURE,
    Model,
    RequestError,
    arrays,
    invalid,
)
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

THREADS = 64
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
]
_PATH = re.compile(r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>\d+))?:predict")
_HTTP_STATUS = {
    tf.errors.INVALID_ARGUMENT: 400,
    tf.errors.FAILED_PRECONDITION: 400,
    tf.errors.NOT_FOUND: 404,
    tf.errors.RESOURCE_EXHAUSTED: 429,
    tf.errors.UNAVAILABLE: 503,
}


class RestServer(ThreadingHTTPServer):
    """Serves a model by HTTP, a thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, model: Model, host: str, port: int) -> None:
        super().__init__((host, port), _Handler)
        self.model = model


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open
    disable_nagle_algorithm = True
    server: RestServer

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        status = 200
        try:
            text = _answer(self.server.model, self.path, body)
        except RequestError as error:
            status = _HTTP_STATUS.get(error.code, 500)
            text = json.dumps({"error": error.message}, ensure_ascii=False)
        except Exception as error:  # a defect of the stand-in; it stays up
            status, text = 500, json.dumps({"error": f"{type(error).__name__}: {error}"})
        content = text.encode("utf-8", "surrogateescape")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def _answer(model: Model, path: str, body: bytes) -> str:
    if path == "/stand_in/batch_sizes":  # of this server alone
        return json.dumps(model.batch_sizes())
    match = _PATH.fullmatch(path)
    if not match:
        raise invalid(f"Malformed request: {path}")
    version = int(match["version"]) if match["version"] else None
    return _predict(model.servable(match["model"], version), body)


def _predict(servable: Any, body: bytes) -> str:
    """Takes inputs in columns. This server takes no rows ("instances")."""
    try:
        document = json.loads(body.decode("utf-8", "surrogateescape"))
        name, inputs = document.get("signature_name", DEFAULT_SIGNATURE), document["inputs"]
    except (ValueError, RecursionError, AttributeError, KeyError) as error:
        raise invalid(f"JSON Parse error: {type(error).__name__}: {error}") from None
    types = servable.signature(name).inputs
    inputs = inputs if isinstance(inputs, dict) else dict.fromkeys(types, inputs)
    tensors = {key: _tensor(x, types[key].dtype) for key, x in inputs.items() if key in types}
    columns: Any = {key: _values(value) for key, value in servable.predict(name, tensors).items()}
    if len(columns) == 1:
        (columns,) = columns.values()
    return json.dumps({"outputs": columns}, ensure_ascii=False, indent=4)


def _tensor(values: Any, dtype: int) -> np.ndarray:
    kind = tf.as_dtype(dtype)
    try:
        values = _encoded(values) if kind == tf.string else values
        return np.array(values, kind.as_numpy_dtype)
    except (ValueError, OverflowError, TypeError) as error:
        raise invalid(f"the values are no tensor of {kind.name}: {error}") from None


def _encoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_encoded(x) for x in value]
    if isinstance(value, dict):
        return base64.b64decode(value["b64"], validate=True)
    return value.encode("utf-8", "surrogateescape")


def _values(value: np.ndarray) -> Any:
    """Returns nested lists of what JSON can write."""
    if value.dtype == object:
        return _map(value, lambda x: x.decode("utf-8", "surrogateescape"))
    if value.dtype == np.float32:
        return _map(value, lambda x: float(str(x)))  # the shortest number that is this float32
    return value.tolist()


def _map(value: np.ndarray, function: Any) -> Any:
    return [_map(x, function) if isinstance(x, np.ndarray) else function(x) for x in value]


def start_grpc_server(model: Model, host: str, port: int) -> tuple[grpc.Server, int]:
    """Serves a model; returns the server and its port, which the system chooses if `port` is 0."""
    server = grpc.server(ThreadPoolExecutor(THREADS), options=_OPTIONS)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(_Service(model), server)
    bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    return server, bound


class _Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, model: Model) -> None:
        self._model = model

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        name = spec.signature_name or DEFAULT_SIGNATURE
        response = predict_pb2.PredictResponse()
        try:
            servable = self._model.servable(spec.name, version)
            outputs = servable.predict(name, arrays(request.inputs))
        except RequestError as error:
            context.abort(_CODES[error.code], error.message)
        for key, value in outputs.items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value, shape=value.shape))
        return response
