"""A stand-in for tensorflow_model_server, which no package registry ships: not for production.

Tests and load trials use it on machines without Docker. It answers predict requests by the
server's REST and gRPC protocols, takes flags of the same names, and loads the newest version of one
model, with the warm-up requests that come with it. Requests are put together by TensorFlow's own
batching, with the same parameters.
"""

import argparse
import json
import re
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations, which TensorFlow Serving has built in)
from tensorflow_serving.apis import (
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc as service,
)

EXAMPLE = """example:
  PYTHONPATH=tests python -m support.stand_in_server --model_name quickstart \\
      --model_base_path exports/quickstart

It prints its ports as one line of JSON once it listens.
"""
# TensorFlow's parameters; a file replaces those that it has, in lines such as
# `max_batch_size { value: 32 }`.
BATCHING = {"num_batch_threads": 1, "max_batch_size": 1000, "batch_timeout_micros": 0}
BATCHING |= {"max_enqueued_batches": 100}


class Model:
    """The newest version of a model.

    Args:
        name: What clients call it.
        folder: It has a folder for each version.
        batching: How requests are put together; None if they are not.
    """

    def __init__(self, name, folder, batching):
        self.name, self.batch_sizes = name, []
        version = max(
            (x for x in folder.iterdir() if x.name.isdecimal()), key=lambda x: int(x.name)
        )
        self._loaded = tf.saved_model.load(str(version))
        self._functions = {
            name: self._batched(name, function, batching) if batching else function
            for name, function in self._loaded.signatures.items()
        }
        file = version / "assets.extra" / "tf_serving_warmup_requests"
        for record in tf.data.TFRecordDataset([str(file)] if file.exists() else []):
            log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            self.answer(log.predict_log.request)

    def _batched(self, name, function, batching):
        specifications = function.structured_input_signature[1]

        @tf.nondifferentiable_batch_function(**batching, autograph=False)
        def run(*values):
            tf.numpy_function(lambda x: self.batch_sizes.append(len(x)), values[:1], [])
            return function(**dict(zip(specifications, values, strict=True)))

        @tf.function(autograph=False)
        def run_alone(**inputs):
            with tf.name_scope(name):  # Functions of equal names would share their batches.
                return run(*(inputs[x] for x in specifications))

        return run_alone.get_concrete_function(**specifications)

    def predict(self, name, signature, inputs):
        """Returns the outputs of a request, or raises an error if it is wrong."""
        if name != self.name:
            raise LookupError(f"Servable not found for request: Latest({name})")
        function = self._functions[signature or "serving_default"]
        types = function.structured_input_signature[1]
        tensors = {x: tf.constant(value, types[x].dtype) for x, value in inputs.items()}
        return {x: tensor.numpy() for x, tensor in function(**tensors).items()}

    def answer(self, request):
        """Answers a request of gRPC."""
        spec, response = request.model_spec, predict_pb2.PredictResponse()
        inputs = {x: tf.make_ndarray(proto) for x, proto in request.inputs.items()}
        for x, value in self.predict(spec.name, spec.signature_name, inputs).items():
            response.outputs[x].CopyFrom(tf.make_tensor_proto(value))
        return response

    def answer_json(self, path, body):
        """Answers a request of REST, whose inputs are in columns."""
        if path == "/stand_in/batch_sizes":  # of this server alone
            return self.batch_sizes
        if not (match := re.fullmatch("/v1/models/([^/:]+):predict", path)):
            raise LookupError(f"Malformed request: {path}")
        request = json.loads(body)
        outputs = self.predict(match[1], request.get("signature_name"), request["inputs"])
        return {"outputs": {x: _decoded(value.tolist()) for x, value in outputs.items()}}


def _decoded(value):
    if isinstance(value, list):
        return [_decoded(x) for x in value]
    return value.decode() if isinstance(value, bytes) else value


class Service(service.PredictionServiceServicer):
    """The server's gRPC protocol."""

    def __init__(self, model):
        self.model = model

    def Predict(self, request, context):
        try:
            return self.model.answer(request)
        except Exception as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def rest_server(model, port):
    """The server's REST protocol, a thread for each connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open
        disable_nagle_algorithm = True

        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                status, answer = 200, model.answer_json(self.path, body)
            except Exception as error:
                status = 404 if isinstance(error, LookupError) else 400
                answer = {"error": str(error)}
            content = json.dumps(answer, ensure_ascii=False, indent=4).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_):
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    return Server(("localhost", port), Handler)


def main():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE, formatter_class=layout)
    add = parser.add_argument
    add("--model_name", required=True)
    add("--model_base_path", type=Path, required=True, help="folder with a folder for each version")
    add("--port", type=int, default=8500, help="for gRPC; 0: any; default: 8500")
    add("--rest_api_port", type=int, default=8501, help="for REST; 0: any; default: 8501")
    add("--enable_batching", action="store_true", help="put requests together")
    add("--batching_parameters_file", type=Path, help="text protobuf; implies --enable_batching")
    arguments = parser.parse_args()
    batching = BATCHING if arguments.enable_batching else None
    if file := arguments.batching_parameters_file:
        found = re.findall(r"(\w+) *\{ *value: *(\d+)", file.read_text())
        batching = BATCHING | {x: int(value) for x, value in found if x in BATCHING}
    model = Model(arguments.model_name, arguments.model_base_path.resolve(), batching)
    rest = rest_server(model, arguments.rest_api_port)
    server = grpc.server(ThreadPoolExecutor(64), options=[("grpc.so_reuseport", 0)])
    service.add_PredictionServiceServicer_to_server(Service(model), server)
    port = server.add_insecure_port(f"localhost:{arguments.port}")
    server.start()
    print(json.dumps({"port": port, "rest_api_port": rest.server_port}), flush=True)
    rest.serve_forever()


if __name__ == "__main__":
    main()
