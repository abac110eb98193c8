"""Batches in the form that `model.fit` takes."""

import itertools
from collections.abc import Iterable
from typing import Any


def fit_data(batches: Iterable[Any], model: Any = None) -> Any:
    """Prepares batches of varying widths for `model.fit` and `model.evaluate`.

    If the first two batches of a generator have the same width, Keras on TensorFlow assumes that
    all have, and fails at the first one that differs. A `tf.data.Dataset` can state that widths
    vary. The other backends accept a generator as it is.

    Example:

    ```python
    model.fit(fit_data(plan.batches()), steps_per_epoch=1_000, shuffle=False)
    batches = evaluation_batches(store, tokens_per_batch=4_096)
    model.evaluate(fit_data(batches), steps=len(batches))
    ```

    Args:
        batches: `(inputs, labels)` or `(inputs, labels, sample_weight)`, nested NumPy arrays of the
            same structure, dtypes and ranks in every batch, such as `BatchPlan.batches` gives.
        model: The functional model that takes the batches. Only the axes vary that have no fixed
            size in its inputs or outputs. Defaults to None: every axis varies.

    Returns:
        A `tf.data.Dataset` on TensorFlow, else a generator. It can be iterated over once.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        return (batch for batch in batches)

    import tensorflow as tf

    iterator = iter(batches)
    first = next(iterator)
    varying = _varying_axes(model)

    def specification(x: Any) -> Any:
        shape = [None if varying is None or i in varying else n for i, n in enumerate(x.shape)]
        return tf.TensorSpec(shape, x.dtype)

    signature = keras.tree.map_structure(specification, first)
    whole = itertools.chain([first], iterator)
    dataset = tf.data.Dataset.from_generator(lambda: whole, output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _varying_axes(model: Any) -> set[int] | None:
    """Axes whose sizes vary between the batches of a model; None for all."""
    tensors = getattr(model, "inputs", None)
    if not tensors:
        return None if model is None else {0}
    shapes = [x.shape for x in (*tensors, *model.outputs)]
    return {0} | {axis for shape in shapes for axis, size in enumerate(shape) if size is None}
