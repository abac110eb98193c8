"""Implements optimizers, the learning-rate schedule and averages of the weights (§5.3)."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import is_on_cuda
from keras_transformer._backend.operations import fused_adam, global_norm
from keras_transformer._backend.types import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Computes a learning rate with linear warm-up, then inverse square root decay (§5.3).

    With `d_model`, the schedule is the paper's schedule:

        rate = scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).

    With `peak`, the curve has the same shape, and the highest rate is `scale * peak`. With
    `cosine_steps`, the rate falls along half a cosine instead. Keras's `CosineDecay` is the same
    curve, but its warm-up branches, which a CUDA graph cannot record.

    The first update is step 1, so the rate is never zero. For gradient accumulation, use
    `TransformerAdam`, which counts optimizer steps.

    Example:

    ```python
    optimizer = TransformerAdam(TransformerSchedule(d_model=512))
    ```

    Args:
        d_model: Integer, width of the model. Pass either `d_model` or `peak`.
        warmup_steps: Integer >= 1, number of steps until the highest rate. Defaults to 4000.
        peak: Float, the highest learning rate, before multiplication by `scale`.
        scale: Float that multiplies the learning rate of every step. Defaults to 1.
        cosine_steps: Number, steps from warm-up until the rate is 0. Defaults to None: no cosine.
            With `math.inf`, the rate stays at its peak.

    Call arguments:
        step: Integer scalar, number of past optimizer updates. At the first update, `step` is 0.

    Returns:
        The learning rate, a float32 scalar.

    Raises:
        ValueError: If both `d_model` and `peak` are given, or if neither is given.

    Source:
        Vaswani et al., 2017, Attention Is All You Need, §5.3, equation 3. The cosine: Loshchilov
        and Hutter, 2017, SGDR: Stochastic Gradient Descent with Warm Restarts.
    """

    def __init__(
        self,
        d_model: int | None = None,
        warmup_steps: int = 4000,
        peak: float | None = None,
        scale: float = 1.0,
        cosine_steps: float | None = None,
    ) -> None:
        super().__init__()
        if (d_model is None) == (peak is None):
            raise ValueError(
                "Exactly one of `d_model` and `peak` must be given. "
                f"Received: d_model={d_model}, peak={peak}"
            )
        highest: Any = peak if d_model is None else (d_model * warmup_steps) ** -0.5
        self._highest = float(scale * highest)
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.peak = peak
        self.scale = scale
        self.cosine_steps = cosine_steps

    def __call__(self, step: int | Tensor) -> Tensor:
        update = ops.cast(step, "float32") + 1.0
        if self.cosine_steps:
            decayed = ops.clip((update - self.warmup_steps) / self.cosine_steps, 0.0, 1.0)
            decay = 0.5 + 0.5 * ops.cos(math.pi * decayed)
        else:
            decay = ops.sqrt(self.warmup_steps / update)
        return self._highest * ops.minimum(update / self.warmup_steps, decay)

    def get_config(self) -> dict[str, Any]:
        names = ("d_model", "warmup_steps", "peak", "scale", "cosine_steps")
        return {x: getattr(self, x) for x in names}


_Base: Any = object  # an optimizer of Keras


class StepOptimizer(_Base):
    """Changes an optimizer of Keras as `TransformerAdam` says."""

    epsilon: float

    def build(self, variables: list[Any]) -> None:
        if not self.built:
            # A smaller epsilon would be 0 in float16, and the update of a weight without gradient
            # 0 / 0.
            smallest = [np.finfo(x.dtype).tiny for x in variables if x.dtype == "float16"]
            if smallest and "epsilon" in vars(self):
                self.epsilon = max(self.epsilon, *map(float, smallest))
            super().build(variables)
            self.gradient_norm = self.add_variable(
                (), dtype="float32", aggregation="only_first_replica", name="gradient_norm"
            )
            for variable, average in averaged_weights(self):
                average.assign(ops.copy(variable))

    def _get_current_learning_rate(self) -> Any:
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()

    def _clip_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """Stores the norm of the gradients, and returns the clipped gradients.

        Keras uses them once per optimizer step, after gradient accumulation.
        """
        # A sparse gradient of TensorFlow may contain a row of the matrix twice. `reshape` makes the
        # gradient dense, which sums these two. Then `update_step` squares the sum.
        dense = [ops.reshape(x, ops.shape(x)) for x in grads]
        exact = [ops.cast(x, "float32") for x in dense]
        norm = global_norm(exact)
        self.gradient_norm.assign(norm)
        if not self.global_clipnorm:
            return super()._clip_gradients(dense)
        scale = self.global_clipnorm / ops.maximum(norm, self.global_clipnorm)
        return [gradient * scale for gradient in exact]

    def _backend_update_step(self, *given: Any) -> None:
        # On JAX, Keras calls this method for every micro-batch. Keras keeps only the updates after
        # the last micro-batch of an optimizer step.
        super()._backend_update_step(*given)
        self._update_averages()

    def _update_averages(self) -> None:
        if not self.use_ema:
            return
        step = ops.cast(self.iterations + 1, "float32")
        decay = math.log(max(self.ema_momentum, 1e-30))
        # 1 + momentum + momentum^2 + ..., one term per step; a geometric series unless it is 1
        total = ops.expm1(decay * step) / math.expm1(decay) if decay else step
        for variable, average in averaged_weights(self):
            difference = ops.stop_gradient(variable - average)
            average.assign(average + difference / ops.cast(total, average.dtype))

    def _update_model_variables_moving_average(self, _: Any) -> None:
        """Does nothing, because Keras calls this method for each micro-batch, not for each step."""

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        """Sets the weights to copies of the averages. JAX would donate a shared buffer twice."""
        for variable, average in averaged_weights(self):
            variable.assign(ops.copy(average))


def _of_backend(optimizer: Any) -> Any:
    """Returns the class that Keras makes. On PyTorch, some optimizers have a faster subclass."""
    return type(optimizer.__new__(optimizer))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerAdam(StepOptimizer, _of_backend(keras.optimizers.Adam)):  # type: ignore[misc]
    """Implements Adam with β₁ = 0.9, β₂ = 0.98 and ε = 1e-9 (§5.3).

    `TransformerAdam` differs from `keras.optimizers.Adam` in its defaults and in these points:

    - A learning-rate schedule gets the number of optimizer steps, not that of micro-batches.
    - The variable `gradient_norm` is the global norm of the last step's gradient before clipping.
    - If a batch contains a token twice, the two gradients of the token's embedding are first
      summed. Then the sum is squared. Keras on TensorFlow squares the two gradients separately.
    - With `use_ema`, the moving averages of the weights are updated once per optimizer step. After
      t steps, an average is the weighted mean of the values after steps 1 to t, without the initial
      one. The weight of the value after step i is `ema_momentum ** (t - i)`. Before the first step,
      the averages are the weights. In Keras, they are 0.

    Example:

    ```python
    optimizer = TransformerAdam(TransformerSchedule(d_model=512), gradient_accumulation_steps=2)
    ```

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`.
        beta_1, beta_2: Floats, decay rates of the first and of the second moment.
        epsilon: Float, added to the square root of the second moment.
        **kwargs: Other arguments of `keras.optimizers.Adam`.

    Source:
        Kingma and Ba, 2015, Adam: A Method for Stochastic Optimization.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.98,
        epsilon: float = 1e-9,
        name: str = "adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs)

    def _backend_update_step(
        self,
        grads: list[Tensor],
        trainable_variables: list[keras.Variable],
        learning_rate: Tensor,
    ) -> None:
        if not is_on_cuda() or self.amsgrad:
            super()._backend_update_step(grads, trainable_variables, learning_rate)
            return
        # On a GPU of PyTorch, one kernel for all weights.
        indices = [self._get_variable_index(x) for x in trainable_variables]
        moments = self._momentums, self._velocities
        first, second = ([x[i].value for i in indices] for x in moments)
        weights = [x.value for x in trainable_variables]
        step = ops.cast(self.iterations + 1, "float32")
        # The learning rate, times the correction for moments that start at 0.
        power_1, power_2 = (
            ops.power(ops.cast(x, "float32"), step) for x in (self.beta_1, self.beta_2)
        )
        size = ops.cast(learning_rate, "float32") * ops.sqrt(1 - power_2) / (1 - power_1)
        fused_adam(weights, grads, first, second, size, self)
        self._update_averages()


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerLion(StepOptimizer, _of_backend(keras.optimizers.Lion)):  # type: ignore[misc]
    """Implements Lion, with the changes of `TransformerAdam`."""


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerMuon(StepOptimizer, keras.optimizers.Muon):
    """Implements Muon, with the changes of `TransformerAdam`.

    The matrices of linear maps are updated by Muon; vectors, embeddings, output vectors and the
    tables of positions by AdamW. Kernels with more than two axes, such as those of convolutions,
    are updated by AdamW, too.

    Source:
        Jordan et al., 2024, Muon: An optimizer for hidden layers in neural networks.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"exclude_layers": ["relative_attention_bias"], **kwargs})


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerScheduleFree(StepOptimizer, keras.optimizers.ScheduleFreeAdamW):
    """Implements schedule-free AdamW, with the changes of `TransformerAdam`.

    The mean of the steps' results takes the place of a moving average: `use_ema` is always true,
    and `fit` validates the means and ends with them. Weight decay is part of the step, not of the
    mean. Keras's own class computes another mean on PyTorch and TensorFlow, where an assignment
    changes a tensor that it has read before.

    Source:
        Defazio et al., 2024, The Road Less Scheduled, algorithm 1 and appendix A.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "use_ema": True})

    def _apply_weight_decay(self, variables: list[keras.Variable]) -> None:
        """Does nothing, because `update_step` does it."""

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        index = self._get_variable_index(variable)
        result, mean = self._momentums[index], self._model_variables_moving_average[index]
        if self.weight_decay and self._use_weight_decay(variable):
            rate = ops.cast(learning_rate * self.weight_decay, variable.dtype)
            result.assign(result - rate * variable)
        super().update_step(gradient, variable, learning_rate)
        mean.assign(mean + (result - mean) / ops.cast(self.iterations + 1, mean.dtype))
        variable.assign(result + self.beta_1 * (mean - result))

    def _update_averages(self) -> None:
        """Does nothing, because `update_step` does it."""


# The values of `training.optimizer`. Adam with weight decay is AdamW.
OPTIMIZERS: dict[str, Any] = {
    "adam": TransformerAdam,
    "adamw": TransformerAdam,
    "muon": TransformerMuon,
    "schedule_free": TransformerScheduleFree,
    "lion": TransformerLion,
}


@contextmanager
def ema_as_weights(model: keras.Model) -> Iterator[None]:
    """Gives the model its EMA weights inside the `with` block, if its optimizer has `use_ema`."""

    def exchange() -> None:
        for variable, average in averaged_weights(inner_optimizer(model)):
            value = np.array(ops.convert_to_numpy(variable))
            variable.assign(average)
            average.assign(value)

    exchange()
    try:
        yield
    finally:
        exchange()


def averaged_weights(
    optimizer: keras.Optimizer,
) -> list[tuple[keras.Variable, keras.Variable]]:
    """Returns the pairs of a weight and its moving average. There are none without `use_ema`."""
    if not optimizer.use_ema:
        return []
    averages = optimizer._model_variables_moving_average
    return list(zip(optimizer._trainable_variables, averages, strict=True))


def inner_optimizer(model: keras.Model) -> Any:
    """Returns the optimizer of a compiled model, without the `LossScaleOptimizer` around it."""
    is_scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    return model.optimizer.inner_optimizer if is_scaled else model.optimizer
