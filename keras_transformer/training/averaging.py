"""Averaging of checkpoints (§6.1)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_transformer._backend.without_tensorflow import without_tensorflow
from keras_transformer._files import atomic_write
from keras_transformer.errors import UserError
from keras_transformer.training.checkpoint import load_checkpoint_model


def average_checkpoints(paths: Sequence[str | Path], output: str | Path) -> None:
    """Write a model whose weights are the mean of those of some checkpoints (§6.1).

    Sums are float64; `output` holds no optimizer state.

    Example:

    ```python
    average_checkpoints(run.checkpoints()[-5:], run.model_path)
    ```

    Args:
        paths: Folders of one or more checkpoints of the same model.
        output: The `.keras` file to write.

    Raises:
        UserError: If there is no checkpoint, one is damaged, or their weights do not match.
    """
    if not paths:
        raise UserError("there is no checkpoint to average")
    model = load_checkpoint_model(paths[0])
    totals = [np.asarray(weight, "float64") for weight in model.get_weights()]
    for path in paths[1:]:
        weights = load_checkpoint_model(path).get_weights()
        if [weight.shape for weight in weights] != [total.shape for total in totals]:
            raise UserError(f"{paths[0]} and {path} are checkpoints of different models")
        for total, weight in zip(totals, weights, strict=True):
            total += weight
    model.set_weights([total / len(paths) for total in totals])
    with atomic_write(output) as partial, without_tensorflow():
        model.save(partial)
