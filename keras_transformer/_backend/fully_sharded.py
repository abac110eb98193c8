"""Splits weights and optimizer state of a Keras model over processes, with FSDP2 of PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from keras_transformer._backend.operations import whole_tensor


class _Unit(torch.nn.Module):
    """Weights that FSDP gathers together, before the layer or model that uses them is called."""

    def __init__(self, layer: Any, variables: list[Any]) -> None:
        super().__init__()
        self.layer, self.variables = [layer], variables  # in a list, the layer is no submodule
        self.own_call = layer.call
        self.weights = torch.nn.ParameterList([variable.value for variable in variables])
        self.units = torch.nn.ModuleList()
        vars(layer)["call"] = lambda *args, **kwargs: self(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.expose()
        return self.own_call(*args, **kwargs)

    def expose(self) -> None:
        """Gives the variables of Keras what FSDP holds now, whole weights or shards."""
        for variable, weight in zip(self.variables, self.weights, strict=True):
            variable._value = weight


@contextmanager
def fully_sharded(
    model: Any, optimizer: Any, blocks: list[Any], mesh: DeviceMesh
) -> Iterator[None]:
    """Splits a built model and its optimizer over the processes of `mesh` in the `with` block.

    FSDP gathers the weights of each of the layers `blocks` when the layer is called, and all other
    weights when the model is called. It averages the gradients of the processes.
    """
    others = {id(variable): variable for variable in model.trainable_variables}
    units = []
    for block in blocks:
        own = [others.pop(id(x)) for x in block.trainable_variables if id(x) in others]
        units.append(_Unit(block, own))
    root = _Unit(model, list(others.values()))
    root.units.extend(units)
    units.append(root)
    for unit in units:
        fully_shard(unit, mesh=mesh)
    states = [variable for variable in optimizer.variables if variable.value.ndim]
    for state in states:
        state._value = distribute_tensor(state.value.detach(), mesh, [Shard(0)])
    layers = model._flatten_layers()
    for layer in layers:  # Keras would keep the whole weights in memory.
        layer._torch_params = torch.nn.ParameterDict()

    def expose() -> None:
        for unit in units:
            unit.expose()

    def apply(gradients: Any, variables: Any) -> None:
        expose()
        weights = [variable._value for variable in variables]
        type(optimizer).apply(optimizer, [weight.grad for weight in weights], variables)
        for weight in weights:
            weight.grad = None

    expose()
    vars(optimizer)["apply"] = apply
    yield
    # After an error, the other processes may not be there to gather the weights.
    del vars(optimizer)["apply"]
    for unit in units:
        unit.reshard()
        unit.expose()
        del vars(unit.layer[0])["call"]
    for variable in [*model.trainable_variables, *states]:
        whole = whole_tensor(variable._value).detach()
        variable._value = torch.nn.Parameter(whole, requires_grad=variable.trainable)
    for layer in layers:
        layer._track_variables()
