"""Runs the checks in the process of one backend.

`python -m keras_transformer.portability.child FOLDER SEED MODULE...` reads requests from standard
input and writes answers to standard output, each a line of JSON. A request is the name of a method
of `Child` and the method's arguments. An answer is the path of an .npz file or null, the text of an
error or null, and the path of the layer call that raised the error or null.
"""

import functools
import importlib
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.portability.inputs import (
    as_array,
    functional_model,
    is_float,
    load_inputs,
    save_inputs,
)
from keras_transformer.portability.rounding import Measured, change

LEARNING_RATE = 0.01
SEARCH_LENGTH = 12  # tokens
RUNS = 3  # with slightly changed weights and inputs, to measure the effect of rounding
# Distance of 1 to the next number. float64 is treated as float32, because Keras computes float64
# in float32 on two of the backends.
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
Arrays = dict[str, np.ndarray]


@contextmanager
def restored(variables: Iterable[Any]) -> Iterator[None]:
    """Restores the values of variables when the context ends."""
    before = [(x, np.array(ops.convert_to_numpy(x))) for x in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def draws_random_numbers(model: keras.Model) -> bool:
    """Returns whether a model draws random numbers in training, as dropout does.

    The numbers differ between backends, so the training step then uses `training=False`.
    """
    return any(x.name == "seed_generator_state" for x in model.variables)


class Child:
    """Runs the checks on one backend.

    Args:
        folder: Folder with `model.keras` and the model's inputs (see `save_inputs`).
        seed: Seed of all random numbers.
        modules: Names of modules that register the classes of the model.
    """

    def __init__(self, folder: Path, seed: int, modules: Iterable[str]) -> None:
        for module in modules:
            importlib.import_module(module)
        self.inputs, self.seed = load_inputs(folder), seed
        self.model = keras.saving.load_model(folder / "model.keras", compile=False)
        self.calls: dict[str, functools.partial[Any]] = {}

    def outputs(self) -> Measured:
        """Returns the outputs of the compiled model, as `predict` gives them."""
        return _measured(functools.partial(_predict, self.model), self.model, self.inputs)

    def load(self, path: str) -> Measured:
        """Returns the outputs of the model in the file `path`."""
        model = keras.saving.load_model(path, compile=False)
        return _measured(functools.partial(_predict, model), model, self.inputs, runs=0)

    def save(self, path: str) -> None:
        """Saves the model."""
        self.model.save(path)

    def step(self, call: str | None = None) -> Measured:
        """Returns gradients and variables of a training step.

        `call` is the path of a layer call. None means the whole model.
        """
        model, inputs = (self.model, self.inputs) if call is None else self._model_of(call)
        with restored(model.variables):
            probe = Probe(model, inputs, not draws_random_numbers(model), self.seed)
        return _measured(probe.step, model, inputs)

    def search(self) -> Measured:
        """Returns the ids and scores of greedy search and of beam search with 3 beams."""
        from keras_transformer._backend.compile_function import compile_function
        from keras_transformer.decoding.decoding_loop import search
        from keras_transformer.decoding.options import SearchOptions

        compiled, model = compile_function(search, self.model), self.model

        def run(inputs: Any) -> Arrays:
            is_named = isinstance(inputs, dict) and "source_ids" in inputs
            ids = inputs["source_ids"] if is_named else keras.tree.flatten(inputs)[0]
            length, found = min(model.max_length, SEARCH_LENGTH), {}
            if getattr(model, "reads_prompt", False):  # prompt and continuation share `max_length`
                ids = ids[:, : max(1, model.max_length - SEARCH_LENGTH)]
                length = min(SEARCH_LENGTH, model.max_length + 1 - ids.shape[1])
            for size in (1, 3):
                options = SearchOptions(beam_size=size, n_best=size)
                result = compiled(ids, max_length=length, options=options)
                found[f"ids of {size} beams"] = as_array(result.ids)
                found[f"scores of {size} beams"] = as_array(result.scores)
            return found

        return _measured(run, model, self.inputs)

    def walk(self) -> Measured:
        """Returns inputs and outputs of all layer calls. A layer comes after its sublayers."""

        def walk(inputs: Any) -> Arrays:
            found: Arrays = {}

            def watch(name: str, run: functools.partial[Any], call: functools.partial[Any]) -> Any:
                self.calls.setdefault(name, call)
                given = _arrays(f"{name} input", (call.args, call.keywords))
                outputs = run()
                found.update({**given, **_arrays(f"{name} output", outputs)})
                return outputs

            with _watched(watch):
                self.model(inputs, training=False)
            return found

        return _measured(walk, self.model, self.inputs)

    def save_call(self, call: str, folder: str) -> None:
        """Writes `model.keras` and inputs of one call."""
        model, inputs = self._model_of(call)
        model.save(Path(folder) / "model.keras")
        save_inputs(Path(folder), inputs)

    def _model_of(self, call: str) -> tuple[Any, Any]:
        given = self.calls[call]
        return functional_model(given.func, *given.args, **given.keywords)


class Probe(keras.Model):
    """Runs one training step of a model.

    The float inputs become variables, so that gradients are computed with respect to them. Each
    float output is multiplied by fixed random numbers and averaged. The loss is the sum of these
    averages and the model's own losses. (If the loss were a mean of squares, the gradients before a
    layer normalization would be zero.)

    Args:
        model: The model.
        inputs: Inputs of the model.
        is_training: The argument `training` of the call.
        seed: Seed of the random numbers. The numbers are the same on all backends.
    """

    def __init__(self, model: Any, inputs: Any, is_training: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.model, self.is_training = model, is_training
        self._given = lambda: inputs  # Keras would wrap a dict that is an attribute
        self.floats = [
            self.add_weight(x.shape, "zeros", x.dtype, name=f"input_{i}", autocast=False)
            for i, x in enumerate(filter(is_float, keras.tree.flatten(inputs)))
        ]
        outputs = keras.tree.flatten(model(inputs, training=is_training))
        random = np.random.default_rng(seed)
        self.factors = [random.normal(size=x.shape) for x in outputs if is_float(x)]
        self.built = True
        self.compile(_KeepGradients())

    def step(self, inputs: Any) -> Arrays:
        """Runs a step of gradient descent, then restores the variables.

        A compiled function computes the gradients, as in `fit`. The update of the weights is not
        compiled, because TensorFlow would then compute some gradients with updated weights.

        Returns:
            A dict with the gradients of variables and float inputs, and with the variables after
            the step. The dict is empty if the model has no float outputs, or if it has neither
            trainable variables nor float inputs.
        """
        trained = self.trainable_variables
        if not (self.factors and trained):
            return {}
        values = filter(is_float, keras.tree.flatten(inputs))
        for variable, value in zip(self.floats, values, strict=True):
            variable.assign(as_array(value))
        with restored(self.model.variables):
            self.train_on_batch(np.zeros((1, 1)))
            kept = self.optimizer.kept
            keras.optimizers.SGD(LEARNING_RATE).apply([x.value for x in kept], trained)
            gradients = zip(trained, kept, strict=True)
            found = {f"gradient {i} {x.name}": kept for i, (x, kept) in enumerate(gradients)}
            found |= {f"variable {i} {x.name}": x for i, x in enumerate(self.model.weights)}
            return {name: as_array(x) for name, x in found.items()}

    def call(self, _: Any) -> Any:
        floats = iter(self.floats)

        def tensor(x: Any) -> Any:
            return next(floats).value if is_float(x) else ops.convert_to_tensor(x)

        inputs = keras.tree.map_structure(tensor, self._given())
        return self.model(inputs, training=self.is_training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        outputs = [ops.cast(x, "float32") for x in keras.tree.flatten(y_pred) if is_float(x)]
        factors = [ops.convert_to_tensor(factor, "float32") for factor in self.factors]
        terms = [ops.mean(x * factor) for x, factor in zip(outputs, factors, strict=True)]
        return sum([*terms, *self.model.losses])


class _KeepGradients(keras.optimizers.Optimizer):
    """Keeps each gradient in a variable, and updates no weight."""

    def __init__(self) -> None:
        super().__init__(LEARNING_RATE, name="keep_gradients")

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.kept = [self.add_variable_from_reference(x, "gradient") for x in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        kept = self.kept[self._get_variable_index(variable)]
        self.assign(kept, ops.zeros(kept.shape, kept.dtype))
        # TensorFlow's gradient may be sparse. `assign_add` then adds the values of equal indices.
        self.assign_add(kept, gradient)


def _measured(
    function: Callable[[Any], Arrays], model: Any, inputs: Any, runs: int = RUNS
) -> Measured:
    """Calls `function(inputs)`, and again with changed weights and inputs to measure the noise."""
    dtypes = [x.compute_dtype for x in model._flatten_layers()]
    epsilon = max(EPSILON.get(dtype, EPSILON["float32"]) for dtype in dtypes)
    found = function(inputs)
    noise = {name: np.zeros_like(change(x, x), "float64") for name, x in found.items()}
    variables = [x for x in model.variables if is_float(x)]
    for seed in range(runs):
        perturb = functools.partial(_perturbed, epsilon, np.random.default_rng(seed))
        with restored(variables):
            for variable in variables:
                variable.assign(perturb(variable))
            changed = function(keras.tree.map_structure(perturb, inputs))
        noise = {
            name: np.maximum(x, change(changed[name], found[name])) for name, x in noise.items()
        }
    tensors = [*variables, *keras.tree.flatten(inputs)]
    terms = max([1, *(math.prod(x.shape[:-1] if is_float(x) else x.shape) for x in tensors)])
    return Measured(found, noise, epsilon, terms)


def _perturbed(epsilon: float, random: np.random.Generator, x: Any) -> Any:
    """Changes each float at random by one unit in the last place, up or down."""
    if not is_float(x):
        return x
    x = as_array(x)
    return (x * (1 + epsilon * random.choice([-1.0, 1.0], x.shape))).astype(x.dtype)


@contextmanager
def _watched(watch: Callable[..., Any]) -> Iterator[None]:
    """Calls `watch(path, run, call)` for each call of a layer or operation.

    `run()` executes the call. `call` is the same call without the argument `training`. An error
    gets the attribute `failed_call`, the path of the innermost call that raised it.
    """
    original, path = keras.Operation.__call__, list[str]()
    counts = Counter[str]()

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if not path:
            counts.clear()
        path.append(self.name)
        name = "/".join(path)
        counts[name] += 1
        name = name if counts[name] == 1 else f"{name} (call {counts[name]})"
        given = {key: x for key, x in named.items() if key != "training"}
        try:
            run = functools.partial(original, self, *arguments, **named)
            return watch(name, run, functools.partial(self, *arguments, **given))
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
    """Returns the tensors of a structure as arrays, or {} in a compiled loop."""
    tensors = [x for x in keras.tree.flatten(structure) if hasattr(x, "shape")]
    try:
        return {f"{name} {i}": as_array(x) for i, x in enumerate(tensors)}
    except Exception:  # a tensor in a compiled loop has no value; each backend has its own error
        return {}


def _predict(model: Any, inputs: Any) -> Arrays:
    outputs = keras.tree.flatten(model.predict_on_batch(inputs))
    return {f"output {i}": as_array(x) for i, x in enumerate(outputs)}


def _described(error: BaseException) -> tuple[str, str | None]:
    """Returns the text of the earliest error of a layer call in the chain, and the call's path."""
    chain = [error]
    while chain[-1].__context__ is not None:
        chain.append(chain[-1].__context__)
    cause = next((x for x in reversed(chain) if hasattr(x, "failed_call")), error)
    return f"{type(cause).__name__}: {cause}", getattr(cause, "failed_call", None)


def main(folder: str, seed: str, *modules: str) -> None:
    """Answers requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    path, child = Path(folder) / f"{keras.config.backend()}.npz", None
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        answer: list[str | None] = [None, None, None]
        try:
            with _watched(lambda name, run, call: run()):
                child = child or Child(Path(folder), int(seed), modules)
                if found := getattr(child, method)(*arguments):
                    found.save(path)
                    answer[0] = str(path)
        except Exception as error:
            answer[1:] = _described(error)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
