"""Starts the process of a backend and asks it for results."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.portability.compare import Measured

# Three processes share the GPU's memory, and compute float32 without loss of precision.
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "NVIDIA_TF32_OVERRIDE": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
}


class BackendError(Exception):
    """An error in the process of a backend.

    Attributes:
        call: Path of the innermost layer call that raised the error, or None.
        file: The model file that cannot be loaded, or None.
    """

    file: Path | None = None

    def __init__(self, message: str, call: str | None = None) -> None:
        super().__init__(message)
        self.call = call


class Backend:
    """The process of one backend (see `child.py`), to be used in a `with` statement."""

    def __init__(self, name: str, folder: Path, imports: list[str], seed: int) -> None:
        self._errors = folder / f"{name}.stderr"
        paths = [str(Path(__file__).parents[2]), *(path or os.getcwd() for path in sys.path)]
        command = [sys.executable, "-m", "keras_transformer.portability.child"]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*command, str(folder), json.dumps(imports), str(seed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env={
                    **os.environ,
                    **_ENVIRONMENT,
                    "KERAS_BACKEND": name,
                    "PYTHONPATH": os.pathsep.join(paths),
                },
            )

    def __enter__(self) -> "Backend":
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Calls a method of `Child` and returns its answer.

        Raises:
            BackendError: If the method fails or the process ends.
        """
        assert self._process.stdin and self._process.stdout
        try:
            print(json.dumps([method, arguments]), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            last = self._errors.read_text(errors="replace").strip().rpartition("\n")[-1]
            raise BackendError(f"the process ended with status {status}: {last}")
        answer = json.loads(line)
        if "error" in answer:
            raise BackendError(answer["error"], answer["failed_call"])
        return answer


def measured(answer: Mapping[str, Any]) -> Measured:
    """Reads the arrays of an answer."""
    names, arrays = answer["names"], np.load(answer["file"])
    values = {name: arrays[f"arr_{i}"] for i, name in enumerate(names)}
    noise = {name: arrays[f"arr_{i + len(names)}"] for i, name in enumerate(names)}
    return Measured(values, noise, answer["epsilon"], answer["terms"])
