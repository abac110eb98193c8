"""Adam with the paper's settings, counting optimizer steps (§5.3)."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

# On PyTorch, Keras answers `keras.optimizers.Adam(...)` with a faster subclass of its own.
_BackendAdam: Any = type(keras.optimizers.Adam.__new__(keras.optimizers.Adam))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerAdam(_BackendAdam):
    """Adam with β₁ = 0.9, β₂ = 0.98 and ε = 1e-9 (§5.3), for accumulated gradients too.

    It differs from `keras.optimizers.Adam` in its defaults and in four points:

    - A schedule is called with the number of optimizer steps made, also under
      `gradient_accumulation_steps`, where Keras would count micro-batches.
    - `gradient_norm` holds the global norm of the last step's gradient, over all micro-batches and
      before clipping, at no further pass over the model.
    - A token that is twice in a batch counts the same on TensorFlow as elsewhere: there, Keras
      squares the parts of an embedding's gradient before it sums them.
    - Replicas that train together clip and measure the sum of their gradients, not each its own, if
      `reduce_gradients` is set.

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
        self.gradient_norm.assign(ops.sqrt(sum(squares)))
        return super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        """Keras on TensorFlow would sum over the replicas of a strategy here, after clipping."""
        if self.reduce_gradients:
            return grads_and_vars
        return super()._all_reduce_sum_gradients(grads_and_vars)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        # TensorFlow's sparse gradients may name a row twice, and squaring them would not sum such
        # rows first. Reshaping makes them dense.
        super().update_step(ops.reshape(gradient, variable.shape), variable, learning_rate)
