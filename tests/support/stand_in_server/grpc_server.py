"""The gRPC interface of TensorFlow Serving, by its own stubs: predict and status."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import tensorflow as tf
from support.stand_in_server.servable import DEFAULT_SIGNATURE, Model, RequestError, arrays
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

THREADS = 64
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
]


def start_grpc_server(model: Model, host: str, port: int) -> tuple[grpc.Server, int]:
    """Serves a model; returns the server and its port, which the system chooses if `port` is 0."""
    server = grpc.server(ThreadPoolExecutor(THREADS), options=_OPTIONS)
    service = _Service(model)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(service, server)
    bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    return server, bound


class _Service(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    def __init__(self, model: Model) -> None:
        self._model = model

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        return _answer(context, self._predict, request)

    def GetModelStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        return _answer(context, self._status, request)

    def _predict(self, request: Any) -> Any:
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        servable = self._model.servable(spec.name, version)
        name = spec.signature_name or DEFAULT_SIGNATURE
        response = predict_pb2.PredictResponse()
        for key, value in servable.predict(name, arrays(request.inputs)).items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value, shape=value.shape))
        return response

    def _status(self, request: Any) -> Any:
        statuses = self._model.statuses(request.model_spec.name)
        return get_model_status_pb2.GetModelStatusResponse(model_version_status=statuses)


def _answer(context: grpc.ServicerContext, function: Callable[[Any], Any], request: Any) -> Any:
    try:
        return function(request)
    except RequestError as error:
        context.abort(_CODES[error.code], error.message)
