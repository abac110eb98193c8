"""Checks a graph's operations, and writes files and warm-up requests for TensorFlow Serving."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer._files import atomic_write
from keras_transformer.errors import UserError

# Operations of tensorflow-text that are in every tensorflow_model_server.
SENTENCEPIECE = {"SentencepieceOp", "SentencepieceTokenizeOp", "SentencepieceDetokenizeOp"}

_MODELS = """\
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
  }}
}}
"""

_BATCHING = """\
# Requests that arrive within 5 ms run together. The graph sorts them by length and decodes a
# bounded number of tokens at a time, so large batches need no more memory.
max_batch_size { value: 1024 }
batch_timeout_micros { value: 5000 }
max_enqueued_batches { value: 256 }
num_batch_threads { value: 2 }
"""

_COMPOSE = """\
# docker compose up
services:
  "{name}":
    image: tensorflow/serving
    ports:
      - "8500:8500" # gRPC
      - "8501:8501" # REST
    volumes:
      - .:/models/{name}:ro
    command:
      - --model_config_file=/models/{name}/models.config
      - --enable_batching
      - --batching_parameters_file=/models/{name}/batching_parameters.txt
"""


def operations(graph_def: Any) -> list[str]:
    """Returns the names of all operations (such as `MatMul`) in a GraphDef and its functions."""
    nodes = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    functions = {function.signature.name for function in graph_def.library.function}
    return sorted({node.op for part in nodes for node in part} - functions)


def check_operations(names: list[str]) -> None:
    """Raises UserError if a stock tensorflow_model_server lacks one of the operations.

    The server has the core operations of TensorFlow, which `tf.raw_ops` lists, and those of
    tensorflow-text for SentencePiece.

    Source: https://www.tensorflow.org/tfx/serving/custom_op
    """
    import tensorflow as tf

    others = set(names) - SENTENCEPIECE
    if unknown := sorted(name for name in others if not hasattr(tf.raw_ops, name)):
        raise UserError(
            "the SavedModel needs operations that a stock tensorflow_model_server may not have: "
            f"{', '.join(unknown)}"
        )


def check_name(name: str) -> None:
    """Raises `UserError` if a model's name cannot be the name of a docker compose service."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise UserError(
            "the name of a served model may only have letters without accents, digits, '.', '_' "
            "and '-'. It is the name of the folder of the versions, so export to another folder "
            f"or give `name`. Received: {name!r}"
        )


def write_serving_files(directory: str | Path, name: str) -> None:
    """Writes `models.config`, `batching_parameters.txt` and `docker-compose.yml`.

    `directory` contains a folder for each version of the model. Existing files are not overwritten,
    because the user may have edited them.

    Source: https://www.tensorflow.org/tfx/serving/serving_config
    """
    contents = {
        "models.config": _MODELS.format(name=name),
        "batching_parameters.txt": _BATCHING,
        "docker-compose.yml": _COMPOSE.format(name=name),
    }
    for file, content in contents.items():
        path = Path(directory) / file
        if not path.exists():
            with atomic_write(path) as partial:
                partial.write_text(content, encoding="utf-8")


def write_warmup_requests(
    version: Path, name: str, requests: list[tuple[str, Mapping[str, Any]]]
) -> None:
    """Writes requests that the server runs before it makes a version available.

    Without these requests, the first user would wait while TensorFlow sets up the graph. Each item
    of `requests` contains the name of a signature and a dict of its inputs.

    Source: https://www.tensorflow.org/tfx/serving/saved_model_warmup
    """
    import tensorflow as tf

    folder = version / "assets.extra"
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "tf_serving_warmup_requests")) as writer:
        for signature, inputs in requests:
            tensors = ((key, tf.make_tensor_proto(value)) for key, value in inputs.items())
            protos = {key: tensor.SerializeToString() for key, tensor in tensors}
            writer.write(_prediction_log(name, signature, protos))


def _prediction_log(name: str, signature: str, inputs: Mapping[str, bytes]) -> bytes:
    """Returns a PredictionLog of TensorFlow Serving that contains one PredictRequest.

    The package tensorflow-serving-api has classes for these messages, but the package requires one
    specific version of TensorFlow.

    Source: prediction_log.proto, predict.proto and model.proto in
    https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
    """
    request = _field(1, _field(1, name.encode()) + _field(3, signature.encode()))
    for key, proto in inputs.items():
        request += _field(2, _field(1, key.encode()) + _field(2, proto))
    return _field(6, _field(1, request))


def _field(number: int, content: bytes) -> bytes:
    """Returns a length-delimited field of a protocol buffer."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
