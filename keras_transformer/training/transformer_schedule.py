"""The learning rate of the Transformer (§5.3)."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step (§5.3).

    With `d_model` it is the schedule of the paper,

        rate = scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5),

    with `peak` the same curve, named by the rate it reaches at `warmup_steps`:

        rate = peak * min(sqrt(warmup_steps / step), step / warmup_steps).

    The first update is step 1, so the rate is never zero.

    Example:

    ```python
    schedule = TransformerSchedule(d_model=512)
    optimizer = keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    ```

    Under `gradient_accumulation_steps` Keras's optimizers pass the count of micro-batches; pass
    the schedule to `TransformerAdam`, which counts optimizer steps.

    Args:
        d_model: Integer, width of the model. Give this or `peak`.
        warmup_steps: Integer, at least 1, optimizer steps until the highest rate.
        peak: Float, the highest learning rate.
        scale: Float, factor on the whole curve.

    Call arguments:
        step: Integer scalar, optimizer updates made so far (0 before the first one).

    Returns:
        The learning rate, a float32 scalar.

    Raises:
        ValueError: If not exactly one of `d_model` and `peak` is given, or `warmup_steps` < 1.

    Source:
        Vaswani et al., 2017, Attention Is All You Need, §5.3, equation 3.
    """

    def __init__(
        self,
        d_model: int | None = None,
        warmup_steps: int = 4000,
        peak: float | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        if warmup_steps < 1:
            raise ValueError(
                f"`warmup_steps` must be at least 1. Received: warmup_steps={warmup_steps}"
            )
        if d_model is not None and peak is None:
            self._highest = scale * (d_model * warmup_steps) ** -0.5
        elif peak is not None and d_model is None:
            self._highest = scale * peak
        else:
            raise ValueError(
                "Exactly one of `d_model` and `peak` must be given. "
                f"Received: d_model={d_model}, peak={peak}"
            )
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.peak = peak
        self.scale = scale

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32") + 1.0
        decay = ops.sqrt(self.warmup_steps / step)
        return self._highest * ops.minimum(step / self.warmup_steps, decay)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "peak": self.peak,
            "scale": self.scale,
        }
