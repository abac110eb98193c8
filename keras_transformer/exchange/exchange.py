"""What all exchanges of weights with KerasHub need."""

from typing import Any

import keras
from keras import ops

DENSE, NORM = ("kernel", "bias"), ("gamma", "beta")


def import_keras_hub() -> Any:
    """Imports KerasHub, which also imports TensorFlow.

    Raises:
        ImportError: If KerasHub is not installed.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "KerasHub is needed: pip install 'keras3-transformer[tensorflow]'"
        ) from error
    return keras_hub


def checked_backbone(backbone: Any, class_name: str) -> Any:
    """Returns `backbone`, or the backbone of the preset with this name.

    Raises:
        ImportError: If KerasHub is not installed.
        ValueError: If `backbone` has another class, is quantized, or has several dtype policies.
    """
    backbone_class = getattr(import_keras_hub().models, class_name)
    if isinstance(backbone, str):
        backbone = backbone_class.from_preset(backbone)
    if type(backbone) is not backbone_class:
        raise ValueError(
            f"`backbone` must be a `keras_hub.models.{class_name}` or the name of a preset. "
            f"Received: backbone={backbone}"
        )
    if type(backbone.dtype_policy) is not keras.dtype_policies.DTypePolicy:
        raise ValueError(
            "All layers of `backbone` must have one dtype policy, without quantization. "
            f"Received: dtype={backbone.dtype_policy}"
        )
    return backbone


def sizes_of_backbone(backbone: Any) -> dict[str, Any]:
    """Returns the arguments of this package's model that has the sizes of `backbone`."""
    return {
        "vocabulary_size": backbone.vocabulary_size,
        "num_layers": backbone.num_layers,
        "d_model": backbone.hidden_dim,
        "num_heads": backbone.num_heads,
        "d_ff": backbone.intermediate_dim,
        "dropout_rate": backbone.dropout,
        "attention_dropout_rate": backbone.dropout,
        "max_length": backbone.max_sequence_length,
        "dtype": backbone.dtype_policy,
    }


def sizes_for_backbone(model: Any) -> dict[str, Any]:
    """Returns the arguments of the backbone that has the sizes of `model`."""
    return {
        "vocabulary_size": model.vocabulary_size,
        "num_layers": model.num_layers,
        "num_heads": model.num_heads,
        "hidden_dim": model.d_model,
        "intermediate_dim": model.d_ff,
        "dropout": model.dropout_rate,
        "max_sequence_length": model.max_length,
        "dtype": model.dtype_policy,
    }


def weight_pairs(own: Any, other: Any, names: tuple[str, ...]) -> list[tuple[Any, Any]]:
    """Returns the weights of two layers with these names, in pairs."""
    return [(getattr(own, name), getattr(other, name)) for name in names]


def check_weights(name: str, weights: list[Any], exchanged: list[Any]) -> None:
    """Raises `ValueError` if a weight would be lost, such as a weight of LoRA."""
    known = {id(weight) for weight in exchanged}
    if lost := [weight.path for weight in weights if id(weight) not in known]:
        raise ValueError(
            f"`{name}` must have only the weights of the published model, without quantization and "
            f"LoRA. Received: {name} with the weights {lost}"
        )


def assign(target: Any, value: Any) -> None:
    """Assigns a weight to a weight that has the same values in another shape."""
    target.assign(ops.reshape(value, target.shape))
