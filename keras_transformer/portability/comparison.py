"""Runs a model on every installed backend, each in its own process, and compares the results."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer._backend import BACKENDS, installed_backends
from keras_transformer.errors import UserError
from keras_transformer.models.protocol import Searchable
from keras_transformer.portability.child import draws_random_numbers, restored
from keras_transformer.portability.inputs import (
    as_array,
    functional_model,
    is_float,
    random_inputs,
    save_inputs,
)
from keras_transformer.portability.rounding import ArrayDifference, Measured, differences, worst

CHECKS = ("outputs", "gradients", "training step", "search", "save and load")
# If backends fail the check on the left, failures of the checks on the right are not reported.
_EXPLAINED = {"outputs": CHECKS, "gradients": ("training step",)}
# The method of `Child` for each check. A training step is taken once, for the gradients.
_METHODS = {"outputs": "outputs", "gradients": "step", "search": "search"}
Pair = tuple[str, str]
# Three processes share the GPU's memory, and compute float32 without loss of precision.
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "NVIDIA_TF32_OVERRIDE": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
}
_SCRIPT = '''"""{title}"""

import importlib
import sys
from pathlib import Path

sys.path += {paths!r}
import keras  # noqa: E402

from keras_transformer.portability import conformance  # noqa: E402
from keras_transformer.portability.inputs import load_inputs  # noqa: E402

modules = {modules!r}
for module in modules:
    importlib.import_module(module)
folder = Path(__file__).parent
model = keras.saving.load_model(folder / "model.keras", compile=False)
result = conformance(model, load_inputs(folder), imports=modules, directory=None, seed={seed})
print(result)
sys.exit(not result.conforms)
'''


class Failure(NamedTuple):
    """A failed check.

    Attributes:
        check: Name of the check.
        backends: The two backends that differ, or the backend that raises an error.
        call: Path of the layer call that differs or fails, or None for the whole model.
        message: The largest difference and its tolerance, or the error.
        script: A script that compares the layer, or the model, alone. None if there is no script.
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
        script = f"\n    {self.script}" if self.script else ""
        return f"{self.check}: {self.where}: {self.message}{script}"


@dataclass
class Conformance:
    """The result of `conformance`. `str(result)` formats the result as a table.

    Attributes:
        backends: The compared backends.
        missing: Backends that are not installed.
        largest: `largest[check][pair]` is the difference of a pair of backends that is largest
            relative to its tolerance. It is None if one of the two backends failed, or if the check
            has no results.
        failures: Errors, and differences that exceed their tolerance.
        terms: Number of terms of the longest sum in the model, such as a matrix product or a
            gradient. The tolerances depend on this number.
        is_training: Whether the training step used `training=True`. False for a model with dropout.
    """

    backends: list[str]
    missing: list[str]
    largest: dict[str, dict[Pair, ArrayDifference | None]]
    failures: list[Failure]
    terms: int
    is_training: bool

    @property
    def conforms(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        pairs = list(itertools.combinations(self.backends, 2))
        lines = [f"{'difference / tolerance':<24}" + "".join(f"{' - '.join(x):>24}" for x in pairs)]
        for check, cells in self.largest.items():
            texts = ("-" if x is None else f"{x}{' !' * x.parts}" for x in cells.values())
            lines.append(f"{check:<24}" + "".join(f"{text:>24}" for text in texts))
        lines += [f"not installed: {', '.join(self.missing)}"] if self.missing else []
        lines.append(
            f"tolerance: 2 sqrt({self.terms}) times the change of the result when all weights and "
            "inputs change by one unit in the last place"
        )
        if not self.is_training:
            lines.append("training step: training=False, because the model draws random numbers")
        return "\n".join([*lines, *map(str, self.failures)])


def conformance(
    model: Any,
    inputs: Any = None,
    *,
    imports: Iterable[str] = (),
    directory: str | Path | None = "conformance",
    seed: int = 0,
    report: Callable[[int], Any] = lambda total: None,
) -> Conformance:
    """Checks that a Keras model or layer gives the same results on all installed backends.

    Each backend runs in a new process. The process loads the model from a `.keras` file with
    `safe_mode=True`. Weights that are all zero get small random numbers in this file, because zeros
    would hide differences. The function runs these checks:

    - "outputs" compares the outputs of `predict`.
    - "gradients" compares the gradients of a loss with respect to all trainable variables and float
      inputs. The loss is a randomly weighted mean of the outputs.
    - "training step" compares all variables after one step of gradient descent. Backends draw
      different random numbers, so a model with dropout takes the step with `training=False`.
    - "search" compares the ids and scores of greedy search and of beam search, if the model is a
      `models.protocol.Searchable`.
    - "save and load" loads on each backend the files that the others saved. The outputs must not
      change.

    For each failure of the first three, this function looks for the layer call that causes the
    failure. For "outputs", this call is the first whose outputs differ although its inputs agree.
    The function writes a folder with the layer, its inputs and a script `reproduce.py`, which calls
    `conformance` on the layer alone.

    Example:

    ```python
    result = conformance(MyLayer(64), np.ones((2, 5, 64), "float32"))
    assert result.conforms, str(result)
    ```

    Args:
        model: A `keras.Model` or a layer. The processes import the modules of the classes of all
            its layers.
        inputs: A small batch, in the structure that the model takes. For a layer, a dict maps names
            of call arguments to values. Defaults to None, which means random inputs and requires a
            functional model.
        imports: Names of further modules to import, for example for a custom activation. Defaults
            to ().
        directory: Folder for scripts, created only if a check fails. None writes no scripts.
            Defaults to "conformance".
        seed: Seed of all random numbers. Defaults to 0.
        report: Function that is called after each check on a backend, with the number of checks on
            all backends.

    Returns:
        A `Conformance`.

    Raises:
        UserError: If fewer than two backends are installed.
        ValueError: If `inputs` is None although `model` is not a functional model, or if a class of
            the model is defined in `__main__`.
    """
    installed = installed_backends()
    missing = [name for name in BACKENDS if name not in installed]
    if len(installed) < 2:
        raise UserError(
            "a comparison needs two backends: "
            f"pip install 'keras3-transformer[{missing[0]}]' installs {missing[0]} too"
        )
    if inputs is None:
        inputs = random_inputs(model, seed)
    elif not isinstance(model, keras.Model):
        named = inputs if isinstance(inputs, dict) else {}
        model, inputs = functional_model(model, *(() if named else (inputs,)), **named)
    elif not model.built:
        model(inputs)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, modules = Path(name), _modules(model, imports)
        save_inputs(folder, inputs)
        expected = _save_without_zeros(model, inputs, seed, folder / "model.keras")
        backends = {x: stack.enter_context(Backend(x, folder, seed, modules)) for x in installed}
        results = Results(backends, folder, expected)
        checks = [check for check in CHECKS if check != "search" or isinstance(model, Searchable)]
        results.run(checks, lambda: report(len(checks) * len(installed)))
        failures = list(_failures(results))
        if directory is not None:
            failures = [_with_script(x, results, Path(directory), seed, modules) for x in failures]
        terms = max((answer.terms for answer in results.answers.values()), default=1)
        is_training = not draws_random_numbers(model)
        return Conformance(installed, missing, results.largest, failures, terms, is_training)


class BackendError(Exception):
    """An error in the process of a backend. `call` is the path of the layer call or None."""

    def __init__(self, message: str, call: str | None = None) -> None:
        super().__init__(message)
        self.call = call


class Backend:
    """The process of one backend (see `child.py`). Use this class in a `with` statement.

    Args:
        name: Name of the backend.
        folder: Folder with the model and its inputs.
        seed: Seed of all random numbers.
        modules: Names of modules that register the classes of the model.
    """

    def __init__(self, name: str, folder: Path, seed: int, modules: Sequence[str]) -> None:
        paths = [str(Path(__file__).parents[2]), *_search_path()]
        own = {"KERAS_BACKEND": name, "PYTHONPATH": os.pathsep.join(paths)}
        program = [sys.executable, "-m", "keras_transformer.portability.child"]
        self._errors = folder / f"{name}.stderr"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*program, folder, str(seed), *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **_ENVIRONMENT, **own},
            )

    def __enter__(self) -> "Backend":
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, method: str, *arguments: str | None) -> Any:
        """Calls a method of `Child` and returns its answer, a `Measured` or None.

        Raises:
            BackendError: If the method fails or the process ends.
        """
        with suppress(BrokenPipeError):
            print(json.dumps([method, *arguments]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            status = self._process.wait()
            last = self._errors.read_text(errors="replace").strip().rpartition("\n")[-1]
            raise BackendError(f"the process ended with status {status}: {last}")
        path, message, call = json.loads(line)
        if message is not None:
            raise BackendError(message, call)
        return path and Measured.load(path)


class Results:
    """Runs the checks on all backends and keeps the results.

    Args:
        backends: Dict from the name of a backend to its process.
        folder: Folder with the model and its inputs, for the files that the processes save.
        expected: Outputs of the original model, before it was saved.

    Attributes:
        answers: Dict from check and backend to results. The results of "gradients" are also those
            of "training step".
        errors: Dict from check and backend to an error.
        largest: See `Conformance.largest`.
    """

    def __init__(self, backends: dict[str, Backend], folder: Path, expected: Any) -> None:
        self.backends, self.folder, self._expected = backends, folder, expected
        self.answers: dict[tuple[str, str], Measured] = {}
        self.errors: dict[tuple[str, str], BackendError] = {}
        self.largest: dict[str, dict[Pair, ArrayDifference | None]] = {}
        self._loaded: dict[Pair, Measured] = {}  # by saving and loading backend

    def run(self, checks: Iterable[str], report: Callable[[], Any]) -> None:
        """Runs the checks on all backends in parallel. Calls `report` after each check."""

        def run(name: str) -> None:
            for check in checks:
                with self._kept_error(check, name):
                    if check == "save and load":
                        self.backends[name].ask("save", self._file(name))
                    elif method := _METHODS.get(check):
                        self.answers[check, name] = self.backends[name].ask(method)
                report()

        with ThreadPoolExecutor(len(self.backends)) as pool:
            list(pool.map(run, self.backends))
        for writer, reader in itertools.permutations(self.backends, 2):
            if Path(self._file(writer)).exists():
                with self._kept_error("save and load", reader):
                    found = self.backends[reader].ask("load", self._file(writer))
                    self._loaded[writer, reader] = found
        pairs = list(itertools.combinations(self.backends, 2))
        self.largest = {
            check: {pair: worst(self._differences(check, pair)) for pair in pairs}
            for check in checks
        }

    def parting_call(self, check: str, pair: Pair) -> str | None:
        """Finds the layer call that makes two backends differ, and returns its path.

        For the check "outputs", this call is the first whose outputs differ although its inputs
        agree. For "gradients" and "training step", this call is the first whose own training step
        differs. A layer comes after its sublayers. Returns None if no such call was found.
        """
        if check in ("search", "save and load"):
            return None
        try:
            one, other = (self.backends[name].ask("walk") for name in pair)
        except BackendError:
            return None
        names = [x for x in one.values if x in other.values and " output " in x]
        calls = list(dict.fromkeys(map(_call_of, names)))
        if check != "outputs":
            return next((x for x in calls[:-1] if self._step_differs(check, pair, x)), None)
        found = [x.name for x in differences(one, other) if x.parts]
        with_inputs = {_call_of(x) for x in found if " input " in x}
        with_outputs = {_call_of(x) for x in found if " output " in x}
        return next((x for x in calls if x in with_outputs - with_inputs), None)

    @contextmanager
    def _kept_error(self, check: str, name: str) -> Iterator[None]:
        try:
            yield
        except BackendError as error:
            self.errors[check, name] = error

    def _file(self, name: str) -> str:
        return str(self.folder / f"saved-{name}.keras")

    def _differences(self, check: str, pair: Pair) -> list[ArrayDifference]:
        """Compares the results of a check. Returns [] if one of two backends has no results.

        For "save and load", each backend's outputs must be those of its file on the other backend.
        The outputs of this process must be those of the file that it saved for all backends.
        """
        answered = "gradients" if check == "training step" else check
        if check != "save and load":
            answers = [self.answers.get((answered, name)) for name in pair]
            return [] if None in answers else _of_check(check, *answers)  # type: ignore[arg-type]
        outputs = {x: self.answers["outputs", x] for x in pair if ("outputs", x) in self.answers}
        compared = [
            (outputs[writer], self._loaded[writer, reader])
            for writer, reader in itertools.permutations(pair)
            if writer in outputs and (writer, reader) in self._loaded
        ]
        if here := outputs.get(keras.config.backend()):
            compared.append((here._replace(values=self._expected), here))
        return [x for one, other in compared for x in differences(one, other)]

    def _step_differs(self, check: str, pair: Pair, call: str) -> bool:
        try:
            one, other = (self.backends[name].ask("step", call) for name in pair)
        except BackendError:
            return False
        return any(x.parts for x in _of_check(check, one, other))


def _call_of(name: str) -> str:
    return name.rsplit(" ", 2)[0]  # without "input 0" or "output 0"


def _of_check(check: str, one: Measured, other: Measured) -> list[ArrayDifference]:
    """Compares two backends' results of one check.

    The checks "gradients" and "training step" use the same training step. "gradients" compares the
    gradients of this step, and "training step" compares the variables after this step.
    """
    kinds = {"gradients": "gradient ", "training step": "variable "}
    return [x for x in differences(one, other) if x.name.startswith(kinds.get(check, ""))]


def _failures(results: Results) -> Iterator[Failure]:
    """Yields errors, then differences: one for each check and layer call, the largest first.

    An error on two backends is two failures. A difference between two pairs is one failure.
    """
    explained, found = set(), set()
    for check, cells in results.largest.items():
        problems: list[tuple[tuple[str, ...], str, str | None]] = [
            ((name,), " ".join(str(error).split())[:500], error.call)
            for name in results.backends
            if (error := results.errors.get((check, name)))
        ]
        parting = [(pair, x) for pair, x in cells.items() if x is not None and x.parts]
        parting.sort(key=lambda item: -item[1].ratio)
        problems += [(pair, f"{largest.name}: {largest}", None) for pair, largest in parting]
        for backends, message, call in problems:
            if (check, backends) in explained:
                continue
            explained |= {(other, backends) for other in _EXPLAINED.get(check, ())}
            if len(backends) == 2:
                call = results.parting_call(check, backends)
            key = (check, call, backends if len(backends) == 1 else ())
            if key not in found:
                found.add(key)
                yield Failure(check, backends, call, message, None)


def _with_script(
    failure: Failure, results: Results, directory: Path, seed: int, modules: Sequence[str]
) -> Failure:
    """Writes the folder of a script. It has the whole model if the layer cannot be saved alone."""
    if failure.check == "save and load":  # the file does not have what the model had
        return failure
    folder = directory / "-".join([*failure.check.split(), *failure.backends])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.keras", "inputs.npz", "inputs.json"):
        shutil.copy(results.folder / name, folder)
    if failure.call is not None:
        with suppress(BackendError):
            backend = results.backends[failure.backends[0]]
            backend.ask("save_call", failure.call, str(folder.absolute()))
    title = f"{failure.check}: {failure.where}"
    text = _SCRIPT.format(title=title, paths=_search_path(), modules=modules, seed=seed)
    (folder / "reproduce.py").write_text(text, encoding="utf-8")
    return failure._replace(script=folder / "reproduce.py")


def _search_path() -> list[str]:
    return [path or os.getcwd() for path in sys.path]


def _modules(model: keras.Model, imports: Iterable[str]) -> list[str]:
    """Returns `imports` and the modules that define the layers, except modules of Keras."""
    modules = dict.fromkeys(type(layer).__module__ for layer in model._flatten_layers())
    if "__main__" in modules:
        raise ValueError(
            "The classes of `model` must be defined in a module that other processes can import, "
            "not in the main script."
        )
    return [*imports, *(x for x in modules if x.partition(".")[0] != "keras")]


def _save_without_zeros(
    model: keras.Model, inputs: Any, seed: int, path: Path
) -> dict[str, np.ndarray]:
    """Saves the model with random numbers in trainable weights that are all zero.

    Behind a kernel of zeros, such as that of a new classifier, all outputs and the gradients of all
    layers before it are zero on every backend, and nothing is compared. Returns the outputs.
    """
    zeros = [x for x in model.trainable_variables if is_float(x) and not as_array(x).any()]
    random = np.random.default_rng(seed)
    with restored(zeros):
        for variable in zeros:
            variable.assign(random.normal(scale=0.1, size=variable.shape))
        outputs = keras.tree.flatten(model.predict_on_batch(inputs))
        model.save(path)
    return {f"output {i}": as_array(x) for i, x in enumerate(outputs)}
