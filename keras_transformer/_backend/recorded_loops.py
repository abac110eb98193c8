"""Records a step of a loop on PyTorch, and replays its operations without the code of Keras."""

import functools
import threading
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
        left = steps_left(*carried)
        while left and step.is_early():
            carried = body(given, *carried)
            left = steps_left(*carried)
        if not left:
            return carried
        fixed, leaves = map(keras.tree.flatten, (given, carried))

        def function(*leaves: Any) -> list[Any]:
            inner = keras.tree.pack_sequence_as((given, carried), leaves)
            new = body(inner[0], *inner[1])
            return [*keras.tree.flatten(new), steps_left(*new)]

        program = step.program([*fixed, *leaves], function)
        while left:
            *leaves, left = program(*fixed, *leaves)
        return keras.tree.pack_sequence_as(carried, leaves)


class _Step:
    """A step of loops with the same shapes. It may be used by several threads."""

    def __init__(self, is_compiled: bool) -> None:
        self._is_compiled = is_compiled
        self._steps_before = 0 if is_compiled else STEPS_BEFORE
        self._is_recorded = False
        self._program: Program | None = None
        self._lock = threading.Lock()

    def is_early(self) -> bool:
        """Counts a step, and returns whether it comes before the recording."""
        self._steps_before -= 1
        return self._steps_before >= 0

    def program(self, leaves: list[Any], function: Program) -> Program:
        """Returns the recorded step, or `function` if it can't be recorded.

        Of the leaves, it returns new values for the last ones, and the steps left.
        """
        with self._lock:
            if not self._is_recorded:
                self._is_recorded = True
                self._program = self._recorded([*map(copy, leaves)], function)
        return self._program or function

    def _recorded(self, leaves: list[Any], function: Program) -> Program | None:
        recorder = Recorder(leaves)
        results = recorder.run(function)
        after = [*leaves[: 1 - len(results)], *results[:-1]]
        is_steady = [*map(shape_and_dtype, leaves)] == [*map(shape_and_dtype, after)]
        return recorder.program(results, self._is_compiled) if is_steady else None
