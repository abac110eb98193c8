"""The gRPC interface of TensorFlow Serving, by its own stubs: predict."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import tensorflow as tf
from support.stand_in_server.servable import DEFAULT_SIGNATURE, Model, RequestError, arrays
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

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
