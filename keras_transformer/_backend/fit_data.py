"""Batches in the form that `model.fit` takes them."""

import itertools
from collections.abc import Iterable
from typing import Any


def fit_data(batches: Iterable[Any], model: Any = None) -> Any:
    """Make batches of changing widths fit for `model.fit` and `model.evaluate`.

    Keras on TensorFlow takes a width for fixed if the first two batches of a generator happen to
    agree in it, and fails at the first batch that differs; a `tf.data.Dataset` can say that widths
    change. The other backends take a generator as it is.

    Example:

    ```python
    model.fit(fit_data(plan.batches()), steps_per_epoch=1_000, shuffle=False)
    batches = evaluation_batches(store, tokens_per_batch=4_096)
    model.evaluate(fit_data(batches), steps=len(batches))
    ```

    Args:
        batches: `(inputs, labels)` or `(inputs, labels, sample_weight)`, nested NumPy arrays of the
            same structure, dtypes and ranks in every batch, such as `BatchPlan.batches` gives.
        model: A functional model that the batches are for. An axis then changes where the model's
            inputs or outputs have no fixed size. Defaults to None: every axis changes.

    Returns:
        A `tf.data.Dataset` on TensorFlow, else a generator. It can be used up once.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        return (batch for batch in batches)

    import tensorflow as tf

    iterator = iter(batches)
    first = next(iterator)
    changes = _changing_axes(model)

    def specification(x: Any) -> Any:
        shape = [None if changes is None or i in changes else n for i, n in enumerate(x.shape)]
        return tf.TensorSpec(shape, x.dtype)

    signature = keras.tree.map_structure(specification, first)
    whole = itertools.chain([first], iterator)
    dataset = tf.data.Dataset.from_generator(lambda: whole, output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _changing_axes(model: Any) -> set[int] | None:
    """Axes in which batches for a model differ; None for all."""
    tensors = getattr(model, "inputs", None)
    if not tensors:
        return None if model is None else {0}
    shapes = [x.shape for x in (*tensors, *model.outputs)]
    return {0} | {axis for shape in shapes for axis, size in enumerate(shape) if size is None}
