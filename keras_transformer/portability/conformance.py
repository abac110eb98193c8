"""Runs a model on every installed backend and compares the results."""

import importlib.util
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer._backend import BACKENDS
from keras_transformer._backend.process import without_tensorflow
from keras_transformer.errors import UserError
from keras_transformer.models.protocol import Searchable
from keras_transformer.portability.audit import CHECKS, Audit, Backend, Pair
from keras_transformer.portability.compare import Difference, worst
from keras_transformer.portability.failures import Failure, Failures
from keras_transformer.portability.probe import as_array, is_float, restored

BATCH, LENGTH = 3, 7  # sizes of the first axis and of other axes, if the model's size is None


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
    largest: dict[str, dict[Pair, Difference | None]]
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
    directory: str | Path = "conformance",
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
    - "save and load" loads on each backend the files that all backends saved. The outputs must not
      change.

    For each failure, this function looks for the layer call that causes the failure. For
    "outputs", this call is the first whose outputs differ although its inputs agree. The function
    writes a folder with the layer, its inputs and a script `reproduce.py`.

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
        directory: Folder for scripts, created only if a check fails. Defaults to "conformance".
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
    installed = [name for name in BACKENDS if importlib.util.find_spec(name) is not None]
    missing = [name for name in BACKENDS if name not in installed]
    if len(installed) < 2:
        raise UserError(
            "a comparison needs two backends: "
            f"pip install 'keras3-transformer[{missing[0]}]' installs {missing[0]} too"
        )
    model, inputs = as_model(model, inputs), _tensors_of(model, inputs)
    modules = _modules(model, imports)
    checks = [check for check in CHECKS if check != "search" or isinstance(model, Searchable)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        given = _write_model(model, inputs, seed, Path(folder))
        backends = {
            name: stack.enter_context(Backend(name, Path(folder), modules, seed))
            for name in installed
        }
        audit = Audit(backends, Path(folder), given)
        audit.run(checks, report)
        largest = {
            check: {pair: worst(audit.differences(check, pair)) for pair in audit.pairs()}
            for check in checks
        }
        failures = Failures(audit, Path(directory), modules, seed).find()
        terms = max((answer.terms for answer in audit.answers.values()), default=1)
        return Conformance(installed, missing, largest, failures, terms, audit.is_training)


def as_model(model: Any, inputs: Any) -> keras.Model:
    """Builds and returns a model, or wraps a layer in a functional model."""
    if not isinstance(model, keras.layers.Layer):
        raise ValueError(f"`model` must be a Keras model or layer. Received: model={model!r}")
    if isinstance(model, keras.Model):
        if not model.built and inputs is not None:
            model(inputs)
        return model
    if inputs is None:
        raise ValueError(f"`inputs` must be given for a layer. Received: model={model!r}")
    if isinstance(inputs, dict):
        symbolic = {name: _symbolic(x, name) for name, x in _tensors_of(model, inputs).items()}
        outputs = model(**{**inputs, **symbolic})
    else:
        symbolic = keras.tree.map_structure(_symbolic, inputs)
        outputs = model(symbolic)
    return keras.Model(symbolic, outputs, name="model")


def _tensors_of(model: Any, inputs: Any) -> Any:
    """Leaves out call arguments of a layer that are no tensors, such as True or None."""
    if isinstance(model, keras.Model) or not isinstance(inputs, dict):
        return inputs
    return {name: x for name, x in inputs.items() if hasattr(x, "shape")}


def _symbolic(x: Any, name: str | None = None) -> Any:
    return keras.Input(x.shape[1:], dtype=keras.backend.standardize_dtype(x.dtype), name=name)


def _modules(model: keras.Model, imports: Iterable[str]) -> list[str]:
    """Returns `imports` and the modules that define the layers, except modules of Keras."""
    modules = dict.fromkeys(type(layer).__module__ for layer in model._flatten_layers())
    if "__main__" in modules:
        raise ValueError(
            "The classes of `model` must be defined in a module that other processes can import, "
            "not in the main script."
        )
    return [*imports, *(x for x in modules if x.partition(".")[0] != "keras")]


def _write_model(model: keras.Model, inputs: Any, seed: int, folder: Path) -> list[np.ndarray]:
    """Writes the model and the inputs for the processes. Returns the model's outputs."""
    inputs = random_inputs(model, seed) if inputs is None else inputs
    with restored(zeros := _zero_weights(model)), without_tensorflow():
        random = np.random.default_rng(seed)
        for variable in zeros:
            variable.assign(random.normal(scale=0.1, size=variable.shape))
        outputs = keras.tree.flatten(model.predict_on_batch(inputs))
        model.save(folder / "model.keras")
    arrays = [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(inputs)]
    np.savez(folder / "inputs.npz", **{str(i): x for i, x in enumerate(arrays)})
    structure = keras.tree.pack_sequence_as(inputs, list(range(len(arrays))))
    (folder / "inputs.json").write_text(json.dumps(structure))
    return [as_array(x) for x in outputs]


def _zero_weights(model: keras.Model) -> list[Any]:
    """Returns the trainable weights that are all zero.

    Behind a kernel of zeros, such as that of a new classifier, all outputs and the gradients of all
    layers before it are zero on every backend, and nothing is compared.
    """
    return [x for x in model.trainable_variables if is_float(x) and not as_array(x).any()]


def random_inputs(model: keras.Model, seed: int = 0) -> Any:
    """Returns random inputs for a functional model, in the structure of its inputs.

    Floats are standard normal. Integers are valid ids for the embedding that reads the input. If no
    embedding reads the input, the ids are valid for the model's smallest embedding. Without any
    embedding, the ids are less than 3. If the name of an input ends in "positions", its values are
    positions of the other inputs. In a matrix of ids with more than two columns, the first row
    ends with two padding ids, if padding is a valid id there. Axes of unknown size have at most
    as many elements as the `max_length` of any layer.

    Raises:
        ValueError: If `model` is not a functional model.
    """
    if not getattr(model, "inputs", None):
        raise ValueError(
            f"`inputs` must be given for a model that is not functional. Received: model={model!r}"
        )
    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    random = np.random.default_rng(seed)
    pad_id = getattr(model, "pad_id", 0)
    length = min(getattr(layer, "max_length", LENGTH) for layer in model._flatten_layers())
    length = min(length, LENGTH)

    def make(spec: Any) -> np.ndarray:
        batch, *rest = spec.shape
        shape = (batch or BATCH, *(size or length for size in rest))
        if "float" in spec.dtype:
            return random.normal(size=shape).astype(spec.dtype)
        if spec.dtype == "bool":
            return random.choice([True, False], shape)
        if spec.name.endswith("positions"):
            return random.integers(length, size=shape, dtype=spec.dtype)
        ids = np.arange(_vocabulary_size(model, spec))
        has_padding = pad_id in ids and len(shape) == 2 and shape[1] > 2
        ids = ids[ids != pad_id] if len(ids) > 2 else ids  # segments are few
        drawn = random.choice(ids, shape).astype(spec.dtype)
        if has_padding:
            drawn[0, -2:] = pad_id
        return drawn

    return keras.tree.map_structure(make, structure)


def _vocabulary_size(model: keras.Model, spec: Any) -> int:
    sizes, own = [], []
    for layer in model._flatten_layers():
        size = getattr(layer, "input_dim", None) or getattr(layer, "vocabulary_size", None)
        if isinstance(size, int):
            sizes.append(size)
            # By name: a nested model has an input of its own.
            own += [size] if any(x.name == spec.name for x in _inputs_of(layer)) else []
    return min(own or sizes or [3])


def _inputs_of(layer: Any) -> list[Any]:
    try:
        return keras.tree.flatten(layer.input)
    except (AttributeError, ValueError):  # called several times, or never
        return []
