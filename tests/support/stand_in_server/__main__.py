"""A stand-in for tensorflow_model_server, which no package registry ships: not for production.

Tests and load trials use it on machines without Docker. It speaks the server's REST and gRPC
protocols with the official protocol buffers and takes flags of the same names. It loads the newest
version in the folder, sends it the warm-up requests that come with it, and batches requests by
the same batching parameters. It is written in Python, serves one version of one model, and supports
only predict and status requests.
"""

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

EXAMPLES = """examples:
  PYTHONPATH=tests python -m support.stand_in_server --model_name quickstart \\
      --model_base_path exports/quickstart
  PYTHONPATH=tests python -m support.stand_in_server --model_name multi30k \\
      --model_base_path exports/multi30k \\
      --batching_parameters_file exports/multi30k/batching_parameters.txt

It prints its ports as one line of JSON once it listens. The model may still be loading then.
"""


def main() -> None:
    arguments = _arguments()
    try:
        from support.stand_in_server.batching import BatchingParameters
        from support.stand_in_server.grpc_server import start_grpc_server
        from support.stand_in_server.rest_server import RestServer
        from support.stand_in_server.servable import Model
    except ModuleNotFoundError as error:
        sys.exit(f"{error}. Install: pip install 'keras3-transformer[serving,tensorflow]'")

    batching = None
    if arguments.batching_parameters_file:
        batching = BatchingParameters.read(arguments.batching_parameters_file)
    elif arguments.enable_batching:
        batching = BatchingParameters()
    model = Model(arguments.model_name, arguments.model_base_path.resolve(), batching)
    try:
        rest_server = RestServer(model, arguments.host, arguments.rest_api_port)
    except OSError as error:
        sys.exit(f"port {arguments.rest_api_port}: {error.strerror}. See --rest_api_port")
    try:
        grpc_server, grpc_port = start_grpc_server(model, arguments.host, arguments.port)
    except RuntimeError:
        sys.exit(f"port {arguments.port} cannot be used. Another program may have it. See --port")
    ports = {"port": grpc_port, "rest_api_port": rest_server.server_address[1]}
    print(json.dumps(ports), flush=True)
    threading.Thread(target=model.load, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        rest_server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        grpc_server.stop(None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model_name", required=True)
    parser.add_argument(
        "--model_base_path", type=Path, required=True, help="folder with a folder for each version"
    )
    parser.add_argument(
        "--host", default="localhost", help="address to listen on; default: this machine only"
    )
    parser.add_argument("--port", type=int, default=8500, help="for gRPC; 0: any; default: 8500")
    parser.add_argument(
        "--rest_api_port", type=int, default=8501, help="for REST; 0: any; default: 8501"
    )
    parser.add_argument("--enable_batching", action="store_true", help="put requests together")
    parser.add_argument(
        "--batching_parameters_file", type=Path, help="text protobuf; implies --enable_batching"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
