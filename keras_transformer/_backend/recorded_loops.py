"""Records a step of a loop on PyTorch, and replays its operations without the code of Keras."""

import functools
import threading
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer._backend.cuda_graphs import MOST_GRAPHS, copy, shape_and_dtype
from keras_transformer._backend.recorder import Program, Recorder

# Steps of loops with the same shapes before the next such loop is recorded. A recording takes as
# long as about 6 steps, and then saves half of each step (32 sentences) or three quarters (one).
STEPS_BEFORE = 16


class RecordedLoops:
    """Runs loops on PyTorch, see `compile_function.while_loop`.

    The first loops with new shapes run as they are, so the first translation takes no longer. Then
    the operations of one step are recorded. All later steps repeat these operations, so results are
    equal, bit for bit. They read the weights that the model has then. A step that reads values of
    tensors in Python can't be repeated.

    If `is_compiled`, a step is recorded and compiled before the first loop, and rounds differently.
    """

    def __init__(self, is_compiled: bool) -> None:
        self._step = functools.lru_cache(MOST_GRAPHS)(lambda _: _Step(is_compiled))

    def run(self, steps_left: Any, body: Any, carried: Any, given: Any, name: Any) -> Any:
        key = name, f"{keras.tree.map_structure(shape_and_dtype, (given, carried))}"
        step = self._step(key)
        fixed, leaves = map(keras.tree.flatten, (given, carried))

        def function(*leaves: Any) -> list[Any]:
            inner = keras.tree.pack_sequence_as((given, carried), leaves)
            new = body(inner[0], *inner[1])
            return [*keras.tree.flatten(new), steps_left(*new)]

        left = steps_left(*carried)
        while left:
            *leaves, left = step.run(function, [*fixed, *leaves])
        return keras.tree.pack_sequence_as(carried, leaves)


class _Step:
    """A step of loops with the same shapes. It may be used by several threads."""

    def __init__(self, is_compiled: bool) -> None:
        self._is_compiled = is_compiled
        self._steps_before = 0 if is_compiled else STEPS_BEFORE  # negative: it has been recorded
        self._program: Program | None = None
        self._lock = threading.Lock()

    def run(self, function: Program, leaves: list[Any]) -> Sequence[Any]:
        """Computes `function(*leaves)`: the new values of the last leaves, and the steps left."""
        with self._lock:
            if self._steps_before == 0:
                self._record(function, [*map(copy, leaves)])
            self._steps_before -= 1
        return (self._program or function)(*leaves)

    def _record(self, function: Program, leaves: list[Any]) -> None:
        recorder = Recorder(leaves)
        results = recorder.run(function)
        after = [*leaves[: 1 - len(results)], *results[:-1]]
        if [*map(shape_and_dtype, leaves)] == [*map(shape_and_dtype, after)]:
            self._program = recorder.program(results, self._is_compiled)
