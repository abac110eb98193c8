"""Data for `model.fit` and `model.evaluate`."""

import gc
import itertools
from collections.abc import Iterable
from typing import Any

import keras


def fit_data(batches: Iterable[Any], model: Any = None) -> Any:
    """Prepares batches of varying sequence lengths for `model.fit` and `model.evaluate`.

    Keras on TensorFlow infers the shapes of all batches from the first two batches of a generator,
    so a later batch of another length may fail. A `tf.data.Dataset` can declare that lengths vary.

    Example:

    >>> model.fit(fit_data(plan.batches()), steps_per_epoch=1_000, shuffle=False)
    >>> batches = evaluation_batches(store, tokens_per_batch=4_096)
    >>> model.evaluate(fit_data(batches), steps=len(batches))

    Args:
        batches: Iterable of `(inputs, labels)` or `(inputs, labels, sample_weight)`, such as
            `BatchPlan.batches()`. All batches have the same nested structure, dtypes and ranks.
        model: The functional model that takes the batches. If a model is given, only two kinds of
            axes may vary in size: the batch axis, and axes whose size is None in an input or output
            of the model. Defaults to None, which lets all axes vary.

    Returns:
        A `tf.data.Dataset` on TensorFlow, otherwise a generator, for a single iteration.
    """
    if keras.config.backend() != "tensorflow":
        return (batch for batch in batches)
    import tensorflow as tf

    iterator = map(keras.tree.lists_to_tuples, batches)  # TensorFlow takes a list for one array.
    first = next(iterator)
    varying: set[int] | None = None if model is None else {0}
    if inputs := getattr(model, "inputs", None):
        shapes = [x.shape for x in (*inputs, *model.outputs)]
        varying = {0} | {i for shape in shapes for i, size in enumerate(shape) if size is None}

    def specification(x: Any) -> Any:
        shape = [None if varying is None or i in varying else n for i, n in enumerate(x.shape)]
        return tf.TensorSpec(shape, x.dtype)

    signature = keras.tree.map_structure(specification, first)
    whole = itertools.chain([first], iterator)
    dataset = tf.data.Dataset.from_generator(lambda: whole, output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE)


def end_iteration() -> None:
    """Ends the iterators of `fit_data` that are no longer used.

    TensorFlow logs an error about an iterator that Python's exit finds in a reference cycle.
    """
    if keras.config.backend() == "tensorflow":
        gc.collect()
