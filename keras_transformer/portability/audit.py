"""Starts one process per backend, asks each process for results, and compares the results."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.portability.compare import Difference, Measured, differences

CHECKS = ("outputs", "gradients", "training step", "search", "save and load")
Pair = tuple[str, str]
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
    """The process of one backend (see `child.py`). Use this class in a `with` statement."""

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
    """Reads the arrays of an answer of `Child` from their file."""
    names, arrays = answer["names"], np.load(answer["file"])
    values = {name: arrays[f"arr_{i}"] for i, name in enumerate(names)}
    noise = {name: arrays[f"arr_{i + len(names)}"] for i, name in enumerate(names)}
    return Measured(values, noise, answer["epsilon"], answer["terms"])


class Reading(NamedTuple):
    """Outputs of a model before it was saved, and after the backend `reader` loaded its file."""

    path: Path
    reader: str
    expected: Measured
    found: Measured

    def differences(self) -> list[Difference]:
        return differences(self.expected, self.found)


class Audit:
    """Runs the checks on all backends and keeps the results.

    Args:
        backends: Dict from the name of a backend to its process.
        folder: Folder with `model.keras`. The processes also save the model to this folder.
        given: Outputs of the original model, before it was saved.
    """

    def __init__(self, backends: dict[str, Backend], folder: Path, given: list[np.ndarray]) -> None:
        self.backends, self._folder, self._given = backends, folder, given
        self.answers: dict[tuple[str, str], Measured] = {}
        self.errors: dict[tuple[str, str], BackendError] = {}
        self.is_training = True
        self._loaded: dict[tuple[str, str], Measured] = {}  # by saving and loading backend
        self._walks: dict[str, Measured] = {}

    def run(self, checks: Collection[str], report: Callable[[int], object]) -> None:
        """Runs the checks on all backends in parallel.

        After each check on a backend, calls `report` with the number of checks on all backends.
        """

        def run(name: str) -> None:
            for check in checks:
                if check != "training step":  # the check "gradients" gives these results too
                    self._run(check, name)
                report(len(checks) * len(self.backends))

        with ThreadPoolExecutor(len(self.backends)) as pool:
            list(pool.map(run, self.backends))
            list(pool.map(self._load_all, self.backends))

    def pairs(self) -> list[Pair]:
        return list(itertools.combinations(self.backends, 2))

    def differences(self, check: str, pair: Pair) -> list[Difference]:
        """Compares the results of a check. Returns [] if one of two backends has no results."""
        if check == "save and load":
            return [x for reading in self.readings(pair) for x in reading.differences()]
        if not all((check, name) in self.answers for name in pair):
            return []
        return _of_check(check, *(self.answers[check, name] for name in pair))

    def readings(self, pair: Pair) -> list[Reading]:
        """Returns a `Reading` for each model file and each backend of the pair that loaded it.

        The files are those that the pair saved. If the pair contains the backend of this process,
        that backend also has a `Reading` of the original file.
        """
        outputs = {x: self.answers["outputs", x] for x in pair if ("outputs", x) in self.answers}
        found, here = [], keras.config.backend()
        if here in outputs:  # the model was made on this backend
            given = {f"output {i}": x for i, x in enumerate(self._given)}
            expected = outputs[here]._replace(values=given)
            found.append(Reading(self._folder / "model.keras", here, expected, outputs[here]))
        for writer, reader in itertools.product(outputs, outputs):
            if (writer, reader) in self._loaded:
                loaded = self._loaded[writer, reader]
                found.append(Reading(self._file_of(writer), reader, outputs[writer], loaded))
        return found

    def parting(self, check: str, pair: Pair) -> tuple[str, list[Difference]] | None:
        """Finds the layer call that makes two backends differ. Returns its path and differences.

        For the check "outputs", this call is the first whose outputs differ although its inputs
        agree. For "gradients" and "training step", this call is the innermost whose own training
        step differs. Returns None if no such call was found.
        """
        try:
            one, other = (self._walk(name) for name in pair)
        except BackendError:
            return None
        if check == "outputs":
            return _parting_call(one, other)
        calls = list(dict.fromkeys(x.rsplit(" ", 2)[0] for x in one.values if x in other.values))
        return self._parting_step(check, pair, calls)

    def failing_call(self, name: str) -> str | None:
        """Returns the innermost layer call that raises an error on a backend, or None."""
        try:
            self._walk(name)
        except BackendError as error:
            return error.call
        return None

    def _file_of(self, writer: str) -> Path:
        return self._folder / f"saved-{writer}.keras"

    def _run(self, check: str, name: str) -> None:
        backend = self.backends[name]
        try:
            if check == "save and load":
                backend.ask("save", path=str(self._file_of(name)))
                return
            answer = backend.ask("step" if check == "gradients" else check)
            self.answers[check, name] = measured(answer)
            if check == "gradients":
                self.answers["training step", name] = self.answers[check, name]
                self.is_training &= answer["is_training"]
        except BackendError as error:
            self.errors[check, name] = error

    def _load_all(self, reader: str) -> None:
        for writer in self.backends:
            path = self._file_of(writer)
            try:
                if path.exists():
                    loaded = measured(self.backends[reader].ask("load", path=str(path)))
                    self._loaded[writer, reader] = loaded
            except BackendError as error:
                error.file = path
                self.errors["save and load", reader] = error

    def _walk(self, name: str) -> Measured:
        if name not in self._walks:
            self._walks[name] = measured(self.backends[name].ask("walk"))
        return self._walks[name]

    def _parting_step(
        self, check: str, pair: Pair, calls: list[str]
    ) -> tuple[str, list[Difference]] | None:
        """Finds the innermost call within `calls[-1]` whose training step differs.

        The method tries the calls directly within `calls[-1]` in turn. If one differs, the method
        continues within this call.
        """
        outer = calls[-1]  # the model
        inside = [x for x in calls if x.rpartition("/")[0] == outer.partition(" (call")[0]]
        for call in inside:
            if found := self._step_differences(check, pair, call):
                inner = self._parting_step(check, pair, [*calls[: calls.index(call)], call])
                return inner or (call, found)
        return None

    def _step_differences(self, check: str, pair: Pair, call: str) -> list[Difference]:
        try:
            one, other = (measured(self.backends[name].ask("step", call=call)) for name in pair)
        except BackendError:
            return []
        return [x for x in _of_check(check, one, other) if x.parts]


def _parting_call(one: Measured, other: Measured) -> tuple[str, list[Difference]] | None:
    # A call in a compiled loop has no outputs.
    shared = {x.rsplit(" ", 2)[0] for x in one.values if x in other.values and " output " in x}
    calls: dict[str, dict[str, list[Difference]]] = {}
    for difference in differences(one, other):
        call, kind, number = difference.name.rsplit(" ", 2)
        if call in shared:
            named = difference._replace(name=f"{kind} {number}")
            calls.setdefault(call, {"input": [], "output": []})[kind] += [named] * named.parts
    found = ((call, x["output"]) for call, x in calls.items() if x["output"] and not x["input"])
    return next(found, None)


def _of_check(check: str, one: Measured, other: Measured) -> list[Difference]:
    """Compares two backends' results of one check.

    The checks "gradients" and "training step" use the same training step. "gradients" compares the
    gradients of this step, and "training step" compares the variables after this step.
    """
    kinds = {"gradients": "gradient ", "training step": "variable "}
    return [x for x in differences(one, other) if x.name.startswith(kinds.get(check, ""))]
