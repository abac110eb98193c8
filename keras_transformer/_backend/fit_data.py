"""Batches in the form that `model.fit` takes them."""

from collections.abc import Iterable
from typing import Any

from keras_transformer.data.batch_plan import Batch


def fit_data(batches: Iterable[Batch]) -> Any:
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
        batches: `(inputs, labels, sample_weight)` as `BatchPlan.batch` returns them.

    Returns:
        A `tf.data.Dataset` on TensorFlow, else a generator. It can be used up once.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        return (batch for batch in batches)

    import tensorflow as tf

    ids = tf.TensorSpec((None, None), tf.int32)
    weights = tf.TensorSpec((None, None), tf.float32)
    signature = ({"source_ids": ids, "target_ids": ids}, ids, weights)
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE)
