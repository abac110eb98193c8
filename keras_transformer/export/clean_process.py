"""Runs signatures of a SavedModel in a process of its own, as a model server does.

The process runs this file as a script, which knows nothing of this package: it loads the graph and
the operations of SentencePiece that a server has. The script reads JSON from standard input:
{"model": folder, "calls": [[signature, inputs], ...]}. It prints one line of JSON, a list with the
outputs of each call.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Call = tuple[str, Mapping[str, Sequence[Any]]]


def run_signatures(model: str | Path, calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Runs a SavedModel in a new process, and returns one dict for each call.

    The dict maps the name of each output to a nested list.

    Raises:
        RuntimeError: If the model cannot be loaded or a call fails. The message says why.
    """
    process = subprocess.run(
        [sys.executable, "-P", __file__],  # -P: modules beside this file are not top-level ones
        input=json.dumps({"model": str(model), "calls": list(calls)}),
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if process.returncode:
        reason = process.stderr.strip().rpartition("\n")[-1]
        raise RuntimeError(f"{model} fails in a new process: {reason}")
    return json.loads(process.stdout.splitlines()[-1])


def _main() -> None:
    import tensorflow as tf

    tf.load_op_library(_sentencepiece_library())
    request = json.load(sys.stdin)
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], request["model"])
        found = []
        for name, inputs in request["calls"]:
            signature = loaded.signature_def[name]
            fetches = {key: info.name for key, info in signature.outputs.items()}
            feeds = {signature.inputs[key].name: values for key, values in inputs.items()}
            outputs = session.run(fetches, feeds)
            found.append({key: _with_text(value.tolist()) for key, value in outputs.items()})
    print(json.dumps(found))


def _sentencepiece_library() -> str:
    """Returns the path of tensorflow-text's SentencePiece library, the only one that is needed."""
    spec = importlib.util.find_spec("tensorflow_text")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("tensorflow-text is not installed")
    (package,) = spec.submodule_search_locations
    (library,) = Path(package).glob("python/ops/_sentencepiece_tokenizer.*")
    return str(library)


def _with_text(values: Any) -> Any:
    if isinstance(values, list):
        return [_with_text(value) for value in values]
    return values.decode("utf-8", errors="replace") if isinstance(values, bytes) else values


if __name__ == "__main__":
    _main()
