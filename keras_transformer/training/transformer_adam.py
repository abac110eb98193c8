"""Adam with the paper's settings, counting optimizer steps (§5.3)."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

# On PyTorch, Keras answers `keras.optimizers.Adam(...)` with a faster subclass of its own.
_BackendAdam: Any = type(keras.optimizers.Adam.__new__(keras.optimizers.Adam))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerAdam(_BackendAdam):
    """Adam with β₁ = 0.9, β₂ = 0.98 and ε = 1e-9 (§5.3), for accumulated gradients too.

    It differs from `keras.optimizers.Adam` in its defaults and in five points:

    - A schedule is called with the number of optimizer steps made, also under
      `gradient_accumulation_steps`, where Keras would count micro-batches.
    - `gradient_norm` holds the global norm of the last step's gradient, over all micro-batches and
      before clipping, at no further pass over the model.
    - A token that is twice in a batch counts the same on TensorFlow as elsewhere: there, Keras
      squares the parts of an embedding's gradient before it sums them.
    - Replicas that train together clip and measure the sum of their gradients, not each its own, if
      `reduce_gradients` is set.
    - With `use_ema`, the averages count optimizer steps, not micro-batches, and are without bias to
      the first of them: after t steps the weights of step i count `ema_momentum ** (t - i)`, over
      the sum of these. Keras would count the first one as if it had been there for ever.

    Example:

    ```python
    optimizer = TransformerAdam(TransformerSchedule(d_model=512), gradient_accumulation_steps=2)
    ```

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`.
        beta_1: Float, decay of the first moment.
        beta_2: Float, decay of the second moment.
        epsilon: Float, added to the root of the second moment.
        **kwargs: As for `keras.optimizers.Adam`.

    Attributes:
        reduce_gradients: Function of a list of gradients that returns their sums over all replicas,
            or None. See `keras_transformer.training.distribution`.

    Source:
        Kingma and Ba, 2015, Adam: A Method for Stochastic Optimization.
    """

    reduce_gradients: Callable[[list[Any]], list[Any]] | None = None

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.98,
        epsilon: float = 1e-9,
        name: str = "adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, name=name, **kwargs
        )

    def build(self, variables: list[Any]) -> None:
        if not self.built:
            super().build(variables)
            self.gradient_norm = self.add_variable(
                (), dtype="float32", aggregation="only_first_replica", name="gradient_norm"
            )

    def _get_current_learning_rate(self) -> Any:
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        """Keras calls this once a step, on the gradients that the step will use."""
        if self.reduce_gradients:
            grads = self.reduce_gradients(grads)
        flat = [ops.cast(ops.reshape(gradient, (-1,)), "float32") for gradient in grads]
        squares = [ops.sum(ops.square(gradient)) for gradient in flat]
        norm = ops.sqrt(sum(squares))
        self.gradient_norm.assign(norm)
        if not self.global_clipnorm:
            return super()._clip_gradients(grads)
        scale = self.global_clipnorm / ops.maximum(norm, self.global_clipnorm)
        return [
            ops.reshape(part * scale, ops.shape(gradient))
            for part, gradient in zip(flat, grads, strict=True)
        ]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        """Keras on TensorFlow would sum over the replicas of a strategy here, after clipping."""
        if self.reduce_gradients:
            return grads_and_vars
        return super()._all_reduce_sum_gradients(grads_and_vars)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        # TensorFlow's sparse gradients may name a row twice, and squaring them would not sum such
        # rows first. Reshaping makes them dense.
        super().update_step(ops.reshape(gradient, variable.shape), variable, learning_rate)

    def _backend_update_step(
        self, grads: Any, trainable_variables: Any, learning_rate: Any
    ) -> None:
        """Keras calls this once a step, or undoes what it has done after other micro-batches."""
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        if self.use_ema:
            self._update_averages()

    def _update_averages(self) -> None:
        step = ops.cast(self.iterations + 1, "float32")
        rate = (self.ema_momentum - 1.0) / ops.expm1(math.log(self.ema_momentum) * step)
        for variable, average in self._averaged():
            difference = ops.stop_gradient(variable - average)
            average.assign(average + ops.cast(rate, average.dtype) * difference)

    def _update_model_variables_moving_average(self, trainable_variables: Any) -> None:
        """Keras calls this after every micro-batch, when `_update_averages` has done it."""

    def _averaged(self) -> Iterator[tuple[Any, Any]]:
        """Each weight and its average."""
        yield from zip(self._trainable_variables, self._model_variables_moving_average, strict=True)

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        super().finalize_variable_values(var_list)
        if self.use_ema:  # On JAX, weight and average would share memory that `fit` donates twice.
            for _, average in self._averaged():
                average.assign(ops.copy(average))


@contextmanager
def ema_as_weights(model: Any) -> Iterator[None]:
    """Context in which the weights are their moving averages, if the optimizer has `use_ema`.

    Example:

    ```python
    with ema_as_weights(model):
        model.evaluate(inputs, labels)
    ```
    """
    _exchange(inner_optimizer(model))
    try:
        yield
    finally:
        _exchange(inner_optimizer(model))


def _exchange(optimizer: Any) -> None:
    if not optimizer.use_ema:
        return
    averages = optimizer._model_variables_moving_average
    for variable, average in zip(optimizer._trainable_variables, averages, strict=True):
        value = np.array(ops.convert_to_numpy(variable))
        variable.assign(average)
        average.assign(value)


def inner_optimizer(model: Any) -> Any:
    """The optimizer of a compiled model, without what scales its loss for float16."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)
