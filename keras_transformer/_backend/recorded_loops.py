"""Records a step of a loop on PyTorch, and replays its operations without the code of Keras."""

import functools
import threading
from dataclasses import dataclass, field
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
        self._is_compiled = is_compiled
        self._step = functools.lru_cache(MOST_GRAPHS)(
            lambda _: _Step(0 if is_compiled else STEPS_BEFORE)
        )

    def run(self, steps_left: Any, body: Any, carried: Any, given: Any, name: Any) -> Any:
        key = name, f"{keras.tree.map_structure(shape_and_dtype, (given, carried))}"
        step = self._step(key)
        left = steps_left(*carried)
        while left and step.before > 0:
            step.before -= 1
            carried = body(given, *carried)
            left = steps_left(*carried)
        if not left:
            return carried
        fixed, leaves = map(keras.tree.flatten, (given, carried))

        def function(*leaves: Any) -> list[Any]:
            inner = keras.tree.pack_sequence_as((given, carried), leaves)
            new = body(inner[0], *inner[1])
            return [*keras.tree.flatten(new), steps_left(*new)]

        with step.lock:
            if not step.is_recorded:
                step.is_recorded = True
                step.program = self._recorded([*map(copy, (*fixed, *leaves))], function)
        program = step.program or function
        while left:
            *leaves, left = program(*fixed, *leaves)
        return keras.tree.pack_sequence_as(carried, leaves)

    def _recorded(self, leaves: list[Any], function: Program) -> Program | None:
        """Returns the recorded step, or None if it can't be repeated.

        Of the leaves, it returns new values for the last ones, and the steps left.
        """
        recorder = Recorder(leaves)
        results = recorder.run(function)
        after = [*leaves[: 1 - len(results)], *results[:-1]]
        is_steady = [*map(shape_and_dtype, leaves)] == [*map(shape_and_dtype, after)]
        return recorder.program(results, self._is_compiled) if is_steady else None


@dataclass
class _Step:
    """A step of loops with the same shapes. Several threads may use it."""

    before: float  # steps before the recording
    is_recorded: bool = False
    program: Program | None = None  # None also of a step that can't be repeated
    lock: Any = field(default_factory=threading.Lock)
