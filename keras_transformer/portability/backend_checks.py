"""The checks of a model on one backend, and the process that runs them."""

import importlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import compile_function
from keras_transformer._backend.types import Tensor
from keras_transformer.capabilities import Capabilities
from keras_transformer.decoding import decoding_loop
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.models.protocol import Searchable

SCALE = 2.0**-60  # of gradients
SEARCH_LENGTH = 12  # tokens
RUNS = 3  # with slightly changed weights and inputs, to measure the effect of rounding
# Distance of 1 to the next number. float64 is treated as float32, because Keras computes float64
# in float32 on two of the backends.
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
Arrays = dict[str, np.ndarray]
Function = Callable[[Any], Arrays]  # from the inputs of a model
# Numbers, and for each the difference to another backend that rounding can explain.
record = partial(np.rec.fromarrays, names="value,tolerance")


def is_float(x: Tensor) -> bool:
    """Returns whether a value is a tensor, array or variable of floats."""
    return hasattr(x, "shape") and "float" in keras.backend.standardize_dtype(x.dtype)


def as_array(x: Tensor) -> np.ndarray:
    """Converts a tensor, variable or array to an array. All float dtypes become float32."""
    array = np.array(ops.convert_to_numpy(x))
    return array.astype("float32") if is_float(x) else array


def tensors_in(structure: Any) -> list[Any]:
    """Returns the tensors, arrays and variables of a structure."""
    return [x for x in keras.tree.flatten(structure) if hasattr(x, "shape")]


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
        return self.model(inputs, training=self.is_training)

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        random = np.random.default_rng(0)
        outputs = [ops.cast(x, "float32") for x in keras.tree.flatten(y_pred) if is_float(x)]
        factors = [random.normal(size=x.shape).astype("float32") for x in outputs]
        means = map(ops.mean, map(ops.multiply, outputs, factors))
        return sum([*means, *self.model.losses])


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
