"""Finds the layer calls that make backends differ, and writes scripts that show the difference."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from keras_transformer.portability.audit import CHECKS, Audit, BackendError
from keras_transformer.portability.compare import worst
from keras_transformer.portability.script import DIFFER, Place, reproduces, write_script

# If backends fail the check on the left, failures of the checks on the right are not reported.
_EXPLAINED = {"outputs": CHECKS, "gradients": ("training step",)}


class Failure(NamedTuple):
    """A failed check.

    Attributes:
        check: Name of the check.
        backends: The two backends that differ, or the backend that raises an error.
        call: Path of the layer call that differs or fails, or None for the whole model.
        message: The largest difference and its tolerance, or the error.
        script: A script that reproduces the failure, or None if no such script was found.
    """

    check: str
    backends: tuple[str, ...]
    call: str | None
    message: str
    script: Path | None

    @property
    def where(self) -> str:
        verb = "differ" if len(self.backends) > 1 else "fails"
        return f"{' and '.join(self.backends)} {verb} in {self.call or 'the whole model'}"

    def __str__(self) -> str:
        script = self.script or "no script reproduces this failure"
        return f"{self.check}: {self.where}: {self.message}\n    {script}"


class Failures:
    """Finds the failures of an `Audit`.

    Args:
        audit: The `Audit`, with the results of all checks.
        directory: Folder for the scripts.
        imports: Names of modules that register the classes of the model.
        seed: Seed of the random numbers in a training step.
    """

    def __init__(self, audit: Audit, directory: Path, imports: list[str], seed: int) -> None:
        self._audit, self._directory, self._imports, self._seed = audit, directory, imports, seed

    def find(self) -> list[Failure]:
        """Returns one failure, with its script, for each check and layer call that fails."""
        explained: set[tuple[str, tuple[str, ...]]] = set()
        found: dict[tuple[str, str | None, str], Failure] = {}
        for check in CHECKS:
            for backends, message in self._problems(check):
                if (check, backends) in explained:
                    continue
                explained |= {(other, backends) for other in _EXPLAINED.get(check, ())}
                places = list(self._places(check, backends))
                call = places[0].call
                # An error on two backends is two failures; a difference between two is one.
                own = backends[0] if len(backends) == 1 else ""
                if (check, call, own) not in found:
                    failure = Failure(check, backends, call, message, None)
                    script = self._script(failure, places)
                    found[check, call, own] = failure._replace(script=script)
        return list(found.values())

    def _problems(self, check: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yields (backends, message) for each error of a check, then for each pair that differs."""
        for name in self._audit.backends:
            if error := self._audit.errors.get((check, name)):
                yield (name,), " ".join(str(error).split())[:500]
        pairs = {pair: worst(self._audit.differences(check, pair)) for pair in self._audit.pairs()}
        parting = {pair: x for pair, x in pairs.items() if x is not None and x.parts}
        for pair, largest in sorted(parting.items(), key=lambda x: -x[1].ratio):
            yield pair, str(largest) if largest.is_shared else f"only one has {largest.name}"

    def _places(self, check: str, backends: tuple[str, ...]) -> Iterator[Place]:
        """Yields the places where a script may reproduce a failure.

        If backends load saved files differently, the places are these files. Otherwise, the first
        place is the layer call that differs or fails, if this call is known. The last place is the
        whole model.
        """
        audit, kind = self._audit, _KINDS[check]
        if len(backends) == 1:
            error = audit.errors[check, backends[0]]
            if check == "outputs" and (call := audit.failing_call(backends[0])):
                yield Place(backends, "layer", call)
            is_save = check == "save and load" and error.file is None
            yield Place(backends, "save" if is_save else kind, file=error.file)
            return
        pair = (backends[0], backends[1])
        if check == "save and load":
            for reading in audit.readings(pair):
                if parting := [x for x in reading.differences() if x.parts]:
                    expected = reading.expected.values
                    yield Place((reading.reader,), kind, None, parting, reading.path, expected)
            return
        if check != "search" and (found := audit.parting(check, pair)):
            yield Place(backends, "layer" if check == "outputs" else kind, *found)
        yield Place(backends, kind, None, [x for x in audit.differences(check, pair) if x.parts])

    def _script(self, failure: Failure, places: list[Place]) -> Path | None:
        """Tries `places` in turn. Keeps the first script that reproduces the failure."""
        target = self._directory / "-".join([*failure.check.split(), *failure.backends])
        shown = DIFFER if places[0].parting else failure.message.partition(":")[0]
        for place in places:
            with tempfile.TemporaryDirectory() as folder:
                if self._write(Path(folder), f"{failure.check}: {failure.where}", place):
                    if reproduces(Path(folder) / "reproduce.py", shown):
                        shutil.copytree(folder, target, dirs_exist_ok=True)
                        return target / "reproduce.py"
        return None

    def _write(self, folder: Path, title: str, place: Place) -> bool:
        """Writes a script and its files. Returns False if no backend can save the layer."""
        call = {"call": place.call, "folder": str(folder), "with_training": place.kind == "step"}
        for name in dict.fromkeys([*place.backends, *self._audit.backends]):
            try:
                saved = self._audit.backends[name].ask("save_call", **call)
            except BackendError:
                continue
            write_script(folder, title, place, saved, self._imports, self._seed)
            return True
        return False


_KINDS = {
    "outputs": "model",
    "gradients": "step",
    "training step": "step",
    "search": "search",
    "save and load": "model",
}
