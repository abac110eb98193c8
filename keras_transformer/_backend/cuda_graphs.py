"""Runs the loops of searches on PyTorch as CUDA graphs, and lets PyTorch record such graphs."""

import functools
import threading
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch
from keras import ops
from torch.overrides import TorchFunctionMode

from keras_transformer._backend.recorder import Program, Recorder

MOST_GRAPHS = 32

# Steps of a loop between two looks at whether it is over. For a look, Python waits for the GPU.
_STEPS_PER_LOOK = 4


class GraphedLoops:
    """Runs loops on PyTorch by CUDA graphs, see `compile_function.while_loop`.

    The first step of a loop with new shapes runs without a graph. Then one step is recorded, with
    tensors of its own, and all other steps replay it. A step that can't be recorded always runs
    without a graph. One object serves one function of one model, in one thread at a time.

    If `is_compiled`, the recorded step is compiled.
    """

    def __init__(self, is_compiled: bool) -> None:
        self._is_compiled = is_compiled
        self._loops: dict[Any, Any] = {}  # None if the loop can't be recorded
        self._recordable = Recordable({})
        self._lock = threading.Lock()
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, steps_left: Any, body: Any, carried: Any, given: Any, name: Any) -> Any:
        key = name, f"{keras.tree.map_structure(shape_and_dtype, (given, carried))}"
        with self._lock, self._recordable:
            if key in self._loops:
                loop = self._loops.pop(key)
                self._recordable.cast_again()
            elif steps_left(*carried):
                loop = self._record(steps_left, body, carried, given)
            else:
                return carried
            self._loops[key] = loop  # the last one is the one used last
            if len(self._loops) > MOST_GRAPHS:
                del self._loops[next(iter(self._loops))]
            if loop is None:
                return ops.while_loop(steps_left, functools.partial(body, given), carried)
            return loop((given, carried))

    def _record(self, steps_left: Any, body: Any, carried: Any, given: Any) -> Any:
        """Records a step of a loop. Returns a function that runs the loop, or None if that fails.

        The graph reads and changes tensors of its own, among them the steps that are left.
        """
        first = given, carried
        given, carried = own = keras.tree.map_structure(copy, first)
        left = steps_left(*carried)
        leaves = [*filter(torch.is_tensor, keras.tree.flatten(own)), left]

        def begin(given_and_carried: Any) -> None:
            _assign(own, given_and_carried)
            left.copy_(steps_left(*carried))

        def step(*_: Any) -> Sequence[Any]:
            _assign(own, (given, body(given, *carried)))
            left.copy_(steps_left(*carried))
            return ()

        self._recordable.cast_again()
        try:
            graph = self._graph(step, leaves)
        except RuntimeError:
            return None
        if self._is_compiled:
            begin(first)
            recorder = Recorder(leaves)
            program = recorder.program(recorder.run(step), is_compiled=True)
            begin(first)
            graph = self._graph(program or step, leaves)

        def run(given_and_carried: Any) -> Any:
            begin(given_and_carried)
            while most := left.item():
                for _ in range(min(most, _STEPS_PER_LOOK)):
                    graph.replay()
            return keras.tree.map_structure(copy, carried)

        return run

    def _graph(self, step: Program, leaves: Sequence[Any]) -> torch.cuda.CUDAGraph:
        step(*leaves)  # without a graph, because the first step chooses and loads kernels
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
            step(*leaves)
        return graph


def _assign(tensors: Any, values: Any) -> None:
    """Copies `values` to `tensors`, except those that are the same memory."""
    own, new = ([x for x in keras.tree.flatten(y) if torch.is_tensor(x)] for y in (tensors, values))
    if [shape_and_dtype(x) for x in own] != [shape_and_dtype(x) for x in new]:
        raise RuntimeError("A step changes the shape of a tensor.")
    memories = {x.untyped_storage().data_ptr() for x in own}
    pairs = [(x, y) for x, y in zip(own, new, strict=True) if x.data_ptr() != y.data_ptr()]
    # First the copies: a step may exchange two tensors.
    new = [y.clone() if y.untyped_storage().data_ptr() in memories else y for _, y in pairs]
    for (x, _), y in zip(pairs, new, strict=True):
        x.copy_(y)


class Recordable(TorchFunctionMode):
    """Makes 0-d tensors of numbers on the GPU in the `with` block.

    Otherwise, PyTorch would copy them from the CPU, which a CUDA graph can't record. With `casts`,
    it also casts each weight only once, and keeps the result in this dict.
    """

    def __init__(self, casts: dict[Any, Any] | None = None) -> None:
        super().__init__()
        self._casts = casts

    def cast_again(self) -> None:
        """Updates the casts of all weights."""
        for weight, value in (self._casts or {}).values():
            value.copy_(weight)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        makes_tensor = function in (torch.as_tensor, torch.tensor)
        if makes_tensor and not isinstance(args[0], torch.Tensor) and np.ndim(args[0]) == 0:
            number = args[0].item() if hasattr(args[0], "item") else args[0]
            return torch.full((), number, **kwargs)
        is_cast = function is torch.Tensor.to and isinstance(args[0], torch.nn.Parameter)
        if self._casts is None or not is_cast:
            return function(*args, **kwargs)
        key = id(args[0]), args[1:], tuple(kwargs.items())
        if key not in self._casts:
            self._casts[key] = args[0], function(*args, **kwargs)
        return self._casts[key][1]


def copy(x: Any) -> Any:
    """Returns a copy of a tensor, and anything else as it is."""
    return x.clone() if torch.is_tensor(x) else x


def shape_and_dtype(x: Any) -> Any:
    """Returns the shape and the dtype of a tensor or an array, and anything else as it is."""
    if not hasattr(x, "dtype"):
        return x
    return tuple(x.shape), keras.backend.standardize_dtype(x.dtype)
