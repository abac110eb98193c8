"""Compiles training steps of PyTorch with `torch.compile`."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import keras
import torch
from keras import ops
from torch._dynamo import nonstrict_trace
from torch._guards import detect_fake_mode

from keras_transformer._backend.compile_graph import compile_graph
from keras_transformer._backend.cuda_graphs import Recordable

# Dynamo compiles no further shapes of batches after 8. A `BatchPlan` may have more.
_MOST_SHAPES = 64


class CompiledStep:
    """The training step of a Keras model on PyTorch, with loss and gradients as compiled programs.

    The forward pass, the loss and the metrics are one function without side effects, as Keras has
    it on JAX: it takes the values of all variables and returns the new ones. `torch.compile` traces
    the operations of PyTorch in it, not the Python code of Keras. Each shape of batches is compiled
    when it first occurs. The optimizer runs eagerly, so a step may decide in Python what to do with
    the gradients. A call does what `model.train_step` does with a batch of arrays and None.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._trainable = list(model.trainable_variables)
        known = {id(variable) for variable in self._trainable}
        candidates = [*model.non_trainable_variables, *model.metrics_variables]
        self._others = list({id(x): x for x in candidates if id(x) not in known}.values())
        self._programs: dict[str, Callable[..., Any]] = {}  # by the structure of batches

    def __call__(self, batch: object) -> dict[str, torch.Tensor]:
        is_given = keras.tree.map_structure(lambda x: x is not None, batch)
        arrays = [ops.convert_to_tensor(x) for x in keras.tree.flatten(batch) if x is not None]
        program = self._programs.get(f"{is_given}") or self._compile(is_given)
        weights = [variable.value for variable in self._trainable]
        values = [variable.value.detach() for variable in self._others]
        for weight in weights:
            weight.grad = None
        with torch._dynamo.config.patch(recompile_limit=_MOST_SHAPES):
            loss, new_values, logs = program(weights, values, arrays)
        self._model.optimizer.scale_loss(loss).backward()
        with torch.no_grad(), Recordable():
            _assign(values, new_values)
            self._model.optimizer.apply([x.grad for x in weights], self._trainable)
        return logs

    def _compile(self, is_given: object) -> Callable[..., Any]:
        """Compiles the step for batches with arrays where `is_given`, as Dynamo gives no None."""

        def forward(
            weights: list[torch.Tensor], values: list[torch.Tensor], arrays: list[torch.Tensor]
        ) -> Any:
            rest = iter(arrays)
            batch = keras.tree.map_structure(lambda x: next(rest) if x else None, is_given)
            return self._forward(weights, values, batch)

        self._programs[f"{is_given}"] = _compiled(forward)
        return self._programs[f"{is_given}"]

    def _forward(
        self, weights: list[torch.Tensor], values: list[torch.Tensor], batch: object
    ) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor]]:
        """Returns the loss, the new values of the other variables, and the metrics."""
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        variables = [*self._trainable, *self._others]
        mapping = list(zip(variables, [*weights, *values], strict=True))
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            y_pred = model(x, **({"training": True} if model._call_has_training_arg else {}))
            model._losses_override = list(model.losses)  # as in a step of Keras on JAX
            loss = model._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )
            model._losses_override = []
            rows = next(x for x in keras.tree.flatten(x) if x is not None).shape[0]
            model._loss_tracker.update_state(loss.detach(), sample_weight=rows)
            logs = model.compute_metrics(x, y, y_pred, sample_weight)
        found = [scope.get_current_value(variable) for variable in self._others]
        new = [old if value is None else value for old, value in zip(values, found, strict=True)]
        return loss, [x.detach() for x in new], {name: x.detach() for name, x in logs.items()}


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function for each combination of shapes."""
    traced = nonstrict_trace(function)

    def call(*arguments: object) -> Any:
        return traced(*arguments)

    # Dynamo keeps its programs with the code of a function. Without a copy of its own, a model with
    # weights of equal shapes would run the programs of another model.
    own = FunctionType(call.__code__.replace(), globals(), "call", None, call.__closure__)
    return torch.compile(own, fullgraph=True, dynamic=False, backend=_backend)


def _backend(graph: Any, inputs: Any) -> Any:
    # A regularizer of Keras, for example, keeps a number as a tensor, which is no input.
    detect_fake_mode(inputs).allow_non_fake_inputs = True
    # The graph on which this cache depends does not tell one function from another.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        return compile_graph(graph, inputs)


def _assign(tensors: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copies `values` to `tensors`, except those that a step has left as they were."""
    pairs = [(a, b) for a, b in zip(tensors, values, strict=True) if a.data_ptr() != b.data_ptr()]
    if pairs:
        torch._foreach_copy_(*zip(*pairs, strict=True))
