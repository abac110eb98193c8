"""Runs the checks in the process of one backend."""

import functools
import importlib
import math
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

LEARNING_RATE = 0.01
SCALE = 2.0**-60  # of gradients
SEARCH_LENGTH = 12  # tokens
RUNS = 3  # with slightly changed weights and inputs, to measure the effect of rounding
# Distance of 1 to the next number. float64 is treated as float32, because Keras computes float64
# in float32 on two of the backends.
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
Arrays = dict[str, np.ndarray]


class Measured(NamedTuple):
    """Arrays of one backend, and how rounding changes them."""

    values: Arrays
    noise: Arrays  # largest `change` when all weights and float inputs change by one unit (ulp)
    epsilon: float  # distance of 1 to the next number, in the least precise dtype of the layers
    terms: int  # of the longest sum, estimated from the shapes of weights and inputs


def is_float(x: Any) -> bool:
    """Returns whether a value is a tensor, array or variable of floats."""
    return hasattr(x, "shape") and "float" in keras.backend.standardize_dtype(x.dtype)


def as_array(x: Any) -> np.ndarray:
    """Converts a tensor, variable or array to an array. All float dtypes become float32."""
    array = np.array(ops.convert_to_numpy(x))
    return array.astype("float32") if is_float(x) else array


def tensors_in(structure: Any) -> list[Any]:
    """Returns the tensors, arrays and variables of a structure."""
    return [x for x in keras.tree.flatten(structure) if hasattr(x, "shape")]


def functional_model(layer: Any, *arguments: Any, **named: Any) -> tuple[keras.Model, list[Any]]:
    """Returns a functional model that calls `layer` with these arguments, and the model's inputs.

    Tensors among the arguments become inputs. Others, such as True or None, become constants.
    """

    def symbol(x: Any) -> Any:
        if not hasattr(x, "shape"):
            return x
        dtype = keras.backend.standardize_dtype(x.dtype)
        return keras.Input(batch_shape=tuple(x.shape), dtype=dtype)

    symbols = keras.tree.map_structure(symbol, (arguments, named))
    outputs = layer(*symbols[0], **symbols[1])
    model = keras.Model(tensors_in(symbols), tensors_in(outputs), name="model")
    return model, tensors_in((arguments, named))


def draws_random_numbers(model: keras.Model) -> bool:
    """Returns whether a model draws random numbers, which differ between backends, in training."""
    return any(x.name == "seed_generator_state" for x in model.variables)


def predict(model: Any, inputs: Any) -> Arrays:
    """Returns the outputs of the compiled model."""
    outputs = keras.tree.flatten(model.predict_on_batch(inputs))
    return {f"output {i}": as_array(x) for i, x in enumerate(outputs)}


class Child:
    """Runs the checks on one backend. `modules` register the classes of `folder/model.keras`."""

    def __init__(self, folder: Path, inputs: Any, seed: int, modules: Iterable[str]) -> None:
        for module in modules:
            importlib.import_module(module)
        self.folder, self.inputs, self.seed = folder, inputs, seed
        self.model = keras.saving.load_model(folder / "model.keras", compile=False)
        self.calls: dict[str, functools.partial[Any]] = {}

    def outputs(self) -> Measured:
        """Returns the outputs of the model."""
        return self._measured(functools.partial(predict, self.model))

    def save(self) -> None:
        """Saves the model for the other backends."""
        self.model.save(self.folder / f"saved-{keras.config.backend()}.keras")

    def load(self) -> list[Arrays]:
        """Returns the outputs of each file that this or another process has saved."""
        paths = sorted(self.folder.glob("*.keras"))
        models = (keras.saving.load_model(path, compile=False) for path in paths)
        return [predict(model, self.inputs) for model in models]

    def step(self) -> Measured:
        """Returns gradients and variables of a training step."""
        probe = Probe(self.model, self.inputs, not draws_random_numbers(self.model), self.seed)
        return self._measured(probe.step)

    def search(self) -> Measured:
        """Returns the ids and scores of greedy search and of beam search with 3 beams."""
        from keras_transformer._backend.compile_function import compile_function
        from keras_transformer.decoding.decoding_loop import search
        from keras_transformer.decoding.options import SearchOptions

        model, compiled = self.model, compile_function(search, self.model)

        def run(inputs: Any) -> Arrays:
            ids, found = keras.tree.flatten(inputs)[0], {}
            room = model.max_length
            if getattr(model, "reads_prompt", False):  # prompt and continuation share `max_length`
                room += 1 - ids.shape[1]
            for size in (1, 3):
                options = SearchOptions(beam_size=size, n_best=size)
                result = compiled(ids, max_length=min(room, SEARCH_LENGTH), options=options)
                found[f"ids of {size} beams"] = as_array(result.ids)
                found[f"scores of {size} beams"] = as_array(result.scores)
            return found

        return self._measured(run)

    def walk(self) -> Measured:
        """Returns inputs and outputs of all layer calls. A layer comes after its sublayers."""
        return self._measured(self._layer_calls)

    def save_call(self, call: str, path: Path) -> list[np.ndarray]:
        """Saves one of the calls that `walk` has found as a model, and returns its inputs."""
        given = self.calls[call]
        model, inputs = functional_model(given.func, *given.args, **given.keywords)
        model.save(path)
        return [as_array(x) for x in inputs]

    def _measured(self, function: Callable[[Any], Arrays]) -> Measured:
        """Calls `function` on the inputs, and again with changed weights and inputs for noise."""
        dtypes = [x.compute_dtype for x in self.model._flatten_layers()]
        epsilon = max(EPSILON.get(dtype, EPSILON["float32"]) for dtype in dtypes)

        def perturbed(x: Any) -> Any:
            """Changes each float at random by one unit in the last place, up or down."""
            if not is_float(x):
                return x
            x = as_array(x)
            return (x * (1 + epsilon * random.choice([-1.0, 1.0], x.shape))).astype(x.dtype)

        found = function(self.inputs)
        noise = {name: np.zeros_like(change(x, x), "float64") for name, x in found.items()}
        before = self.model.get_weights()
        for seed in range(RUNS):
            random = np.random.default_rng(seed)
            self.model.set_weights([perturbed(x) for x in before])
            changed = function(keras.tree.map_structure(perturbed, self.inputs))
            noise = {x: np.maximum(y, change(changed[x], found[x])) for x, y in noise.items()}
        self.model.set_weights(before)
        tensors = [*before, *keras.tree.flatten(self.inputs)]
        terms = max([1, *(math.prod(x.shape[:-1] if is_float(x) else x.shape) for x in tensors)])
        return Measured(found, noise, epsilon, terms)

    def _layer_calls(self, inputs: Any) -> Arrays:
        """Returns inputs and outputs of each call of a layer, and keeps the calls by path."""
        original, path, counts = keras.Operation.__call__, list[str](), Counter[str]()
        found: Arrays = {}

        def call(layer: Any, /, *arguments: Any, **named: Any) -> Any:
            path.append(layer.name)
            name = "/".join(path)
            counts[name] += 1
            name += f" (call {counts[name]})" if counts[name] > 1 else ""
            given = {key: x for key, x in named.items() if key != "training"}
            entered = _arrays(f"{name} input", (arguments, given))
            outputs = original(layer, *arguments, **named)
            path.pop()
            self.calls.setdefault(name, functools.partial(layer, *arguments, **given))
            found.update({**entered, **_arrays(f"{name} output", outputs)})
            return outputs

        keras.Operation.__call__ = call
        try:
            self.model(inputs, training=False)
        finally:
            keras.Operation.__call__ = original
        return found


class Probe(keras.Model):
    """Runs one training step of a model.

    Each float output is multiplied by fixed random numbers and averaged. The loss is the sum of
    these averages and the model's own losses. (If the loss were a mean of squares, the gradients
    before a layer normalization would be zero.)
    """

    def __init__(self, model: Any, inputs: Any, is_training: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.model, self.is_training = model, is_training
        before = model.get_weights()
        outputs = keras.tree.flatten(model(inputs, training=is_training))
        model.set_weights(before)
        random = np.random.default_rng(seed)
        self.factors = [random.normal(size=x.shape) for x in outputs if is_float(x)]
        self.built = True
        # The momentum becomes the gradient times -SCALE, and the weights keep their values.
        self.compile(keras.optimizers.SGD(SCALE, momentum=SCALE))

    def step(self, inputs: Any) -> Arrays:
        """Returns the gradients, and the variables after a step, which it then restores.

        A compiled function computes the gradients, as in `fit`. The update of the weights is not
        compiled, because TensorFlow would then compute some gradients with updated weights.
        """
        trained = self.model.trainable_variables
        if not (self.factors and trained):
            return {}
        before = self.model.get_weights()
        self.train_on_batch(inputs)
        gradients = [x / -SCALE for x in self.optimizer.momentums]
        keras.optimizers.SGD(LEARNING_RATE).apply(gradients, trained)
        pairs = enumerate(zip(trained, gradients, strict=True))
        found = {f"gradient {i} {x.name}": as_array(gradient) for i, (x, gradient) in pairs}
        after = {f"variable {i} {x.name}": as_array(x) for i, x in enumerate(self.model.weights)}
        self.model.set_weights(before)
        return {**found, **after}

    def call(self, inputs: Any) -> Any:
        return self.model(inputs, training=self.is_training)

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        outputs = (ops.cast(x, "float32") for x in keras.tree.flatten(y_pred) if is_float(x))
        factors = (ops.convert_to_tensor(factor, "float32") for factor in self.factors)
        terms = (ops.mean(x * factor) for x, factor in zip(outputs, factors, strict=True))
        return sum([*terms, *self.model.losses])


def change(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the absolute differences of two float arrays, infinite if only one number is NaN.

    For other dtypes, returns a bool array that marks unequal rows. If the shapes or kinds of dtype
    differ, returns infinity.
    """
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return np.array(math.inf)
    is_same = (one == other) | ((one != one) & (other != other))
    if one.dtype.kind != "f":
        rows = np.atleast_1d(is_same)
        return np.array(~rows.all(axis=tuple(range(1, rows.ndim))))
    with np.errstate(invalid="ignore"):
        differences = np.where(is_same, 0.0, np.abs(one.astype("float64") - other))
    return np.asarray(np.nan_to_num(differences, nan=math.inf, posinf=math.inf))


def _arrays(name: str, structure: Any) -> Arrays:
    """Returns the tensors of a structure as arrays, or {} in a compiled loop."""
    try:
        return {f"{name} {i}": as_array(x) for i, x in enumerate(tensors_in(structure))}
    except Exception:  # a tensor in a compiled loop has no value; each backend has its own error
        return {}


def main() -> None:
    """Reads pickled arguments of `Child`, then requests: names of methods and their arguments.

    The answer is what the method returns, or the text of an error.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    arguments, child = pickle.load(sys.stdin.buffer), None
    while sys.stdin.buffer.peek(1):  # type: ignore[union-attr]
        method, *rest = pickle.load(sys.stdin.buffer)
        try:
            child = child or Child(*arguments)
            answer = getattr(child, method)(*rest)
        except Exception as error:
            chain: list[BaseException] = [error]  # what happened first explains the rest
            while chain[-1].__context__ is not None:
                chain.append(chain[-1].__context__)
            answer = "; then ".join(f"{type(x).__name__}: {x}" for x in reversed(chain))
        pickle.dump(answer, answers)
        answers.flush()
