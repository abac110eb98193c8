"""Records a step of a loop on PyTorch, and replays its operations without the code of Keras."""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from keras_transformer._backend.cuda_graphs import MOST_GRAPHS, shape_and_dtype
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
        self._steps: dict[Any, _Step] = {}
        self._is_compiled = is_compiled

    def run(self, steps_left: Any, body: Any, carried: Any, given: Any, name: Any) -> Any:
        key = name, f"{keras.tree.map_structure(shape_and_dtype, (given, carried))}"
        # The last one is the one used last.
        step = self._steps[key] = self._steps.pop(key, _Step())
        if len(self._steps) > MOST_GRAPHS:
            self._steps.pop(next(iter(self._steps)), step)
        left = steps_left(*carried)
        starts = step.steps_before > 0 and not self._is_compiled
        if step.program is None and (starts or not left):
            while left:
                carried = body(given, *carried)
                left = steps_left(*carried)
                step.steps_before -= 1
            return carried
        fixed, leaves = map(keras.tree.flatten, (given, carried))

        def function(*leaves: Any) -> list[Any]:
            inner = keras.tree.pack_sequence_as((given, carried), leaves)
            new = body(inner[0], *inner[1])
            return [*keras.tree.flatten(new), steps_left(*new)]

        if self._is_compiled:
            step.compile(function, [*fixed, *leaves])
        while left:
            run = step.program or functools.partial(step.record, function)
            *leaves, left = run(*fixed, *leaves)
        return keras.tree.pack_sequence_as(carried, leaves)


class _Step:
    """A step of loops with the same shapes. It may be used by several threads."""

    def __init__(self) -> None:
        self.steps_before: float = STEPS_BEFORE
        self.program: Program | None = None
        self._lock = threading.Lock()

    def compile(self, function: Callable[..., list[Any]], leaves: list[Any]) -> None:
        """Records the step with copies of the leaves, so that a loop may begin with a program."""
        with self._lock:
            if self.steps_before != math.inf:
                copies = (x.clone() if torch.is_tensor(x) else x for x in leaves)
                self.record(function, *copies, is_compiled=True)

    def record(
        self, function: Callable[..., Sequence[Any]], *leaves: Any, is_compiled: bool = False
    ) -> Sequence[Any]:
        """Computes `function(*leaves)`: the new values of the last leaves, and the steps left."""
        if self.steps_before == math.inf:  # A step is recorded once.
            return function(*leaves)
        self.steps_before = math.inf
        # Different tensors may be the same object, but not in every loop.
        before = [x.detach() if torch.is_tensor(x) else x for x in leaves]
        recorder = Recorder(before)
        results = recorder.run(function)
        after = [*before[: 1 - len(results)], *results[:-1]]
        if [*map(shape_and_dtype, before)] == [*map(shape_and_dtype, after)]:
            self.program = recorder.program(results, is_compiled)
        return results
