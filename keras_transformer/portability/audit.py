"""Asks the processes of all backends for results, and compares the results."""

import itertools
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.portability.backend import Backend, BackendError, measured
from keras_transformer.portability.compare import Difference, Measured, differences

CHECKS = ("outputs", "gradients", "training step", "search", "save and load")
Pair = tuple[str, str]


class Reading(NamedTuple):
    """Outputs of a model before saving, and outputs after the backend `reader` loaded the file."""

    path: Path
    reader: str
    expected: Measured
    found: Measured

    def differences(self) -> list[Difference]:
        return differences(self.expected, self.found)


class Audit:
    """Runs the checks on all backends and keeps the results.

    Args:
        backends: The processes, by name of the backend.
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
        """Runs the checks on all backends in parallel; after each check, calls `report(total)`."""

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
        """Compares the results of a check; returns [] if one of the backends has no results."""
        if check == "save and load":
            return [x for reading in self.readings(pair) for x in reading.differences()]
        if not all((check, name) in self.answers for name in pair):
            return []
        return of_check(check, *(self.answers[check, name] for name in pair))

    def readings(self, pair: Pair) -> list[Reading]:
        """Returns the outputs of two backends for the original file and the files they saved."""
        outputs = {x: self.answers["outputs", x] for x in pair if ("outputs", x) in self.answers}
        found, here = [], keras.config.backend()
        if here in outputs:  # the model was made on this backend
            answer = outputs[here]
            values = {f"output {i}": x for i, x in enumerate(self._given)}
            given = answer._replace(values=values)
            found.append(Reading(self._folder / "model.keras", here, given, answer))
        for writer, reader in itertools.product(outputs, outputs):
            if (writer, reader) in self._loaded:
                loaded = self._loaded[writer, reader]
                found.append(Reading(self.file_of(writer), reader, outputs[writer], loaded))
        return found

    def parting_call(self, pair: Pair) -> tuple[str, list[Difference]] | None:
        """Finds the first layer call whose outputs differ by backend although its inputs agree."""
        try:
            one, other = (self._walk(name) for name in pair)
        except BackendError:
            return None
        shared = _calls(one) & _calls(other)
        calls: dict[str, dict[str, list[Difference]]] = {}
        for difference in differences(one, other):
            call, kind, number = difference.name.rsplit(" ", 2)
            if call not in shared:
                continue
            named = difference._replace(name=f"{kind} {number}")
            calls.setdefault(call, {"input": [], "output": []})[kind] += [named] * named.parts
        return next(
            ((call, x["output"]) for call, x in calls.items() if x["output"] and not x["input"]),
            None,
        )

    def parting_step(self, check: str, pair: Pair) -> tuple[str, list[Difference]] | None:
        """Finds the innermost layer call whose own training step differs between the backends."""
        try:
            one, other = (self._walk(name) for name in pair)
        except BackendError:
            return None
        calls = list(dict.fromkeys(x.rsplit(" ", 2)[0] for x in one.values if x in other.values))
        found, prefix = None, f"{calls[-1]}/"
        inner = iter(calls)
        while (call := next(inner, None)) is not None:
            if call.startswith(prefix) and "/" not in call.removeprefix(prefix):
                if parting := self._step_differences(check, pair, call):
                    found, prefix = (call, parting), f"{call.partition(' (call')[0]}/"
                    inner = iter(calls)
        return found

    def failing_call(self, name: str) -> str | None:
        """Returns the innermost layer call that raises an error on a backend, or None."""
        try:
            self._walk(name)
        except BackendError as error:
            return error.call
        return None

    def file_of(self, writer: str) -> Path:
        return self._folder / f"saved-{writer}.keras"

    def _run(self, check: str, name: str) -> None:
        backend = self.backends[name]
        try:
            if check == "save and load":
                backend.ask("save", path=str(self.file_of(name)))
            else:
                answer = backend.ask(_METHODS[check])
                self.answers[check, name] = measured(answer)
                if check == "gradients":
                    self.answers["training step", name] = self.answers[check, name]
                    self.is_training &= answer["is_training"]
        except BackendError as error:
            self.errors[check, name] = error

    def _load_all(self, reader: str) -> None:
        for writer in self.backends:
            path = self.file_of(writer)
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

    def _step_differences(self, check: str, pair: Pair, call: str) -> list[Difference]:
        try:
            one, other = (measured(self.backends[name].ask("step", call=call)) for name in pair)
        except BackendError:
            return []
        return [x for x in of_check(check, one, other) if x.parts]


def _calls(walk: Measured) -> set[str]:
    """Returns the layer calls with outputs; a call in a compiled loop has none."""
    return {call for call, kind, _ in (x.rsplit(" ", 2) for x in walk.values) if kind == "output"}


_METHODS = {"outputs": "outputs", "gradients": "step", "search": "search"}


def of_check(check: str, one: Measured, other: Measured) -> list[Difference]:
    """Compares the results of one check.

    Two checks use the same training step: "gradients" compares its gradients, and "training step"
    compares the variables after it.
    """
    kinds = {"gradients": "gradient ", "training step": "variable "}
    return [x for x in differences(one, other) if x.name.startswith(kinds.get(check, ""))]
