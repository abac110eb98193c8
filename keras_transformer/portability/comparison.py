"""Runs a model on every installed backend, each in its own process, and compares the results."""

import itertools
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer._backend import BACKENDS, installed_backends
from keras_transformer.errors import UserError
from keras_transformer.models.protocol import Searchable
from keras_transformer.portability.child import (
    Arrays,
    Measured,
    as_array,
    change,
    draws_random_numbers,
    functional_model,
    predict,
)

# Each check, and the method of `Child` for it. A training step is taken once, for the gradients.
CHECKS = {
    "outputs": "outputs",
    "gradients": "step",
    "training step": "",
    "search": "search",
    "save and load": "load",
}
BATCH, LENGTH = 3, 7  # sizes of the first axis and of other axes, if the model's size is None
Pair = tuple[str, str]
Answers = dict[str, Any]  # of each backend: what a method of `Child` returns, or an error as text
# Three processes share the GPU's memory, and compute float32 without loss of precision.
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "NVIDIA_TF32_OVERRIDE": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
}
_CHILD = "from keras_transformer.portability.child import main; main()"
_SCRIPT = '''"""{title}"""

import importlib
import sys
from pathlib import Path

sys.path += {paths!r}
import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_transformer.portability import conformance  # noqa: E402

modules = {modules!r}
for module in modules:
    importlib.import_module(module)
folder = Path(__file__).parent
model = keras.saving.load_model(folder / "model.keras", compile=False)
arrays = list(np.load(folder / "inputs.npz").values())
inputs = keras.tree.map_structure(arrays.__getitem__, {structure!r})
result = conformance(model, inputs, imports=modules, directory=None, seed={seed})
print(result)
sys.exit(not result.conforms)
'''


class ArrayDifference(NamedTuple):
    """Largest difference of an array between two backends, and the tolerance for rounding."""

    name: str
    largest: float
    tolerance: float

    @property
    def parts(self) -> bool:
        """Whether the difference exceeds the tolerance."""
        return self.largest > self.tolerance

    @property
    def ratio(self) -> float:
        return self.largest / max(self.tolerance, 1e-300)

    def __str__(self) -> str:
        return f"{self.largest:.1e} / {self.tolerance:.1e}{' !' * self.parts}"


class Failure(NamedTuple):
    """A failed check.

    Attributes:
        check: Name of the check.
        backends: The two backends that differ, or the backend that raises an error.
        call: Path of the layer call that differs, or None for the whole model.
        message: The largest difference and its tolerance, or the error.
        script: A script that compares the layer, or the model, alone. None if there is no script.
    """

    check: str
    backends: tuple[str, ...]
    call: str | None
    message: str
    script: Path | None = None

    def __str__(self) -> str:
        verb = "differ" if len(self.backends) > 1 else "fails"
        place = f"{' and '.join(self.backends)} {verb} in {self.call or 'the whole model'}"
        script = f"\n    {self.script}" if self.script else ""
        return f"{self.check}: {place}: {self.message}{script}"


@dataclass
class Conformance:
    """The result of `conformance`. `str(result)` formats the result as a table.

    Attributes:
        backends: The compared backends.
        missing: Backends that are not installed.
        largest: `largest[check][pair]` is the difference of a pair of backends that is largest
            relative to its tolerance. It is None if one of the two backends failed, or if the check
            has no results.
        failures: The failures of the first check that fails. They explain those of later checks.
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
            lines.append(f"{check:<24}" + "".join(f"{str(x or '-'):>24}" for x in cells.values()))
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

    Each backend runs in a new process, which loads the model from a `.keras` file with
    `safe_mode=True`. The function runs these checks:

    - "outputs" compares the outputs of `predict`.
    - "gradients" compares the gradients of a loss with respect to all trainable variables. The loss
      is a randomly weighted mean of the outputs.
    - "training step" compares all variables after one step of gradient descent. Backends draw
      different random numbers, so a model with dropout takes the step with `training=False`.
    - "search" compares the ids and scores of greedy search and of beam search, if the model is a
      `models.protocol.Searchable`.
    - "save and load" loads on each backend the files that the others saved. The outputs must not
      change.

    For a difference of outputs, this function looks for the first layer call whose outputs differ
    although its inputs agree. For each failure but those of "save and load", it writes a folder
    with this layer or the model, its inputs and a script `reproduce.py`, which calls `conformance`
    on them.

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
        report: Function that is called after each check, with the number of checks.

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
    modules = _modules(model, imports)
    inputs = keras.tree.map_structure(as_array, inputs)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        backends = Backends(installed, Path(name), (inputs, seed, modules), stack)
        model.save(backends.folder / "model.keras")
        answers = _answers(backends, isinstance(model, Searchable), report)
        pairs, outputs = list(itertools.combinations(installed, 2)), predict(model, inputs)
        largest = {
            check: {x: _largest(check, answers, x, outputs) for x in pairs} for check in answers
        }
        failures = _failures(answers, largest, backends)
        if directory is not None:
            failures = [_with_script(x, backends, Path(directory)) for x in failures]
    found = (x for x in answers["outputs"].values() if isinstance(x, Measured))
    terms = max((x.terms for x in found), default=1)
    is_training = not draws_random_numbers(model)
    return Conformance(installed, missing, largest, failures, terms, is_training)


class Backends:
    """A process for each backend, which calls methods of `Child` until `stack` ends."""

    def __init__(self, names: list[str], folder: Path, arguments: Any, stack: ExitStack) -> None:
        self.names, self.folder, self.arguments = names, folder, arguments
        self.processes: dict[str, Any] = {}
        paths = os.pathsep.join([str(Path(__file__).parents[2]), *_search_path()])
        for name in names:
            own = {"KERAS_BACKEND": name, "PYTHONPATH": paths}
            process: Any = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context((folder / f"{name}.stderr").open("w")),
                env={**os.environ, **_ENVIRONMENT, **own},
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            self.processes[name] = process
            pickle.dump((folder, *arguments), process.stdin)

    def ask(self, *request: Any, names: Sequence[str] = ()) -> Answers:
        """Calls a method of `Child` on each backend. Returns its results, or texts of errors."""
        names = names or self.names
        for name in names:
            with suppress(BrokenPipeError):
                pickle.dump(request, self.processes[name].stdin)
                self.processes[name].stdin.flush()
        return {name: self._answer(name) for name in names}

    def _answer(self, name: str) -> Any:
        try:
            return pickle.load(self.processes[name].stdout)
        except EOFError:
            errors = (self.folder / f"{name}.stderr").read_text(errors="replace").strip()
            status, last = self.processes[name].wait(), errors.rpartition("\n")[-1]
            return f"the process ended with status {status}: {last}"


def _answers(
    backends: Backends, is_searchable: bool, report: Callable[[int], Any]
) -> dict[str, Answers]:
    """Runs the checks on all backends."""
    checks = [check for check in CHECKS if is_searchable or check != "search"]
    found: dict[str, Answers] = {}
    for check in checks:
        saved = backends.ask("save") if check == "save and load" else {}
        found[check] = backends.ask(method) if (method := CHECKS[check]) else found["gradients"]
        found[check].update({name: error for name, error in saved.items() if error})
        report(len(checks))
    return found


def _largest(
    check: str, answers: dict[str, Answers], pair: Pair, outputs: Arrays
) -> ArrayDifference | None:
    """Returns the difference of two backends that is largest relative to its tolerance, or None.

    All files that a backend loads must have the `outputs` of the original model.
    """
    found = [answers[check][name] for name in pair]
    has_files = check == "save and load"
    original = answers["outputs"][keras.config.backend()] if has_files else found[0]
    if any(isinstance(x, str) for x in (original, *found)):
        return None
    rows = [found]
    if has_files:
        original = original._replace(values=outputs)
        rows = [[original, original._replace(values=x)] for files in found for x in files]
    kind = {"gradients": "gradient ", "training step": "variable "}.get(check, "")
    every = [x for row in rows for x in differences(*row) if x.name.startswith(kind)]
    return max(every, key=lambda x: x.ratio, default=None)


def _failures(
    answers: dict[str, Answers], largest: dict[str, Any], backends: Backends
) -> list[Failure]:
    """Returns the failures of the first check that fails: errors, and calls of layers that differ.

    The pair of backends with the largest difference comes first.
    """
    for check, cells in largest.items():
        errors = ((name, x) for name, x in answers[check].items() if isinstance(x, str))
        found = [Failure(check, (name,), None, " ".join(x.split())[:500]) for name, x in errors]
        calls = set()
        parting = [(pair, x) for pair, x in cells.items() if x is not None and x.parts]
        for pair, difference in sorted(parting, key=lambda item: -item[1].ratio):
            call = _parting_call(pair, backends) if check == "outputs" else None
            if call not in calls:
                found.append(Failure(check, pair, call, f"{difference.name}: {difference}"))
            calls.add(call)
        if found:
            return found
    return []


def _parting_call(pair: Pair, backends: Backends) -> str | None:
    """Returns the path of the first layer call whose outputs differ although its inputs agree."""
    walks: Any = list(backends.ask("walk", names=pair).values())
    if any(isinstance(x, str) for x in walks):
        return None
    # Names end with "input 0" or "output 0". A layer comes after its sublayers.
    names = [x.name.rsplit(" ", 2) for x in differences(*walks) if x.parts]
    entered = {call for call, kind, _ in names if kind == "input"}
    return next((x for x, kind, _ in names if kind == "output" and x not in entered), None)


def differences(one: Measured, other: Measured) -> list[ArrayDifference]:
    """Compares the arrays of two backends.

    Floats may differ by 2 sqrt(n) times the array's noise, where n is the number of terms of the
    longest sum in the model. The noise is at least one unit in the last place of the array's
    largest number. The rounding error of n additions grows with sqrt(n) (Higham and Mary 2019).
    Each of the two backends has such an error, so the factor is 2 sqrt(n).

    Numbers above 1 / epsilon, such as -1e9 in a mask, have their own noise. Rows of integers must
    be equal, except rows that the noise changes.
    """
    names = dict.fromkeys([*one.values, *other.values])
    return [_difference(name, one, other) for name in names]


def _difference(name: str, one: Measured, other: Measured) -> ArrayDifference:
    shapes = [x.values[name].shape if name in x.values else None for x in (one, other)]
    if shapes[0] != shapes[1]:
        return ArrayDifference(name, math.inf, 0.0)
    value, changes = one.values[name], change(one.values[name], other.values[name])
    noise = np.maximum(one.noise[name], other.noise[name])
    if value.dtype.kind != "f":
        return ArrayDifference(name, float(np.sum(changes > noise)), 0.0)
    epsilon, factor = max(one.epsilon, other.epsilon), 2 * math.sqrt(max(one.terms, other.terms))
    size, noise = (np.where(np.isfinite(x), np.abs(x), 0.0) for x in (value, noise))
    found = []
    for part in (size <= 1 / epsilon, size > 1 / epsilon):
        largest = max(np.max(x, initial=0.0, where=part) for x in (noise, epsilon * size))
        largest_change = np.max(changes, initial=0.0, where=part)
        found.append(ArrayDifference(name, float(largest_change), float(factor * largest)))
    return max(found, key=lambda difference: difference.ratio)


def _with_script(failure: Failure, backends: Backends, directory: Path) -> Failure:
    """Writes the folder of a script. It has the whole model if the layer cannot be saved alone."""
    if failure.check == "save and load":  # the file does not have what the model had
        return failure
    folder = directory / "-".join([*failure.check.split(), *failure.backends])
    folder.mkdir(parents=True, exist_ok=True)
    path, (inputs, seed, modules) = folder.absolute() / "model.keras", backends.arguments
    shutil.copy(backends.folder / "model.keras", path)
    if failure.call is not None:
        name = failure.backends[0]
        answer = backends.ask("save_call", failure.call, path, names=[name])[name]
        inputs = inputs if isinstance(answer, str) else answer
    arrays = keras.tree.flatten(inputs)
    np.savez(folder / "inputs.npz", *arrays)
    structure = keras.tree.pack_sequence_as(inputs, list(range(len(arrays))))
    values = {"paths": _search_path(), "modules": modules, "structure": structure, "seed": seed}
    text = _SCRIPT.format(title=f"{failure.check}: {' and '.join(failure.backends)}", **values)
    (folder / "reproduce.py").write_text(text, encoding="utf-8")
    return failure._replace(script=folder / "reproduce.py")


def _search_path() -> list[str]:
    return [path or os.getcwd() for path in sys.path]


def _modules(model: keras.Model, imports: Iterable[str]) -> list[str]:
    """Returns `imports` and the modules that define the layers, except modules of Keras."""
    modules = dict.fromkeys(type(layer).__module__ for layer in model._flatten_layers())
    if "__main__" in modules:
        raise ValueError("the classes of `model` must be in a module, not in the main script")
    return [*imports, *(x for x in modules if x.partition(".")[0] != "keras")]


def random_inputs(model: keras.Model, seed: int = 0) -> Any:
    """Returns random inputs for a functional model, in the structure of its inputs.

    Integers are valid ids for the embedding that reads the input, or else for the model's smallest
    embedding. If the name of an input ends in "positions", they are positions of the other inputs.
    In a matrix of more than two columns, the first row of ids ends with padding, if it is valid.

    Raises:
        ValueError: If `model` is not a functional model.
    """
    if not getattr(model, "inputs", None):
        raise ValueError(
            f"`inputs` must be given for a model that is not functional. Received: model={model!r}"
        )
    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    random, pad_id = np.random.default_rng(seed), getattr(model, "pad_id", 0)
    lengths = (getattr(layer, "max_length", LENGTH) for layer in model._flatten_layers())
    length = min(LENGTH, *lengths)

    def make(spec: Any) -> np.ndarray:
        batch, *rest = spec.shape
        shape = (batch or BATCH, *(size or length for size in rest))
        if "float" in spec.dtype:
            return random.normal(size=shape).astype(spec.dtype)
        if spec.dtype == "bool":
            return random.choice([True, False], shape)
        if spec.name.endswith("positions"):
            return random.integers(length, size=shape, dtype=spec.dtype)
        ids = np.arange(_vocabulary_size(model, spec.name))
        has_padding = pad_id in ids and len(shape) == 2 and shape[1] > 2
        ids = ids[ids != pad_id] if len(ids) > 2 else ids  # segments are few
        drawn = random.choice(ids, shape).astype(spec.dtype)
        if has_padding:
            drawn[0, -2:] = pad_id
        return drawn

    return keras.tree.map_structure(make, structure)


def _vocabulary_size(model: keras.Model, name: str) -> int:
    sizes, own = [], []
    for layer in model._flatten_layers():
        size = getattr(layer, "input_dim", None) or getattr(layer, "vocabulary_size", None)
        if isinstance(size, int):
            sizes.append(size)
            with suppress(AttributeError, ValueError):  # called several times, or never
                # By name: a nested model has an input of its own.
                own += [size for x in keras.tree.flatten(layer.input) if x.name == name]
    return min(own or sizes or [3])
