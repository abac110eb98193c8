"""Loads the model in the process of one backend, and answers requests.

A request is a line of JSON on standard input. The line contains the name of a method of `Child` and
the arguments of the method. An answer is a line of JSON on standard output. The arrays of an answer
are in a file.
"""

import functools
import importlib
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer._backend.process import without_tensorflow
from keras_transformer.portability.compare import change
from keras_transformer.portability.probe import Probe, as_array, is_float, restored

SEARCH_LENGTH = 12  # tokens
RUNS = 3  # with slightly changed weights and inputs, to measure the effect of rounding
# Distance of 1 to the next number. float64 is treated as float32, because Keras computes float64
# in float32 on two of the backends.
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
Arrays = dict[str, np.ndarray]


class Call(NamedTuple):
    """A call of a layer, without the argument `training`."""

    layer: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]


def search_arrays(model: Any, inputs: Any, compiled: Any = None) -> Arrays:
    """Returns the ids and scores of greedy search and of beam search with 3 beams."""
    from keras_transformer import SearchOptions, compile_function, search

    compiled = compiled or compile_function(search, model)
    has_name = isinstance(inputs, dict) and "source_ids" in inputs
    source_ids = inputs["source_ids"] if has_name else keras.tree.flatten(inputs)[0]
    length, found = min(model.max_length, SEARCH_LENGTH), {}
    if getattr(model, "reads_prompt", False):  # prompt and continuation share `max_length`
        source_ids = source_ids[:, : max(1, model.max_length - SEARCH_LENGTH)]
        length = min(SEARCH_LENGTH, model.max_length + 1 - source_ids.shape[1])
    for size in (1, 3):
        options = SearchOptions(beam_size=size, n_best=size)
        result = compiled(source_ids, max_length=length, options=options)
        found[f"ids of {size} beams"] = as_array(result.ids)
        found[f"scores of {size} beams"] = as_array(result.scores)
    return found


class Child:
    """Runs the checks on one backend.

    Args:
        folder: Folder with `model.keras`, `inputs.npz` and `inputs.json`.
        imports: Names of modules that register the classes of the model.
        seed: Seed of all random numbers.
    """

    def __init__(self, folder: str, imports: list[str], seed: int) -> None:
        self.folder, self.seed = Path(folder), seed
        self.calls: dict[str, Call] = {}
        for module in imports:
            importlib.import_module(module)
        self.model = _load(self.folder / "model.keras")
        arrays = np.load(self.folder / "inputs.npz")
        structure = json.loads((self.folder / "inputs.json").read_text())
        self.inputs = keras.tree.map_structure(lambda i: arrays[str(i)], structure)

    def outputs(self) -> dict[str, Any]:
        """Answers with the outputs of the compiled model, as `predict` gives them."""
        return self._measure(lambda inputs: _predict(self.model, inputs), self.model, self.inputs)

    def walk(self) -> dict[str, Any]:
        """Answers with inputs and outputs of all layer calls. A layer comes after its sublayers."""
        return self._measure(self._walk, self.model, self.inputs)

    def step(self, call: str | None = None) -> dict[str, Any]:
        """Runs a training step of the model or a layer. Answers with gradients and variables."""
        layer, arguments, named = self._call(call)
        is_training = not _is_random(layer, arguments, named)
        with restored(layer.variables):
            probe = Probe(layer, arguments, named, is_training, self.seed)
        answer = self._measure(lambda given: probe.step(*given), layer, (arguments, named))
        return {"is_training": is_training, **answer}

    def search(self) -> dict[str, Any]:
        """Answers with the ids and scores of greedy search and beam search."""
        from keras_transformer import compile_function, search

        compiled = compile_function(search, self.model)
        return self._measure(
            lambda inputs: search_arrays(self.model, inputs, compiled), self.model, self.inputs
        )

    def save(self, path: str) -> dict[str, Any]:
        """Saves the model."""
        with without_tensorflow():
            self.model.save(path)
        return {}

    def load(self, path: str) -> dict[str, Any]:
        """Answers with the outputs of the model in the file `path`."""
        model = _load(Path(path))
        return self._measure(lambda inputs: _predict(model, inputs), model, self.inputs, runs=0)

    def save_call(self, call: str | None, folder: str, with_training: bool) -> dict[str, Any]:
        """Saves a call's layer and inputs. Answers with the call's arguments as Python code."""
        layer, arguments, named = self._call(call)
        is_training = with_training and not _is_random(layer, arguments, named)
        arrays: Arrays = {}
        texts = [_expression(x, arrays) for x in (arguments, named)]
        np.savez(Path(folder) / "inputs.npz", allow_pickle=False, **arrays)
        if call is None:
            shutil.copy(self.folder / "model.keras", Path(folder) / "layer.keras")
        else:
            with without_tensorflow():
                keras.saving.save_model(layer, Path(folder) / "layer.keras")
        return {"call": texts, "is_training": is_training}

    def _call(self, call: str | None) -> Call:
        return Call(self.model, (self.inputs,), {}) if call is None else self.calls[call]

    def _walk(self, inputs: Any) -> Arrays:
        found: Arrays = {}

        def watch(name: str, call: Call, run: Callable[[], Any]) -> Any:
            self.calls.setdefault(name, call)
            given = _arrays(f"{name} input", call[1:])
            outputs = run()
            found.update({**given, **_arrays(f"{name} output", outputs)})
            return outputs

        with _watched(watch):
            self.model(inputs, training=False)
        return found

    def _measure(
        self, function: Callable[[Any], Arrays], layer: Any, inputs: Any, runs: int = RUNS
    ) -> dict[str, Any]:
        """Answers with the fields of `Measured`, and writes the arrays to a file."""
        dtypes = [x.compute_dtype for x in self.model._flatten_layers()]
        epsilon = max(EPSILON.get(dtype, EPSILON["float32"]) for dtype in dtypes)
        found = function(inputs)
        noise = {name: np.zeros_like(change(x, x), "float64") for name, x in found.items()}
        variables = [x for x in layer.variables if is_float(x)]
        for seed in range(runs):
            random = np.random.default_rng(seed)
            with restored(variables):
                for variable in variables:
                    variable.assign(_perturbed(variable, epsilon, random))
                changed = function(_perturbed(inputs, epsilon, random))
            noise = {
                name: np.maximum(x, change(changed[name], found[name])) for name, x in noise.items()
            }
        path = self.folder / f"{keras.config.backend()}.npz"
        np.savez(path, *found.values(), *noise.values())
        tensors = [x for x in [*variables, *keras.tree.flatten(inputs)] if hasattr(x, "shape")]
        terms = max([1, *(math.prod(x.shape[:-1] if is_float(x) else x.shape) for x in tensors)])
        return {"file": str(path), "names": list(found), "epsilon": epsilon, "terms": terms}


@contextmanager
def _watched(watch: Callable[[str, Call, Callable[[], Any]], Any]) -> Iterator[None]:
    """Calls `watch(path, call, run)` for each call of a layer. `run()` executes this call.

    Operations are watched like layers.

    An error gets the attribute `failed_call`, the path of the innermost call that raised it.
    """
    original, path = keras.Operation.__call__, list[str]()
    counts = Counter[str]()

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        path.append(self.name)
        name = "/".join(path)
        counts[name] += 1
        name = name if counts[name] == 1 else f"{name} (call {counts[name]})"
        given = {key: x for key, x in named.items() if key != "training"}
        try:
            run = functools.partial(original, self, *arguments, **named)
            return watch(name, Call(self, arguments, given), run)
        except Exception as error:
            if not hasattr(error, "failed_call"):
                error.failed_call = name  # type: ignore[attr-defined]
            raise
        finally:
            path.pop()

    keras.Operation.__call__ = call
    try:
        yield
    finally:
        keras.Operation.__call__ = original


def _arrays(name: str, structure: Any) -> Arrays:
    """Returns the tensors of a structure as arrays.

    In a compiled loop, tensors have no values, so the function returns {}.
    """
    tensors = [x for x in keras.tree.flatten(structure) if hasattr(x, "shape")]
    try:
        return {f"{name} {i}": as_array(x) for i, x in enumerate(tensors)}
    except Exception:  # each backend raises another error
        return {}


def _perturbed(structure: Any, epsilon: float, random: np.random.Generator) -> Any:
    """Changes each float at random by one unit in the last place, up or down."""

    def perturb(x: Any) -> Any:
        if not is_float(x):
            return x
        x = as_array(x)
        return (x * (1 + epsilon * random.choice([-1.0, 1.0], x.shape))).astype(x.dtype)

    return keras.tree.map_structure(perturb, structure)


def _is_random(layer: Any, arguments: Any, named: Any) -> bool:
    """Returns whether a call with `training=True` draws random numbers, as dropout does.

    Such a call changes the state of a seed generator. Of random numbers without a seed generator of
    the layer, only different outputs of two calls tell.
    """
    seeds = [x for x in layer.variables if x.name == "seed_generator_state"]
    before, found = [as_array(x) for x in seeds], []
    for _ in range(2):
        with restored(x for x in layer.variables if is_float(x)):  # a call changes moving averages
            found.append(_arrays("", layer(*arguments, **named, training=True)))
    if any(np.any(x != as_array(seed)) for x, seed in zip(before, seeds, strict=True)):
        return True
    one, other = found
    return any(np.any(change(one[name], other[name])) for name in one)


def _predict(model: Any, inputs: Any) -> Arrays:
    outputs = keras.tree.flatten(model.predict_on_batch(inputs))
    return {f"output {i}": as_array(x) for i, x in enumerate(outputs)}


def _load(path: Path) -> Any:
    with without_tensorflow():
        return keras.saving.load_model(path, compile=False, safe_mode=True)


def _expression(value: Any, arrays: Arrays) -> str:
    """Returns a call argument as Python code, and adds its tensors to `arrays`."""
    if isinstance(value, dict):
        pairs = (f"{key!r}: {_expression(x, arrays)}" for key, x in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        items = "".join(f"{_expression(x, arrays)}, " for x in value)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    arrays[str(len(arrays))] = as_array(value)
    return f"arrays['{len(arrays) - 1}']"


def _cause(error: BaseException) -> BaseException:
    """Returns the earliest error of a layer call in the chain of `error`, otherwise `error`."""
    chain = [error]
    while chain[-1].__context__ is not None:
        chain.append(chain[-1].__context__)
    return next((x for x in reversed(chain) if hasattr(x, "failed_call")), error)


def main(folder: str, imports: str, seed: str) -> None:
    """Answers requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    child = None
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            if child is None:
                with _watched(lambda path, call, run: run()):
                    child = Child(folder, json.loads(imports), int(seed))
            answer = getattr(child, method)(**arguments)
        except Exception as error:
            cause = _cause(error)
            text = f"{type(cause).__name__}: {cause}"
            answer = {"error": text, "failed_call": getattr(cause, "failed_call", None)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
