"""Saves and restores what `quantize`, `enable_lora` and `trainable = False` changed in sublayers.

The config of a composite layer contains only the arguments of its constructor. Without this module,
a loaded layer would lack the changes in its sublayers, and would not fit the saved weights.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_transformer._backend.process import without_tensorflow


def layer_changes(layer: keras.layers.Layer) -> dict[str, dict[str, Any]]:
    """Returns a dict that maps the path of each changed sublayer to its changes (JSON values)."""
    found = {path: _own_changes(sublayer, parent) for path, sublayer, parent in _sublayers(layer)}
    return {path: changes for path, changes in found.items() if changes}


def apply_layer_changes(layer: keras.layers.Layer, changes: dict[str, dict[str, Any]]) -> None:
    """Applies the result of `layer_changes` for one layer to a built layer of equal config.

    Raises:
        ValueError: If `changes` contains a sublayer that the layer does not have.
    """
    sublayers = {path: sublayer for path, sublayer, _ in _sublayers(layer)}
    if unknown := sorted(changes.keys() - sublayers.keys()):
        raise ValueError(
            "The config contains changes for sublayers that do not exist. "
            f"Received: {unknown}. Sublayers: {sorted(sublayers)}"
        )
    with fast_deletion():
        for path, own in changes.items():
            if "quantization" in own:
                config = keras.saving.deserialize_keras_object(own["quantization"])
                sublayers[path].quantize(config=config, type_check=False)
            if "lora_rank" in own:
                sublayers[path].enable_lora(own["lora_rank"], lora_alpha=own["lora_alpha"])
            if not own.get("trainable", True):
                sublayers[path].trainable = False


@contextmanager
def fast_deletion() -> Iterator[None]:
    """Makes quantization faster.

    In quantization, Keras runs Python's garbage collector for each kernel. Within this context, the
    garbage collector ignores the objects that exist already.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _own_changes(layer: Any, parent: Any) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    quantization = getattr(layer, "quantization_config", None)
    if quantization is not None:
        with without_tensorflow():
            changes["quantization"] = keras.saving.serialize_keras_object(quantization)
    if getattr(layer, "lora_enabled", False):
        changes["lora_rank"], changes["lora_alpha"] = layer.lora_rank, layer.lora_alpha
    if parent.trainable and not layer.trainable:
        changes["trainable"] = False
    return changes


def _sublayers(
    layer: Any, prefix: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, Any, Any]]:
    """Yields each sublayer once, as a tuple (path of layer names, sublayer, parent layer)."""
    seen = set() if seen is None else seen
    for sublayer in layer._layers:
        if id(sublayer) not in seen:
            seen.add(id(sublayer))
            yield prefix + sublayer.name, sublayer, layer
            yield from _sublayers(sublayer, f"{prefix}{sublayer.name}/", seen)
