"""Records the operations of PyTorch in a function, to repeat them without the code of Keras."""

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

# These read values without an operation of PyTorch.
_READS = {torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist}
_READS |= {torch.Tensor.__dlpack__, torch.Tensor.data.__get__}

_tracing = threading.Lock()  # PyTorch traces in one thread at a time.

Program = Callable[..., Sequence[Any]]


class Recorder(TorchDispatchMode):
    """Runs a function of leaves, and writes its operations to a graph."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        super().__init__()
        self.can_repeat = all(x is None or torch.is_tensor(x) for x in leaves)
        self._leaves = leaves
        self._graph = torch.fx.Graph()
        self._nodes = WeakTensorKeyDictionary()
        self._constants: list[torch.Tensor] = []  # such as weights
        for index, x in enumerate(leaves):
            node = self._graph.placeholder(f"x{index}")
            if torch.is_tensor(x):
                self._nodes[x] = node

    def run(self, function: Program) -> Sequence[Any]:
        """Returns `function(*leaves)`."""
        with self, _Reads(self):
            return function(*self._leaves)

    def program(self, results: Sequence[Any], is_compiled: bool = False) -> Program | None:
        """Returns a function of leaves that repeats the operations, and returns `results`.

        With `is_compiled`, Inductor compiles the operations, and rounds differently. Instead of a
        function, returns None if the operations depend on values that Python reads.
        """
        if not self.can_repeat:
            return None
        self._graph.output([self._node(x) for x in results])
        graph, constants = torch.fx.GraphModule(torch.nn.Module(), self._graph), self._constants
        run = _compiled(graph, [*self._leaves, *constants]) if is_compiled else graph.forward
        return lambda *leaves: run(*leaves, *constants)

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


def _compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    # Inductor is not imported before, because that takes seconds.
    from keras_transformer._backend.compile_graph import compile_graph

    # A compiler can't change inference tensors.
    with _tracing, torch.inference_mode(False), torch.no_grad():
        inputs = [torch.empty_like(x.detach()) if torch.is_tensor(x) else x for x in inputs]
        return compile_graph(graph, inputs)


class _Reads(TorchFunctionMode):
    """Tells a recorder when Python reads the values of a tensor."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self._recorder.can_repeat &= function not in _READS
        return function(*args, **(kwargs or {}))
