"""Contains code that differs by backend. This file: processes, and data for `model.fit`."""

import gc
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import keras

BACKENDS = ("tensorflow", "jax", "torch")
_SECONDS_TO_END = 5


def installed_backends() -> list[str]:
    """Returns the names of the installed backends."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


@contextmanager
def without_tensorflow() -> Iterator[None]:
    """Prevents Keras from importing TensorFlow within this context.

    The context has no effect if TensorFlow is the backend or is already imported. When Keras saves
    a model or sets the random seed, it imports TensorFlow to find out whether TensorFlow is
    installed, which takes seconds and hundreds of megabytes of memory.
    """
    from keras.src.utils.module_utils import tensorflow

    if keras.config.backend() == "tensorflow" or "tensorflow" in sys.modules:
        yield
        return
    before, tensorflow._available = tensorflow._available, False
    try:
        yield
    finally:
        tensorflow._available = before


@contextmanager
def child_process(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Starts a process for a `with` block, and ends it if an error or Ctrl-C ends the block.

    The process has its own session, so that Ctrl-C in a terminal reaches only this process. This
    process then sends SIGINT, after which a Python process also ends the processes that it has
    started, and SIGKILL if the process goes on for 5 seconds. `options` are arguments of `Popen`.
    """
    with subprocess.Popen(words, start_new_session=True, **options) as child:
        try:
            yield child
        except BaseException:
            for number in (signal.SIGINT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_SECONDS_TO_END)
                    break
            raise


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
