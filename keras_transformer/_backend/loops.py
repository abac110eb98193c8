"""Loops whose passes never overlap, and loops that change the shapes of what they carry."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops


def sequential_loop(count: Any, body: Callable[..., Any], begin: Sequence[Any]) -> tuple[Any, ...]:
    """Calls `body` with 0, 1, ..., `count` - 1, each time with what the last call returned.

    `keras.ops.fori_loop` and `while_loop` let TensorFlow, without XLA, begin up to ten passes
    before the first has ended, and so hold what ten of them compute. Here it holds what one does.

    Args:
        count: Passes, an int or an int32 tensor.
        body: Gets the index of the pass, an int32 tensor, and the tensors carried along, and
            returns these.
        begin: The tensors carried along, before the first pass.

    Returns:
        The tensors carried along, after the last pass.
    """

    def pass_of(index: Any, *carried: Any) -> tuple[Any, ...]:
        return index + 1, *body(index, *carried)

    def is_left(index: Any, *_: Any) -> Any:
        return index < count

    state = (ops.convert_to_tensor(0, "int32"), *begin)
    if keras.config.backend() != "tensorflow":
        return tuple(ops.while_loop(is_left, pass_of, state)[1:])
    import tensorflow as tf

    return tuple(tf.while_loop(is_left, pass_of, state, parallel_iterations=1)[1:])


def of_unknown_shape(tensor: Any) -> Any:
    """Lets a loop in a TensorFlow graph change the first axis and all axes of size 0.

    Returns:
        The tensor; in a TensorFlow graph with these axes unknown.
    """
    if keras.config.backend() != "tensorflow":
        return tensor
    import tensorflow as tf

    sizes = tensor.shape.as_list()
    shape = [size if size and axis else None for axis, size in enumerate(sizes)]
    return tf.compat.v1.placeholder_with_default(tensor, shape)
