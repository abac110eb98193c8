"""The gRPC interface of TensorFlow Serving, by its own stubs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import tensorflow as tf
from support.stand_in_server.errors import RequestError, invalid
from support.stand_in_server.servable import Model
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
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
    """Serve a model; returns the server and its port, which the system chooses if `port` is 0."""
    server = grpc.server(ThreadPoolExecutor(THREADS), options=_OPTIONS)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(model), server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(_ModelService(model), server)
    bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    return server, bound


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, model: Model) -> None:
        self._model = model

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        return _answer(context, self._predict, request)

    def GetModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        return _answer(context, self._metadata, request)

    def _predict(self, request: Any) -> Any:
        servable = self._model.servable(request.model_spec)
        response = predict_pb2.PredictResponse()
        for name, value in servable.predict(request).items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(value, shape=value.shape))
        response.model_spec.CopyFrom(request.model_spec)
        response.model_spec.version.value = servable.version
        return response

    def _metadata(self, request: Any) -> Any:
        if list(request.metadata_field) != ["signature_def"]:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        servable = self._model.servable(request.model_spec)
        signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=servable.signatures)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = self._model.name
        response.model_spec.version.value = servable.version
        response.metadata["signature_def"].Pack(signatures)
        return response


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, model: Model) -> None:
        self._model = model

    def GetModelStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        return _answer(context, self._status, request)

    def _status(self, request: Any) -> Any:
        return get_model_status_pb2.GetModelStatusResponse(
            model_version_status=self._model.statuses(request.model_spec)
        )


def _answer(context: grpc.ServicerContext, function: Callable[[Any], Any], request: Any) -> Any:
    try:
        return function(request)
    except RequestError as error:
        context.abort(_CODES[error.code], error.message)
