"""Saves what `quantize`, `enable_lora` and `trainable = False` changed in layers, and loads it.

The config of a composite layer contains only the arguments of its constructor. Without
`layer_changes`, a loaded layer would lack the changes in its sublayers, and would not fit the saved
weights. `placeholder_weights` saves the time to make random weights that loading replaces.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

from keras_transformer._backend import without_tensorflow

_IS_LOADING = ContextVar("_IS_LOADING", default=False)
_CREATES_PLACEHOLDERS = ContextVar("_CREATES_PLACEHOLDERS", default=False)


def layer_changes(layer: keras.layers.Layer) -> dict[str, dict[str, Any]]:
    """Returns a dict that maps the path of each changed sublayer to its changes (JSON values).

    The flag `trainable` of a sublayer is a change if it differs from the flag that the sublayer has
    after the changes of the layers that contain it. The flag of `layer` itself is not a change.
    """
    found = {}
    flags: dict[int, bool] = {}  # by the id of the sublayer
    for path, sublayer in _sublayers(layer).items():
        changes = own_changes(sublayer)
        if sublayer.trainable != flags.get(id(sublayer), True):
            changes["trainable"] = sublayer.trainable
            # Keras also sets the flags of all sublayers.
            flags.update({id(x): sublayer.trainable for x in sublayer._flatten_layers()})
        if changes:
            found[path] = changes
    return found


def apply_layer_changes(layer: keras.layers.Layer, changes: dict[str, dict[str, Any]]) -> None:
    """Applies the result of `layer_changes` for one layer to a built layer of equal config."""
    sublayers = _sublayers(layer)
    for path, sublayer in sublayers.items():
        if (flag := changes.get(path, {}).get("trainable")) is not None:
            # TensorFlow ignores an attribute's present value, so Keras would not set the sublayers.
            sublayer.trainable = not flag
            sublayer.trainable = flag
    # After `trainable = True`, which would unfreeze the kernel under LoRA.
    for path, own in changes.items():
        apply_own_changes(sublayers[path], own)


def apply_own_changes(layer: Any, changes: dict[str, Any]) -> None:
    """Quantizes a built layer or enables LoRA, as the result of `own_changes` says."""
    if "quantization" in changes:
        config = keras.saving.deserialize_keras_object(changes["quantization"])
        layer.quantize(config=config, type_check=False)
    if "lora_rank" in changes:
        layer.enable_lora(changes["lora_rank"], lora_alpha=changes["lora_alpha"])


def own_changes(layer: Any) -> dict[str, Any]:
    """Returns the quantization and the LoRA of a layer without its sublayers (JSON values)."""
    changes: dict[str, Any] = {}
    quantization = getattr(layer, "quantization_config", None)
    if quantization is not None:
        with without_tensorflow():
            changes["quantization"] = keras.saving.serialize_keras_object(quantization)
    if getattr(layer, "lora_enabled", False):
        changes["lora_rank"], changes["lora_alpha"] = layer.lora_rank, layer.lora_alpha
    return changes


def _sublayers(layer: Any) -> dict[str, Any]:
    """Returns each sublayer once, by its path of layer names. A layer is before its sublayers.

    A layer can be a sublayer of several layers. It has fewer sublayers than each of them.
    """
    found = dict(_named(layer, "", set()))
    sizes = {path: len(list(sublayer._flatten_layers())) for path, sublayer in found.items()}
    return {path: found[path] for path in sorted(found, key=lambda path: -sizes[path])}


def _named(layer: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for sublayer in layer._layers:
        if id(sublayer) not in seen:
            seen.add(id(sublayer))
            yield prefix + sublayer.name, sublayer
            yield from _named(sublayer, f"{prefix}{sublayer.name}/", seen)


@contextmanager
def placeholder_weights() -> Iterator[None]:
    """Makes models of the package begin with zeros instead of random weights within this context.

    The weights must be loaded or set afterwards. On JAX, random weights would take longer, because
    JAX compiles a program for each shape. Other models, also users' subclasses of the package's
    models, keep their random weights, because they may compute with weights that they do not save.
    """
    token = _IS_LOADING.set(True)
    try:
        yield
    finally:
        _IS_LOADING.reset(token)


@contextmanager
def making_model(model_class: type) -> Iterator[None]:
    """Makes layers create zeros within this context, if a model of the package is being loaded."""
    is_ours = model_class.__module__.startswith("keras_transformer.")
    token = _CREATES_PLACEHOLDERS.set(is_ours and _IS_LOADING.get())
    try:
        yield
    finally:
        _CREATES_PLACEHOLDERS.reset(token)


class CreatesPlaceholders:
    """Mixin of layers that obey `placeholder_weights`."""

    def add_weight(
        self, shape: Any = None, initializer: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Creates a weight (see `keras.layers.Layer.add_weight`)."""
        # Random initializers alone have a seed.
        if _CREATES_PLACEHOLDERS.get() and hasattr(keras.initializers.get(initializer), "seed"):
            initializer = "zeros"
        return super().add_weight(shape, initializer, *args, **kwargs)  # type: ignore
