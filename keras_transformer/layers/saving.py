"""Saves what `quantize`, `enable_lora` and `trainable = False` changed in layers, and loads it.

Configs contain only the arguments of constructors. Without these changes, a loaded layer would not
fit the saved weights. `placeholder_weights` saves the time to make random weights for loading.
"""

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend import set_to, without_tensorflow
from keras_transformer._backend.operations import read, to_tensor
from keras_transformer._backend.types import Tensor
from keras_transformer.errors import UserError

# Returns the value of a weight by its path and shape, or None.
Values = Callable[[str, tuple[int, ...]], np.ndarray | None]
# In `placeholder_weights`, how many numbers further weights may have, and their values.
_PLACEHOLDERS: ContextVar[tuple[list[float], Values] | None] = ContextVar(
    "_PLACEHOLDERS", default=None
)


def layer_changes(layer: keras.layers.Layer) -> dict[str, dict[str, Any]]:
    """Returns the changes (JSON values) of the layer, at the path "", and of sublayers, by path.

    A flag `trainable` is a change if it differs from that of the layers around the sublayer. The
    flag of `layer` itself is in its config.
    """
    flags: dict[int, bool] = {}  # by the id of the sublayer
    found = {"": _own_changes(layer)}
    for path, sublayer in _sublayers(layer).items():
        found[path] = _own_changes(sublayer)
        if sublayer.trainable != flags.get(id(sublayer), True):
            found[path]["trainable"] = sublayer.trainable
            # Keras also sets the flags of all sublayers.
            flags.update({id(x): sublayer.trainable for x in sublayer._flatten_layers()})
    return {path: changes for path, changes in found.items() if changes}


def apply_layer_changes(layer: keras.layers.Layer, changes: dict[str, dict[str, Any]]) -> None:
    """Applies the result of `layer_changes` to a built layer of equal config."""
    sublayers = {"": layer, **_sublayers(layer)}
    for path, own in changes.items():
        if (flag := own.get("trainable")) is not None:
            # TensorFlow ignores an attribute's present value, so Keras would not set the sublayers.
            sublayers[path].trainable = not flag
            sublayers[path].trainable = flag
    # After `trainable = True`, which would unfreeze the kernel under LoRA.
    for path, own in changes.items():
        if "quantization" in own:
            config = keras.saving.deserialize_keras_object(own["quantization"])
            sublayers[path].quantize(config=config, type_check=False)
        if "lora_rank" in own:
            sublayers[path].enable_lora(own["lora_rank"], lora_alpha=own["lora_alpha"])


def merged_weights(model: keras.Model) -> list[tuple[str, Any]]:
    """Returns the path and value of each weight. Kernels include LoRA, whose weights are left out.

    The order is that of `model.weights`.
    """
    merged, adapters = {}, set()
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            for weight in layer.weights:
                if weight.name in ("kernel", "embeddings"):
                    merged[id(weight)] = getattr(layer, weight.name)
                elif weight.name.startswith("lora_"):
                    adapters.add(id(weight))
    return [(x.path, merged.get(id(x), x)) for x in model.weights if id(x) not in adapters]


def without_lora(config: Any) -> Any:
    """Returns a configuration without the ranks of LoRA in it."""
    if isinstance(config, dict):
        kept = {key: x for key, x in config.items() if key not in ("lora_rank", "lora_alpha")}
        return {key: without_lora(x) for key, x in kept.items()}
    return [without_lora(x) for x in config] if isinstance(config, list) else config


def _own_changes(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the quantization and the LoRA of a layer without its sublayers (JSON values)."""
    changes: dict[str, Any] = {}
    quantization = getattr(layer, "quantization_config", None)
    if quantization is not None:
        with without_tensorflow():
            changes["quantization"] = keras.saving.serialize_keras_object(quantization)
    if getattr(layer, "lora_enabled", False):
        changes["lora_rank"], changes["lora_alpha"] = layer.lora_rank, layer.lora_alpha
    return changes


def _sublayers(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns each sublayer once, by its path, and a layer before its sublayers.

    A path such as "0/2" has the place of each layer beside the others around it. Its name can be
    automatic, such as "dense_8", and another one in each process.
    """
    found: dict[str, Any] = {}

    def visit(parent: Any, prefix: str) -> None:
        own = parent._flatten_layers(include_self=False, recursive=False)
        for place, sublayer in enumerate(own):
            if not any(sublayer is other for other in found.values()):
                found[f"{prefix}{place}"] = sublayer
                visit(sublayer, f"{prefix}{place}/")

    visit(layer, "")
    # A layer can be a sublayer of several layers. It has fewer sublayers than each of them.
    return dict(sorted(found.items(), key=lambda item: -len(list(item[1]._flatten_layers()))))


def placeholder_weights(
    most: float = math.inf, values: Values = lambda path, shape: None
) -> AbstractContextManager[None]:
    """Makes the package's layers begin with `values`, or else with zeros, within this context.

    Zeros must be loaded or set afterwards. JAX compiles a program for each shape of random weights.

    `most` is how many numbers the file of the weights can have. A layer with more raises
    `ValueError` before it takes memory.
    """
    return set_to(_PLACEHOLDERS, ([most], values))


def check_finite(model: keras.layers.Layer, file: str | Path) -> None:
    """Raises `UserError` if a loaded weight is infinite or NaN in the dtype of the model."""
    for weight in model.weights:
        if not np.isfinite(read(weight)).all():
            raise UserError(
                f"{file} has weights that are not finite in {weight.dtype}: {weight.path}"
            )


def _tensor(value: np.ndarray, shape: Any, dtype: str) -> Tensor:
    return ops.cast(to_tensor(value), dtype)


class CreatesPlaceholders:
    """Mixin of layers that obey `placeholder_weights`."""

    path: str

    def add_weight(
        self, shape: Any = None, initializer: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Creates a weight (see `keras.layers.Layer.add_weight`)."""
        if found := _PLACEHOLDERS.get():
            left, values = found
            left[0] -= math.prod(shape or ())
            if left[0] < 0:
                raise ValueError("the model is larger than the file of its weights")
            value = values(f"{self.path}/{kwargs.get('name')}", shape)
            if value is not None:
                initializer = functools.partial(_tensor, value)
            # Random initializers alone have a seed.
            elif hasattr(keras.initializers.get(initializer), "seed"):
                initializer = "zeros"
        return super().add_weight(shape, initializer, *args, **kwargs)  # type: ignore
