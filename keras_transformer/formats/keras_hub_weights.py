"""Weights and sizes that this package and KerasHub have under different names."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.errors import imported

# Maps the layers of `EncoderLayer` and `DecoderLayer` to names in the paths of KerasHub's weights.
SUBLAYERS = {
    "self_attention.query_projection": "query",
    "self_attention.key_projection": "key",
    "self_attention.value_projection": "value",
    "self_attention.output_projection": "attention_output",
    "self_attention_residual.norm": "self_attention_layer_norm",
    "feed_forward.inner": "feedforward_intermediate_dense",
    "feed_forward.outer": "feedforward_output_dense",
    "feed_forward_residual.norm": "feedforward_layer_norm",
}


class Pair(NamedTuple):
    """Two weights of which `target` is `factor` times `value`, reshaped to `shape` and transposed.

    `axes` is its own inverse. The reshaping to the target's own shape comes last.
    """

    value: Any
    target: Any
    shape: tuple[int, ...] = (-1,)
    axes: tuple[int, ...] = (0,)
    factor: float = 1.0

    def reversed(self) -> "Pair":
        shape = tuple(self.shape[axis] for axis in self.axes)
        return Pair(self.target, self.value, shape, self.axes, 1 / self.factor)


Pairs = list[Pair]  # from a weight of the package to the same weight of KerasHub
Values = Mapping[str, Any]


def _backbone_class(name: str) -> Any:
    return getattr(imported("keras_hub.models", "tensorflow", f"a {name} needs"), name)


def opened(backbone: keras.Model | str, needed: Values, *class_names: str) -> Any:
    """Returns `backbone`, or the backbone of the preset with this name, if it has `needed`."""
    classes = [_backbone_class(name) for name in class_names]
    if isinstance(backbone, str):
        backbone = classes[0].from_preset(backbone)
    if type(backbone) not in classes:
        raise ValueError(
            f"`backbone` must be a `keras_hub.models.{' or '.join(class_names)}` or the name of a "
            f"preset. Received: backbone={backbone}"
        )
    _check_same("LanguageModel", "backbone", vars(backbone), needed)
    return backbone


def sizes_of(backbone: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of this package's model that `names` maps to those of `backbone`."""
    sizes = {own: getattr(backbone, other) for own, other in names.items()}
    return {**sizes, "attention_dropout_rate": backbone.dropout, "dtype": backbone.dtype_policy}


def _check_same(class_name: str, kind: str, values: Values, needed: Values) -> None:
    received = {name: values[name] for name in needed if values[name] != needed[name]}
    if received:
        expected = {name: needed[name] for name in received}
        raise ValueError(
            f"A `{class_name}` needs a {kind} with {expected}. Received: a {kind} with {received}"
        )


def new_backbone(
    class_name: str, model: Any, heads: Values, fixed: Values, names: Values, **others: Any
) -> Any:
    """Creates a backbone. `heads` has sizes that the arguments of `model` leave to its layers."""
    values = {**vars(model), **heads}
    needed = {**fixed, "attention_dropout_rate": model.dropout_rate}
    _check_same(class_name, "model", values, needed)
    sizes = {other: values[own] for own, other in names.items()}
    return _backbone_class(class_name)(**sizes, dtype=model.dtype_policy, **others)


def model_pairs(
    model: keras.Model,
    layers: Iterable[keras.Layer],
    backbone: Any,
    others: Values,
    sublayers: Mapping[str, str] = SUBLAYERS,
    layouts: Mapping[str, Values] = {},
) -> Pairs:
    """Pairs all weights. `others` are layers of the model, or None, by their names in KerasHub.

    `layouts` are arguments of `Pair` by the names in `sublayers`.
    """
    pairs = []
    both = {"position_embedding": model.positions, "token_embedding": model.embedding}
    for name, layer in {**both, **others}.items():
        pairs += _layer_pairs(layer, name, backbone)
    for own, other in zip(layers, backbone.transformer_layers, strict=True):
        for path, name in sublayers.items():
            pairs += _layer_pairs(attrgetter(path)(own), name, other, **layouts.get(name, {}))
    return pairs


def _layer_pairs(own: keras.Layer | None, name: str, parent: keras.Layer, **layout: Any) -> Pairs:
    """Pairs the weights of a layer, if there is one, with those of `name` in one of KerasHub."""
    named = {"/".join(weight.path.split("/")[-2:]): weight for weight in parent.weights}
    weights = own.weights if own else ()
    keys = [(x, f"{name}/{x.name.removeprefix('position_')}") for x in weights]
    return [Pair(weight, named[key], **layout) for weight, key in keys if key in named]


def copy(name: str, weights: Iterable[keras.Variable], pairs: Pairs) -> None:
    """Assigns the value of each pair to its target.

    Raises `ValueError` if one of the `weights` would be lost, such as a weight of LoRA.
    """
    known = {id(pair.value) for pair in pairs}
    if lost := [weight.path for weight in weights if id(weight) not in known]:
        raise ValueError(
            f"`{name}` must have only the weights of the published model, without quantization and "
            f"LoRA. Received: {name} with the weights {lost}"
        )
    for pair in pairs:
        value = ops.transpose(ops.reshape(pair.value, pair.shape), pair.axes)
        pair.target.assign(ops.reshape(value * pair.factor, pair.target.shape))
