"""The REST interface of TensorFlow Serving: its JSON, status codes and errors.

After https://www.tensorflow.org/tfx/serving/api_rest; numbers that JSON does not know are written
as NaN, Infinity and -Infinity, and strings as the bytes that they are, as the server does.
"""

import base64
import json
import re
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from support.stand_in_server.batching import Tensors
from support.stand_in_server.errors import RequestError, invalid
from support.stand_in_server.servable import Model
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    predict_pb2,
)

_MODEL = r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>\d+))?"
_PREDICT = re.compile(_MODEL + ":predict", re.IGNORECASE)
_STATUS = re.compile(_MODEL + "(?P<metadata>/metadata)?", re.IGNORECASE)
_HTTP_STATUS = {
    tf.errors.INVALID_ARGUMENT: 400,
    tf.errors.FAILED_PRECONDITION: 400,
    tf.errors.OUT_OF_RANGE: 400,
    tf.errors.NOT_FOUND: 404,
    tf.errors.RESOURCE_EXHAUSTED: 429,
    tf.errors.UNIMPLEMENTED: 501,
    tf.errors.UNAVAILABLE: 503,
    tf.errors.DEADLINE_EXCEEDED: 504,
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
        self._answer(_get, self.path)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(_post, self.path, body)

    def _answer(self, function: Any, *arguments: Any) -> None:
        status = 200
        try:
            text = function(self.server.model, *arguments)
        except RequestError as error:
            status = _HTTP_STATUS.get(error.code, 500)
            text = json.dumps({"error": error.message}, ensure_ascii=False)
        except Exception as error:  # a defect of the stand-in; it stays up
            status, text = 500, json.dumps({"error": f"{type(error).__name__}: {error}"})
        body = text.encode("utf-8", "surrogateescape")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def _get(model: Model, path: str) -> str:
    if path == "/stand_in/batch_sizes":  # of this server alone
        sizes = [s.scheduler.sizes for s in model.servables() if s.scheduler]
        return json.dumps(list(chain.from_iterable(sizes)))
    match = _STATUS.fullmatch(path)
    if not match:
        raise invalid(f"Malformed request: GET {path}")
    spec = model_pb2.ModelSpec(**_spec(match))
    if match["metadata"]:
        return _metadata(model, spec)
    response = get_model_status_pb2.GetModelStatusResponse(
        model_version_status=model.statuses(spec)
    )
    return _json_text(response)


def _metadata(model: Model, spec: model_pb2.ModelSpec) -> str:
    servable = model.servable(spec)
    signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=servable.signatures)
    answered = {"name": model.name, "signature_name": "", "version": str(servable.version)}
    definitions = json.loads(_json_text(signatures))
    return json.dumps({"model_spec": answered, "metadata": {"signature_def": definitions}})


def _json_text(message: Any) -> str:
    return json_format.MessageToJson(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _post(model: Model, path: str, body: bytes) -> str:
    match = _PREDICT.fullmatch(path)
    if not match:
        raise invalid(f"Malformed request: POST {path}")
    request = predict_pb2.PredictRequest(model_spec=_spec(match))
    servable = model.servable(request.model_spec)
    document = _parse(body)
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid("'signature_name' key must be a string value.")
    request.model_spec.signature_name = name
    if name and name not in servable.signatures:
        raise invalid(f'Serving signature name: "{name}" not found in signature def')
    for key, value in _tensors(document, servable.signature(name)).items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value, shape=value.shape))
    return _columns(servable.predict(request))


def _spec(match: re.Match[str]) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": match["model"]}
    return {**spec, "version": {"value": int(match["version"])}} if match["version"] else spec


def _parse(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body.decode("utf-8", "surrogateescape"))
    except json.JSONDecodeError as error:
        raise invalid(f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except RecursionError:
        raise invalid("JSON Parse error: nested too deeply") from None
    if not isinstance(document, dict):
        raise invalid("JSON Value: Is not object")
    return document


def _tensors(
    document: Mapping[str, Any], signature: meta_graph_pb2.SignatureDef
) -> dict[str, np.ndarray]:
    """The inputs of a request in columns. This server takes no rows ("instances")."""
    if "inputs" not in document:
        raise invalid("Missing 'inputs' or 'instances' key")
    types = {name: tf.as_dtype(info.dtype) for name, info in signature.inputs.items()}
    inputs = document["inputs"]
    if not isinstance(inputs, dict) and len(types) == 1:
        inputs = dict.fromkeys(types, inputs)
    if missing := set(types) - set(inputs):
        raise invalid(f"Missing named input: {min(missing)} in 'inputs' object.")
    return {name: _tensor(name, inputs[name], dtype) for name, dtype in types.items()}


def _tensor(name: str, values: Any, dtype: tf.DType) -> np.ndarray:
    try:
        tensor = np.array(_decoded(values, dtype), dtype.as_numpy_dtype)
    except (ValueError, OverflowError):
        raise invalid(f"{name}: the values are no tensor of {dtype.name}") from None
    if any(isinstance(x, list) for x in tensor.flat):
        raise invalid(f"{name}: Encountered list at unexpected level")
    return tensor


def _decoded(value: Any, dtype: tf.DType) -> Any:
    if isinstance(value, list):
        return [_decoded(x, dtype) for x in value]
    if dtype == tf.string and isinstance(value, dict) and list(value) == ["b64"]:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except ValueError:
            raise invalid("Unable to base64 decode") from None
    if dtype == tf.string and isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise invalid("JSON Parse error: The surrogate pair in string is invalid.") from None
    kinds = {tf.string: (), tf.bool: bool}.get(dtype, int if dtype.is_integer else int | float)
    if not isinstance(value, kinds):
        raise invalid(f"JSON Value: {json.dumps(value)} is not of expected type: {dtype.name}")
    return value


def _columns(outputs: Tensors) -> str:
    columns: Any = {name: _values(name, value) for name, value in outputs.items()}
    if len(columns) == 1:
        (columns,) = columns.values()
    return json.dumps({"outputs": columns}, ensure_ascii=False, indent=4)


def _values(name: str, value: np.ndarray) -> Any:
    """Nested lists of what JSON can write; `..._bytes` is an output of bytes, by convention."""
    if value.dtype == object:
        if name.endswith("_bytes"):
            return _map(value, lambda v: {"b64": base64.b64encode(v).decode("ascii")})
        return _map(value, lambda v: v.decode("utf-8", "surrogateescape"))
    if value.dtype == np.float32:
        return _map(value, lambda v: float(str(v)))  # the shortest number that is this float32
    return value.tolist()


def _map(value: np.ndarray, function: Any) -> Any:
    return [_map(v, function) if isinstance(v, np.ndarray) else function(v) for v in value]
