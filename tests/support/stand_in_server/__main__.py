"""A stand-in for tensorflow_model_server, which no package registry ships: not for production.

Tests and load trials use it on machines without Docker. It answers predict requests by the
server's REST and gRPC protocols, takes flags of the same names, and loads the newest version of one
model, with the warm-up requests that come with it. Batches follow the same parameters.
"""

import argparse
import json
from pathlib import Path

EXAMPLE = """example:
  PYTHONPATH=tests python -m support.stand_in_server --model_name quickstart \\
      --model_base_path exports/quickstart

It prints its ports as one line of JSON once it listens.
"""


def main() -> None:
    arguments = _arguments()
    from support.stand_in_server.servable import BatchingParameters, Model
    from support.stand_in_server.servers import RestServer, start_grpc_server

    batching = BatchingParameters() if arguments.enable_batching else None
    if arguments.batching_parameters_file:
        batching = BatchingParameters.read(arguments.batching_parameters_file)
    model = Model(arguments.model_name, arguments.model_base_path.resolve(), batching)
    rest_server = RestServer(model, arguments.host, arguments.rest_api_port)
    grpc_server, grpc_port = start_grpc_server(model, arguments.host, arguments.port)
    ports = {"port": grpc_port, "rest_api_port": rest_server.server_address[1]}
    print(json.dumps(ports), flush=True)
    try:
        rest_server.serve_forever()
    except KeyboardInterrupt:
        grpc_server.stop(None)


def _arguments() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE, formatter_class=layout)
    add = parser.add_argument
    add("--model_name", required=True)
    add("--model_base_path", type=Path, required=True, help="folder with a folder for each version")
    add("--host", default="localhost", help="address to listen on; default: this machine only")
    add("--port", type=int, default=8500, help="for gRPC; 0: any; default: 8500")
    add("--rest_api_port", type=int, default=8501, help="for REST; 0: any; default: 8501")
    add("--enable_batching", action="store_true", help="put requests together")
    add("--batching_parameters_file", type=Path, help="text protobuf; implies --enable_batching")
    return parser.parse_args()


if __name__ == "__main__":
    main()
