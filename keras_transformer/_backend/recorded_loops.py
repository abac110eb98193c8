"""Records a step of a loop on PyTorch, and replays its operations without the code of Keras."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from keras_transformer._backend.cuda_graphs import MOST_GRAPHS, shape_and_dtype

# Steps of loops with the same shapes before the next such loop is recorded. A recording takes as
# long as about 6 steps, and then saves half of each step (32 sentences) or three quarters (one).
STEPS_BEFORE = 16

# These read values without an operation of PyTorch.
_READS = {torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist}
_READS |= {torch.Tensor.__dlpack__, torch.Tensor.data.__get__}


class RecordedLoops:
    """Runs loops on PyTorch, see `compile_function.while_loop`.

    The first loops with new shapes run as they are, so the first translation takes no longer. Then
    the operations of one step are recorded. All later steps repeat these operations, so results are
    equal, bit for bit. They read the weights that the model has then. A step that reads values of
    tensors in Python can't be repeated.
    """

    def __init__(self) -> None:
        self._steps: dict[Any, _Step] = {}

    def run(self, steps_left: Any, body: Any, carried: Any, given: Any, name: Any) -> Any:
        key = name, f"{keras.tree.map_structure(shape_and_dtype, (given, carried))}"
        # The last one is the one used last.
        step = self._steps[key] = self._steps.pop(key, _Step())
        if len(self._steps) > MOST_GRAPHS:
            self._steps.pop(next(iter(self._steps)), step)
        left = steps_left(*carried)
        if step.program is None and (step.steps_before > 0 or not left):
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

        while left:
            run = step.program or step.record
            *leaves, left = run(function, [*fixed, *leaves])
        return keras.tree.pack_sequence_as(carried, leaves)


class _Step:
    """A step of loops with the same shapes. It may be used by several threads."""

    def __init__(self) -> None:
        self.steps_before: float = STEPS_BEFORE
        self.program: Callable[..., list[Any]] | None = None

    def record(self, function: Callable[..., list[Any]], leaves: list[Any]) -> list[Any]:
        """Computes `function(*leaves)`: the new values of the last leaves, and the steps left."""
        if self.steps_before == math.inf:  # A step is recorded once.
            return function(*leaves)
        self.steps_before = math.inf
        # Different tensors may be the same object, but not in every loop.
        leaves = [x.detach() if torch.is_tensor(x) else x for x in leaves]
        recorder = _Recorder(leaves)
        with recorder, _Reads(recorder):
            results = function(*leaves)
        after = [*leaves[: 1 - len(results)], *results[:-1]]
        if [*map(shape_and_dtype, leaves)] == [*map(shape_and_dtype, after)]:
            self.program = recorder.program(results)
        return results


class _Recorder(TorchDispatchMode):
    """Runs operations and writes them to a graph."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        super().__init__()
        self.can_repeat = all(x is None or torch.is_tensor(x) for x in leaves)
        self._graph = torch.fx.Graph()
        self._nodes = WeakTensorKeyDictionary()
        self._constants: list[torch.Tensor] = []  # such as weights
        for index, x in enumerate(leaves):
            node = self._graph.placeholder(f"x{index}")
            if torch.is_tensor(x):
                self._nodes[x] = node

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.lift_fresh.default:  # A step may change a constant in place.
            function = torch.ops.aten.lift_fresh_copy.default
        result = function(*args, **(kwargs or {}))
        if args and result is args[0] and not function._schema.is_mutable:
            return result  # such as a cast to the dtype that the tensor has
        node = self._graph.call_function(function, *tree_map(self._node, (args, kwargs or {})))
        results = list(result) if isinstance(result, list | tuple) else [result]
        is_known = torch.Tag.dynamic_output_shape not in function.tags
        self.can_repeat &= is_known and all(map(torch.is_tensor, results))
        if torch.is_tensor(result):
            self._nodes[result] = node
        else:
            for index, x in enumerate(filter(torch.is_tensor, results)):
                self._nodes[x] = self._graph.call_function(operator.getitem, (node, index))
        return result

    def _node(self, x: Any) -> Any:
        """Returns the node of a tensor, and anything else as it is."""
        if torch.is_tensor(x) and x not in self._nodes:
            self._nodes[x] = self._graph.placeholder(f"constant{len(self._constants)}")
            self._constants.append(x)
        return self._nodes[x] if torch.is_tensor(x) else x

    def program(self, results: Sequence[Any]) -> Callable[..., list[Any]] | None:
        """Returns a function that repeats the operations, or None if that is impossible."""
        if not self.can_repeat:
            return None
        self._graph.output([self._node(x) for x in results])
        forward = torch.fx.GraphModule(torch.nn.Module(), self._graph).forward
        constants = self._constants
        return lambda _, leaves: forward(*leaves, *constants)


class _Reads(TorchFunctionMode):
    """Tells a recorder when Python reads the values of a tensor."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self._recorder.can_repeat &= function not in _READS
        return function(*args, **(kwargs or {}))
