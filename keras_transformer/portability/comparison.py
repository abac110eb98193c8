"""Runs a model on every installed backend, each in its own process, and compares the results."""

import importlib
import itertools
import json
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer._backend import BACKENDS, child_process, installed_backends
from keras_transformer._backend.compile_function import compile_function
from keras_transformer._backend.types import Tensor
from keras_transformer._progress import Bar
from keras_transformer.capabilities import Capabilities
from keras_transformer.decoding import decoding_loop
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.models.protocol import Searchable
from keras_transformer.portability.inputs import model_of_layer, random_inputs, tensors_in

SCALE = 2.0**-60  # of gradients
SEARCH_LENGTH = 12  # tokens
RUNS = 3  # with slightly changed weights and inputs, to measure the effect of rounding
# Distance of 1 to the next number. float64 is treated as float32, because Keras computes float64
# in float32 on two of the backends.
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
TINY = 1e-30  # to divide by a tolerance of 0
Arrays = dict[str, np.ndarray]
Function = Callable[[Any], Arrays]  # from the inputs of a model
Answers = dict[str, Arrays | str]  # of each backend; an error as text
# Numbers, and for each the difference to another backend that rounding can explain.
record = partial(np.rec.fromarrays, names="value,tolerance")
_MISSING = record([np.empty(0), np.empty(0)])
# Three processes share the GPU's memory, and compute float32 without loss of precision.
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "NVIDIA_TF32_OVERRIDE": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
}


class ArrayDifference(NamedTuple):
    """The difference of an array between two backends that is largest relative to its tolerance."""

    name: str
    largest: float
    tolerance: float

    @property
    def is_error(self) -> bool:
        """Whether rounding cannot explain the difference."""
        return self.largest > self.tolerance

    def __str__(self) -> str:
        return f"{self.largest:.1e} / {self.tolerance:.1e}{' !' * self.is_error}"


Cells = dict[tuple[str, ...], ArrayDifference | None]  # by the names of two backends


@dataclass
class Conformance:
    """The result of `conformance`. `str(result)` formats the result as a table.

    Attributes:
        largest: `largest[check][pair]` is the difference of a pair of backends that is largest
            relative to its tolerance. It is None if one of the two backends failed, or if the check
            has no results.
        failures: The errors and differences of the first check that fails, with the first layer
            that differs.
        notes: Remarks for the user.
    """

    largest: dict[str, Cells]
    failures: list[str]
    notes: list[str]

    @property
    def conforms(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        pairs = self.largest["outputs"]
        lines = [f"{'difference / tolerance':<24}" + "".join(f"{' - '.join(x):>24}" for x in pairs)]
        for check, cells in self.largest.items():
            lines.append(f"{check:<24}" + "".join(f"{str(x or '-'):>24}" for x in cells.values()))
        return "\n".join([*lines, *self.notes, *self.failures])


def conformance(
    model: keras.layers.Layer, inputs: Any = None, *, imports: Iterable[str] = ()
) -> Conformance:
    """Checks that a Keras model or layer gives the same results on all installed backends.

    Each backend runs in a new process, which loads the model from a `.keras` file with
    `safe_mode=True`. The function compares

    - "outputs", those of `predict`. If they differ, it looks for the first layer call whose outputs
      differ although its inputs agree.
    - "training step", the gradients of a randomly weighted mean of the outputs, and the other
      variables after the step. Backends draw different random numbers, so a model with dropout
      takes the step with `training=False`.
    - "search", the ids and scores of beam search, if the model is a `models.protocol.Searchable`.
    - "save and load", the outputs of the model and of its saved file on each backend.

    Example:

    >>> print(conformance(MyLayer(64), np.ones((2, 5, 64), "float32")))

    Args:
        model: A `keras.Model` or a layer. The processes import the modules of the classes of all
            its layers, so none can be a class of the program that calls this function.
        inputs: A small batch, in the structure that the model takes. For a layer, a dict maps names
            of call arguments to values. Defaults to None, for random inputs of a functional model.
        imports: Names of further modules to import, for example for a custom activation.

    Raises:
        UserError: If fewer than two backends are installed, if a layer's class is in no module, or
            if `inputs` is None although `model` is not a functional model.
    """
    installed = installed_backends()
    missing = [name for name in BACKENDS if name not in installed]
    if len(installed) < 2:
        raise UserError(
            "a comparison needs two backends: "
            f"pip install 'keras3-transformer[{missing[0]}]' installs {missing[0]} too"
        )
    if inputs is None:
        inputs = random_inputs(model)
    elif not isinstance(model, keras.Model):
        model, inputs = model_of_layer(model, inputs)
    elif not model.built:
        model(inputs)
    inputs = keras.tree.map_structure(as_array, inputs)
    classes = {type(layer).__module__: type(layer).__name__ for layer in model._flatten_layers()}
    if "__main__" in classes:
        raise UserError(
            "the class of a layer must be in a module, which each process can import. "
            f"Received: {classes['__main__']!r} of the program itself"
        )
    modules = [*imports, *classes]
    checks = ["outputs", "training step", *["search"] * isinstance(model, Searchable)]
    with tempfile.TemporaryDirectory() as folder:
        content = keras.saving.serialize_keras_object(inputs)
        Path(folder, "inputs.json").write_text(json.dumps(content))
        model.save(f"{folder}/model.keras")
        answers = _run(checks, installed, folder, modules)
        largest = {check: _largest(found) for check, found in answers.items()}
        outputs = predict(model, inputs).items()
        original: Arrays = {x: record([y, np.zeros(y.shape)]) for x, y in outputs}
        largest["save and load"] = _largest(answers["outputs"], original)
        calls: Answers = {}
        if any(x and x.is_error for x in largest["outputs"].values()):
            calls = _run(["layer calls"], installed, folder, modules)["layer calls"]
    notes = [f"not installed: {', '.join(missing)}"] if missing else []
    if draws_random_numbers(model):
        notes.append("training step: training=False, because the model draws random numbers")
    return Conformance(largest, _failures(answers, largest, calls), notes)


def _run(
    checks: Sequence[str], backends: Sequence[str], folder: str, modules: Sequence[str]
) -> dict[str, Answers]:
    """Runs checks on all backends at once, each in its own process."""
    paths = [path or os.getcwd() for path in sys.path]
    program = f"import sys; sys.path[:] = {paths}; from {__name__} import run; "
    words = [sys.executable, "-c", f"{program}run{folder, modules, checks}"]
    processes = {}
    with ExitStack() as stack:
        for name in backends:
            log = stack.enter_context(open(f"{folder}/{name}.log", "w"))
            env = {**os.environ, **_ENVIRONMENT, "KERAS_BACKEND": name}
            process = child_process(words, env=env, stdin=DEVNULL, stdout=log, stderr=log)
            processes[name] = stack.enter_context(process)
        for process in Bar("comparing", iterable=processes.values(), leave=False):
            process.wait()

    def answer(check: str, name: str) -> Arrays | str:
        with suppress(FileNotFoundError), np.load(f"{folder}/{check} {name}.npz") as file:
            return str(file["error"]) if "error" in file else dict(file)
        last = Path(folder, f"{name}.log").read_text(errors="replace").strip().rpartition("\n")[-1]
        return f"the process ended with status {processes[name].returncode}: {last}"

    return {check: {name: answer(check, name) for name in backends} for check in checks}


def _largest(answers: Answers, original: Arrays | None = None) -> Cells:
    """Returns the largest difference of each pair of backends, or of both to the `original`."""
    cells: Cells = {}
    for pair in itertools.combinations(answers, 2):
        found = [x for x in map(answers.get, pair) if isinstance(x, dict)]
        rows = [[x, original] for x in found] if original else [found] * (len(found) == 2)
        every = [x for row in rows for x in array_differences(*row)]
        cells[pair] = max(every, key=lambda x: x.largest / max(x.tolerance, TINY), default=None)
    return cells


def array_differences(one: Arrays, other: Arrays) -> list[ArrayDifference]:
    """Compares the arrays of two backends. Where shapes differ, the difference is infinite."""
    found = []
    for name in {**one, **other}:
        both = [given.get(name, _MISSING) for given in (one, other)]
        x, y = (given["value"] for given in both)
        changes, tolerance = np.array([math.inf]), np.zeros(1)
        if (x.shape, x.dtype.kind) == (y.shape, y.dtype.kind):
            changes = np.append(differences(x, y), 0.0)  # not empty
            tolerance = np.append(np.maximum(*(given["tolerance"] for given in both)), 0.0)
        worst = np.argmax(changes / np.maximum(tolerance, TINY))
        found.append(ArrayDifference(name, float(changes[worst]), float(tolerance[worst])))
    return found


def _failures(answers: dict[str, Answers], largest: dict[str, Cells], calls: Answers) -> list[str]:
    """Returns the errors and the differences of the first check that fails."""
    for check, cells in largest.items():
        errors = [(x, y) for x, y in answers.get(check, {}).items() if isinstance(y, str)]
        found = [f"{check}: {name} fails: {' '.join(x.split())[-1_000:]}" for name, x in errors]
        for pair, x in cells.items():
            if x and x.is_error:
                call = _first_call(*map(calls.get, pair)) if check == "outputs" else None
                place = f"{' and '.join(pair)} differ in {call or 'the whole model'}"
                found.append(f"{check}: {place}: {x.name}: {x}")
        if found:
            return found
    return []


def _first_call(one: Arrays | str | None, other: Arrays | str | None) -> str | None:
    """Returns the first layer call whose outputs differ although its inputs agree."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return None
    names = [x.name.rsplit(" ", 2) for x in array_differences(one, other) if x.is_error]
    inputs = {call for call, kind, _ in names if kind == "input"}
    return next((x for x, kind, _ in names if kind == "output" and x not in inputs), None)


def is_float(x: Tensor) -> bool:
    """Returns whether a value is a tensor, array or variable of floats."""
    return hasattr(x, "shape") and "float" in keras.backend.standardize_dtype(x.dtype)


def as_array(x: Tensor) -> np.ndarray:
    """Converts a tensor, variable or array to an array. All float dtypes become float32."""
    array = np.array(ops.convert_to_numpy(x))
    return array.astype("float32") if is_float(x) else array


def draws_random_numbers(model: keras.layers.Layer) -> bool:
    """Returns whether a model draws random numbers, which differ between backends, in training."""
    return any(x.name == "seed_generator_state" for x in model.variables)


def predict(model: keras.Model, inputs: Any) -> Arrays:
    """Returns the outputs of the compiled model."""
    outputs = keras.tree.flatten(model.predict_on_batch(inputs))
    return {f"output {i}": as_array(x) for i, x in enumerate(outputs)}


class TrainingStep(keras.Model):
    """A training step. The loss is the mean of each float output times fixed random numbers.

    (If it were a mean of squares, the gradients before a layer normalization would be zero.) The
    model's own losses are added.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.model, self.is_training = model, not draws_random_numbers(model)
        self.built = True
        # The momentum becomes the gradient times -SCALE, and the trainable variables do not change.
        self.compile(keras.optimizers.SGD(SCALE, momentum=SCALE))

    def run(self, inputs: Any) -> Arrays:
        """Returns the gradients and the variables after the step, and restores the variables."""
        trained = self.model.trainable_variables
        if not (trained and any(map(is_float, predict(self.model, inputs).values()))):
            return {}
        before = self.model.get_weights()
        self.train_on_batch(inputs)
        pairs = enumerate(zip(trained, self.optimizer.momentums, strict=True))
        found = {f"gradient {i} {x.name}": as_array(y) / -SCALE for i, (x, y) in pairs}
        found |= {f"variable {i} {x.name}": as_array(x) for i, x in enumerate(self.model.weights)}
        self.model.set_weights(before)
        return found

    def call(self, inputs: Any) -> Any:
        outputs = self.model(inputs, training=self.is_training)
        random = np.random.default_rng(0)
        for x in filter(is_float, keras.tree.flatten(outputs)):
            factors = random.normal(size=x.shape).astype("float32")
            self.add_loss(ops.mean(ops.multiply(ops.cast(x, "float32"), factors)))
        return outputs


def search(model: Searchable) -> Function:
    """Returns a function that computes ids and scores of beam search with 3 beams."""
    compiled = compile_function(decoding_loop.search, model)
    options = SearchOptions(beam_size=3, n_best=3)

    def run(inputs: Any) -> Arrays:
        ids, length = keras.tree.flatten(inputs)[0], model.max_length
        if Capabilities.of(model).reads_prompt:  # prompt and continuation share `max_length`
            length += 1 - ids.shape[1]
        result = compiled(ids, max_length=min(length, SEARCH_LENGTH), options=options)
        return {"ids": as_array(result.ids), "scores": as_array(result.scores)}

    return run


def layer_calls(model: keras.Model, inputs: Any) -> Arrays:
    """Returns inputs and outputs of all layer calls. Outputs come after those of sublayers.

    A name is the path of a call, such as "model/block/dense", and "input 0" or "output 0". Tensors
    in a compiled loop are left out, because they have no value.
    """
    original, path, counts = keras.Operation.__call__, list[str](), Counter[str]()
    found: Arrays = {}

    def note(name: str, structure: Any) -> None:
        with suppress(Exception):  # Each backend has its own error for a tensor without a value.
            arrays = [as_array(x) for x in tensors_in(structure)]
            found.update({f"{name} {i}": x for i, x in enumerate(arrays)})

    def call(layer: keras.Operation, /, *arguments: Any, **named: Any) -> Any:
        path.append(layer.name)
        name = "/".join(path)
        counts[name] += 1
        name += f" (call {counts[name]})" if counts[name] > 1 else ""
        note(f"{name} input", (arguments, named))
        outputs = original(layer, *arguments, **named)
        path.pop()
        note(f"{name} output", outputs)
        return outputs

    keras.Operation.__call__ = call
    try:
        model(inputs, training=False)
    finally:
        keras.Operation.__call__ = original
    return found


def measured(function: Function, model: keras.Model, inputs: Any) -> Arrays:
    """Calls `function` on the inputs, and again with slightly changed weights and inputs.

    Returns a record for each array, with the tolerances of docs/how-to/conformance.md. The number n
    of terms of the longest sum is estimated from shapes. The rounding error of n additions grows
    with sqrt(n) (Higham and Mary 2019), and each of two backends has such an error.
    """
    epsilon = max(EPSILON.get(x.compute_dtype, 2.0**-23) for x in model._flatten_layers())
    before = model.get_weights()
    tensors = [*before, *tensors_in(inputs)]
    terms = max([1, *(math.prod(x.shape[:-1] if is_float(x) else x.shape) for x in tensors)])

    def perturbed(x: np.ndarray) -> np.ndarray:
        """Changes each float at random by one unit in the last place, up or down."""
        signs = random.choice([-1.0, 1.0], x.shape)
        return (x * (1 + epsilon * signs)).astype("float32") if is_float(x) else x

    values, runs = function(inputs), []
    for seed in range(RUNS):
        random = np.random.default_rng(seed)
        model.set_weights([perturbed(x) for x in before])
        runs.append(function(keras.tree.map_structure(perturbed, inputs)))
    model.set_weights(before)
    found: Arrays = {}
    for name, x in values.items():
        change = np.max([differences(run[name], x) for run in runs], axis=0)
        found[name] = record([x, tolerance(x, change, epsilon, 2 * math.sqrt(terms))])
    return found


def tolerance(value: np.ndarray, change: np.ndarray, epsilon: float, factor: float) -> np.ndarray:
    """Returns the tolerance of each number of an array: 0 or, in rows that change, infinity.

    That of floats is `factor` times the largest change.
    """
    if value.dtype.kind != "f":
        is_changed = change.any(axis=tuple(range(1, change.ndim)), keepdims=True)
        return np.where(np.broadcast_to(is_changed, value.shape), math.inf, 0.0)
    size, change = (np.where(np.isfinite(x), np.abs(x), 0.0) for x in (value, change))
    change, is_large = np.maximum(change, epsilon * size), size > 1 / epsilon
    largest = (np.max(change, initial=0.0, where=part) for part in (is_large, ~is_large))
    return np.asarray(factor * np.where(is_large, *largest))


def differences(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the absolute differences of two arrays, infinite if only one number is NaN."""
    is_same = (one == other) | ((one != one) & (other != other))
    with np.errstate(invalid="ignore"):
        found = np.where(is_same, 0.0, np.abs(one.astype("float64") - other))
    return np.nan_to_num(found, nan=math.inf, posinf=math.inf)


# Each gives the function that a check calls on inputs.
CHECKS: dict[str, Callable[[Any], Function]] = {
    "outputs": lambda model: partial(predict, model),
    "training step": lambda model: TrainingStep(model).run,
    "search": search,
    "layer calls": lambda model: partial(layer_calls, model),
}


def run(folder: str, modules: Iterable[str], checks: Iterable[str]) -> None:
    """Runs checks on a saved model. Writes their results, or the texts of errors, to files."""
    content, model = json.loads(Path(folder, "inputs.json").read_text()), None
    inputs = keras.saving.deserialize_keras_object(content)
    for check in checks:
        try:
            for module in modules:
                importlib.import_module(module)
            if model is None:
                model = keras.saving.load_model(f"{folder}/model.keras", compile=False)
            found: dict[str, Any] = measured(CHECKS[check](model), model, inputs)
        except Exception as error:
            found = {"error": np.array(f"{type(error).__name__}: {error}")}
        np.savez(f"{folder}/{check} {keras.config.backend()}", **found)
