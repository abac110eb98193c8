"""Runs one training step of a layer, on any backend.

This file imports only Keras and NumPy. A script that reproduces a failed training step gets a copy
of this file, and so runs without this package.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

LEARNING_RATE = 0.01


def is_float(x: Any) -> bool:
    """Returns whether a value is a tensor, array or variable of floats."""
    return hasattr(x, "shape") and "float" in keras.backend.standardize_dtype(x.dtype)


def as_array(x: Any) -> np.ndarray:
    """Converts a tensor, variable or array to an array. All float dtypes become float32."""
    array = np.array(ops.convert_to_numpy(x))
    return array.astype("float32") if is_float(x) else array


@contextmanager
def restored(variables: Iterable[Any]) -> Iterator[None]:
    """Restores the values of variables when the context ends."""
    before = [(x, np.array(ops.convert_to_numpy(x))) for x in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


class Probe(keras.Model):
    """A model that runs one training step of a layer.

    The layer's float inputs become variables, so that gradients are computed with respect to them.
    Each float output is multiplied by fixed random numbers and averaged. The loss is the sum of
    these averages and the layer's own losses. (If the loss were a mean of squares, the gradients
    before a layer normalization would be zero.)

    Args:
        layer: The layer or model.
        arguments: Call arguments that the layer gets by position.
        named: Call arguments that the layer gets by name.
        is_training: The argument `training` of the call.
        seed: Seed of the random numbers. The numbers are the same on all backends.
    """

    def __init__(
        self, layer: Any, arguments: Any, named: Any, is_training: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        self.layer, self.is_training = layer, is_training
        self._given = lambda: (arguments, named)  # Keras would wrap a dict that is an attribute
        self.floats = [
            self.add_weight(x.shape, "zeros", x.dtype, name=f"input_{i}", autocast=False)
            for i, x in enumerate(filter(is_float, keras.tree.flatten(self._given())))
        ]
        outputs = keras.tree.flatten(self._call_layer(arguments, named))
        random = np.random.default_rng(seed)
        self.factors = [random.normal(size=x.shape) for x in outputs if is_float(x)]
        self.built = True
        self.compile(_KeepGradients())

    def step(self, arguments: Any, named: Any) -> dict[str, np.ndarray]:
        """Runs a step of gradient descent, then restores the variables.

        A compiled function computes the gradients, as in `fit`. The update of the weights is not
        compiled, because TensorFlow would then compute some gradients with updated weights.

        Returns:
            A dict with the gradients of variables and float inputs, and with the variables after
            the step. Dropout seeds are left out. The dict is empty if the layer has no float
            outputs, or if it has neither trainable variables nor float inputs.
        """
        variables, trained = self.layer.variables, self.trainable_variables
        if not (self.factors and trained):
            return {}
        before = [np.array(ops.convert_to_numpy(x)) for x in variables]  # JAX reuses the memory
        values = filter(is_float, keras.tree.flatten((arguments, named)))
        for variable, value in zip(self.floats, values, strict=True):
            variable.assign(as_array(value))
        try:
            self.train_on_batch(np.zeros((1, 1)))
            gradients = [x.value for x in self.optimizer.kept]
            keras.optimizers.SGD(LEARNING_RATE).apply(gradients, trained)
            names = [f"{i} {variable.name}" for i, variable in enumerate(trained)]
            found = dict(zip((f"gradient {x}" for x in names), self.optimizer.kept, strict=True))
            found.update({f"variable {i} {x.name}": x for i, x in enumerate(self.layer.weights)})
            return {name: as_array(x) for name, x in found.items()}
        finally:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)

    def call(self, _: Any) -> Any:
        floats = iter(self.floats)

        def tensor(x: Any) -> Any:
            if is_float(x):
                return next(floats).value
            return ops.convert_to_tensor(x) if hasattr(x, "shape") else x

        return self._call_layer(*keras.tree.map_structure(tensor, self._given()))

    def _call_layer(self, arguments: Any, named: Any) -> Any:
        return self.layer(*arguments, **named, training=self.is_training)

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
        return sum([*terms, *self.layer.losses])


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
