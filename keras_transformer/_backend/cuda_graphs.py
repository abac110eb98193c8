"""Runs training steps and the loops of searches on PyTorch as CUDA graphs."""

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import torch
from keras import ops
from torch.overrides import TorchFunctionMode

_MOST_GRAPHS = 32

# Steps of a loop between two looks at whether it is over. For a look, Python waits for the GPU.
_STEPS_PER_LOOK = 4


class GraphedStep:
    """Runs training steps on PyTorch by CUDA graphs, which are recordings of a step's kernels.

    Python takes longer to start the kernels of a step than a GPU takes to run them. A graph starts
    all of them by one call. The first batch of each shape is trained without a graph, which
    compiles the step. The second is recorded, up to 32 shapes. With more, or if Python reads a
    value from the GPU in a step, it warns, and all steps run without a graph, or raises ValueError
    if `is_required` is True. Numbers that Python computes are constants of the recording.

    `step` trains `model` on a batch, a nested structure of arrays and None. It returns a dict of
    tensors, and changes other tensors in place only. A call takes an iterable of a batch.

    Source: "CUDA Graphs" in PyTorch's documentation.
    """

    def __init__(self, step: Callable[[Any], Any], model: Any, is_required: bool = False) -> None:
        self._step = step
        self._model = model
        self._is_required = is_required
        self._reason: str | None = None  # why steps can't be recorded
        self._recordings: dict[str, _Recording | None] = {}  # None after a shape's first batch
        self._stream = torch.cuda.Stream()
        # The graphs share their memory, because they never run at the same time.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, data: Any) -> dict[str, Any]:
        batch = next(iter(data))
        if self._reason is not None:
            return self._step(batch)
        key = f"{keras.tree.map_structure(_kind, batch)}"
        if key not in self._recordings:
            return self._first_step(key, batch)
        recording = self._recordings[key] or self._record(key, batch)
        if recording is None:
            return self._step(batch)
        for own, given in zip(*map(keras.tree.flatten, (recording.batch, batch)), strict=True):
            if own is not None:
                own.copy_(ops.convert_to_tensor(given))
        recording.graph.replay()
        return {name: value.clone() for name, value in recording.result.items()}

    def _first_step(self, key: str, batch: Any) -> dict[str, Any]:
        """Trains without a graph on the first batch of a shape."""
        if len(self._recordings) == _MOST_GRAPHS:
            self._give_up(f"the batches have more than {_MOST_GRAPHS} shapes")
            return self._step(batch)
        self._recordings[key] = None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._step(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        self._model.zero_grad()
        return result

    def _record(self, key: str, batch: Any) -> "_Recording | None":
        """Records the step of a batch, but does not make it. Returns None if that fails."""
        graph = torch.cuda.CUDAGraph()
        batch = keras.tree.map_structure(lambda x: x if x is None else ops.copy(x), batch)
        try:
            with torch.cuda.graph(graph, self._pool, self._stream):
                result = self._step(batch)
        except RuntimeError as error:
            # When `graph` ends after a failure, it raises another error, which says less.
            self._give_up(f"{error.__context__ or error}")
            return None
        self._model.zero_grad()  # Other graphs can use the memory of the gradients.
        self._recordings[key] = _Recording(graph, batch, result)
        return self._recordings[key]

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self._recordings.clear()
        self._model.zero_grad()
        if self._is_required:
            raise ValueError(
                "`jit_compile=True` records the training step as a CUDA graph on PyTorch, but this "
                f"step can't be recorded. Use `jit_compile=False`. The reason: {reason}"
            )
        warnings.warn(f"Training is slow: no CUDA graphs, because {reason}", stacklevel=2)


class _Recording(NamedTuple):
    """The graph of a training step, with the tensors that it reads and those that it makes."""

    graph: Any
    batch: Any
    result: dict[str, Any]


class GraphedLoops:
    """Runs loops on PyTorch by CUDA graphs, see `compile_function.while_loop`.

    The first step of a loop with new shapes runs without a graph. Then one step is recorded, with
    tensors of its own, and all other steps replay it. A step that can't be recorded always runs
    without a graph. Weights that are cast to another dtype are cast once per loop. One object
    serves one function of one model, in one thread at a time.
    """

    def __init__(self) -> None:
        self._loops: dict[Any, Any] = {}  # None if the loop can't be recorded
        self._recordable = Recordable({})
        self._lock = threading.Lock()
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, steps_left: Any, body: Any, carried: Any, given: Any, name: Any) -> Any:
        key = name, f"{keras.tree.map_structure(_kind, (given, carried))}"
        with self._lock, self._recordable:
            if key in self._loops:
                loop = self._loops.pop(key)
                self._recordable.cast_again()
            elif steps_left(*carried):
                loop = self._record(steps_left, body, carried, given)
            else:
                return carried
            self._loops[key] = loop  # the last one is the one used last
            if len(self._loops) > _MOST_GRAPHS:
                del self._loops[next(iter(self._loops))]
            if loop is None:
                return ops.while_loop(steps_left, functools.partial(body, given), carried)
            return loop((given, carried))

    def _record(self, steps_left: Any, body: Any, carried: Any, given: Any) -> Any:
        """Records a step of a loop. Returns a function that runs the loop, or None if that fails.

        The graph reads and changes tensors of its own, among them the steps that are left.
        """
        given, carried = own = keras.tree.map_structure(_copy, (given, carried))
        graph, left = torch.cuda.CUDAGraph(), steps_left(*carried)

        def step() -> None:
            _assign(own, (given, body(given, *carried)))
            left.copy_(steps_left(*carried))

        def run(given_and_carried: Any) -> Any:
            _assign(own, given_and_carried)
            left.copy_(steps_left(*carried))
            while most := left.item():
                for _ in range(min(most, _STEPS_PER_LOOK)):
                    graph.replay()
            return keras.tree.map_structure(_copy, carried)

        self._recordable.cast_again()
        try:
            step()  # without a graph, because the first step chooses and loads kernels
            with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
                step()
        except RuntimeError:
            return None
        return run


def _assign(tensors: Any, values: Any) -> None:
    """Copies `values` to `tensors`, except those that are the same memory."""
    own, new = ([x for x in keras.tree.flatten(y) if torch.is_tensor(x)] for y in (tensors, values))
    if [_kind(x) for x in own] != [_kind(x) for x in new]:
        raise RuntimeError("A step changes the shape of a tensor.")
    memories = {x.untyped_storage().data_ptr() for x in own}
    pairs = [(x, y) for x, y in zip(own, new, strict=True) if x.data_ptr() != y.data_ptr()]
    # First the copies: a step may exchange two tensors.
    new = [y.clone() if y.untyped_storage().data_ptr() in memories else y for _, y in pairs]
    for (x, _), y in zip(pairs, new, strict=True):
        x.copy_(y)


class Recordable(TorchFunctionMode):
    """Lets PyTorch do without copies from the CPU that a CUDA graph can't record.

    Makes 0-d tensors of numbers on the GPU. With `casts`, it also casts each weight only once, and
    keeps the result in this dict.
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


def recordable(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes a step that runs eagerly one that `GraphedStep` can record."""

    def run(batch: Any) -> Any:
        with Recordable():
            return step(batch)

    return run


def _copy(x: Any) -> Any:
    return x.clone() if torch.is_tensor(x) else x


def _kind(x: Any) -> Any:
    if not hasattr(x, "dtype"):
        return x
    return tuple(x.shape), keras.backend.standardize_dtype(x.dtype)
