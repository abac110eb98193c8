"""Defines the base class of the models, and the dtypes in which they compute."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral
from typing import Any

import keras

from keras_transformer._backend.compile_function import Recompiling
from keras_transformer._backend.process import without_tensorflow
from keras_transformer.errors import agree, check_sizes
from keras_transformer.layers.base import argument_names
from keras_transformer.layers.changes import apply_layer_changes, layer_changes
from keras_transformer.layers.placeholder_weights import making_model, placeholder_weights

# The quantization modes of Keras that need no calibration data.
QUANTIZATION_MODES = ("int8", "int4", "float8")

_LOADS_IN_FLOAT32 = ContextVar("_LOADS_IN_FLOAT32", default=False)


class ChecksClassWeight:
    """Mixin of models that refuses `class_weight` if a row of labels is not of one class.

    Keras would choose one class for each row.
    """

    outputs: list[Any]
    rows_have_classes = True  # if an output is (B, C)

    def fit(self, *args: Any, class_weight: Any = None, **kwargs: Any) -> Any:
        """Trains the model (see `keras.Model.fit`).

        Raises:
            ValueError: If there is a `class_weight`, but rows of labels have no class.
        """
        self._check_class_weight(class_weight)
        return super().fit(*args, class_weight=class_weight, **kwargs)  # type: ignore

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Trains the model on one batch (see `keras.Model.train_on_batch`).

        Raises:
            ValueError: If there is a `class_weight`, but rows of labels have no class.
        """
        self._check_class_weight(class_weight)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)  # type: ignore

    def _check_class_weight(self, class_weight: Any) -> None:
        has_classes = self.rows_have_classes and all(len(x.shape) <= 2 for x in self.outputs)
        if class_weight is not None and not has_classes:
            raise ValueError(
                "`class_weight` must be None, because a row of labels has no class of its own. "
                f"Weight labels by `sample_weight` (B, T). Received: class_weight={class_weight}"
            )


class ConfiguredModel(ChecksClassWeight, Recompiling, keras.Model):
    """Base class of the functional models: saving, quantization and export.

    For each constructor argument, the subclass has an attribute of equal name. The argument may be
    a Keras model.

    Raises:
        TypeError: If a keyword argument is unknown.
        ValueError: If the shape of an input in a call is not that of the model.
    """

    def __init__(self, inputs: Any, outputs: Any, **kwargs: Any) -> None:
        check_keywords(self, kwargs)
        super().__init__(inputs, outputs, **kwargs)

    def quantize(
        self, mode: Any = None, config: Any = None, filters: Any = None, **kwargs: Any
    ) -> None:
        """Quantizes the weights (see `keras.Model.quantize`).

        The token embeddings are quantized only in mode `"int8"`. The cells of recurrent layers are
        not quantized. A saved model stays quantized.

        Raises:
            ValueError: If the mode is not `"int8"`, `"int4"` or `"float8"`.
        """
        if mode not in QUANTIZATION_MODES:  # If only `config` is given, Keras passes its mode.
            raise ValueError(
                f"`mode` must be one of {list(QUANTIZATION_MODES)}. Received: mode={mode!r}"
            )
        super().quantize(mode, config=config, filters=filters, **kwargs)

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Sets optimizer, loss and metrics (see `keras.Model.compile`).

        Raises:
            ValueError: If the loss or a metric takes another token than the model's for padding.
        """
        pad_id = getattr(self, "pad_id", None)
        for counted in keras.tree.flatten([loss, metrics, weighted_metrics]):
            if pad_id is not None and getattr(counted, "pad_id", -1) not in (-1, pad_id):
                name = type(counted).__name__
                raise ValueError(
                    f"{name} would never count a token that is no padding for the model. Use "
                    f"`{name}(pad_id={pad_id})`. "
                    f"Received: pad_id={counted.pad_id} of {name}, pad_id={pad_id} of the model"
                )
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model. Keras's method does nothing if `compile` is overridden."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def export(
        self, filepath: Any, format: str = "tf_saved_model", *args: Any, **kwargs: Any
    ) -> None:
        """Exports `call` in one of Keras's formats (see `keras.Model.export`).

        Raises:
            ValueError: If Keras cannot export the model in this format on this backend.
        """
        try:
            super().export(filepath, format, *args, **kwargs)
        except (AttributeError, RuntimeError) as error:
            raise ValueError(
                f"Keras cannot export this model as {format!r} on {keras.config.backend()}. Save "
                "the model and export it with KERAS_BACKEND=tensorflow, or use "
                f"`keras_transformer.export`. Received: format={format!r}. Keras's error: {error}"
            ) from error

    def _run_through_graph(self, inputs: Any, **options: Any) -> Any:
        if {"operation_fn", "call_fn"} <= options.keys():  # `keras.models.clone_model` passes both
            raise ValueError(
                "`clone_model` would return a model that has no `step` and whose layers do not "
                "share the position encoding. "
                "Use `type(model).from_config(model.get_config())`, or "
                f"`copy.deepcopy` for a copy with the same weights. Received: model={self.name}"
            )
        for given, expected in zip(keras.tree.flatten(inputs), self.inputs, strict=True):
            if given is not None:
                _check_shape(given, expected)
        return super()._run_through_graph(inputs, **options)

    def get_config(self) -> dict[str, Any]:
        classes = type(self).__mro__
        names = argument_names(classes[: classes.index(ConfiguredModel)])
        return {
            **{name: _serialized(getattr(self, name)) for name in names},
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
            "trainable": self.trainable,
            **({"changes": changes} if (changes := layer_changes(self)) else {}),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = {name: _deserialized(value) for name, value in config.items()}
        changes = config.pop("changes", {})
        policy = compute_policy(config.get("dtype")).name
        if policy in ("mixed_bfloat16", "mixed_float16") and _LOADS_IN_FLOAT32.get():
            config["dtype"] = "float32"
        with making_model(cls):
            model = cls(**config)
        apply_layer_changes(model, changes)
        return model


def _check_shape(given: Any, expected: Any) -> None:
    """Raises `ValueError` if the shapes differ. Keras accepts 1 as the size of any last axis."""
    if not agree(given.shape, expected.shape):
        raise ValueError(
            f"`{expected.name}` must have the shape {expected.shape}, where None is any size. "
            f"Received: shape={tuple(given.shape)}"
        )


def _serialized(value: Any) -> Any:
    if not isinstance(value, keras.Model):
        return value
    serialized = keras.saving.serialize_keras_object(value)
    serialized["config"].pop("changes", None)  # the changes of the outer model contain them
    return serialized


def _deserialized(value: Any) -> Any:
    if isinstance(value, dict) and "class_name" in value:
        return keras.saving.deserialize_keras_object(value)
    return value


@contextmanager
def loading_in_float32(active: bool = True) -> Iterator[None]:
    """Makes models in mixed precision compute in float32 if they are loaded within this context.

    If `active` is False, models are loaded in their own dtype, also within an outer context.
    """
    token = _LOADS_IN_FLOAT32.set(active)
    try:
        yield
    finally:
        _LOADS_IN_FLOAT32.reset(token)


def in_float32(model: Any) -> Any:
    """Returns `model` if it computes in float32, otherwise a float32 copy of `model`."""
    if model.dtype_policy.compute_dtype == "float32":
        return model
    with without_tensorflow(), placeholder_weights(), loading_in_float32():
        config = model.get_config()
        if "dtype" in config:  # otherwise the dtype is that of a model within the model
            config["dtype"] = "float32"
        exact = type(model).from_config(config)
    exact.set_weights(model.get_weights())
    return exact


def check_keywords(model: keras.Model, kwargs: dict[str, Any]) -> None:
    """Raises `TypeError` for keyword arguments that a functional model of Keras would ignore."""
    if unknown := sorted(kwargs.keys() - {"name", "trainable"}):
        raise TypeError(
            f"{type(model).__name__} has no argument of this name. Received: {', '.join(unknown)}"
        )


def check_pad_id(pad_id: Any, vocabulary_size: int, minimum: int = 0) -> None:
    """Raises `ValueError` if `pad_id` is not an integer from `minimum` to the last id.

    Also if the vocabulary has no ids.
    """
    check_sizes(vocabulary_size=vocabulary_size)
    if not isinstance(pad_id, Integral) or not minimum <= int(pad_id) < vocabulary_size:
        raise ValueError(
            f"`pad_id` must be an integer from {minimum} to {vocabulary_size - 1}. "
            f"Received: pad_id={pad_id}"
        )


def compute_policy(dtype: Any) -> Any:
    """Returns the dtype policy for `dtype`, or the global policy if `dtype` is None.

    Raises:
        ValueError: If the policy computes in float64.
    """
    policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
    if policy.compute_dtype == "float64":
        raise ValueError(
            "`dtype` must compute in float32, bfloat16 or float16, because Keras multiplies "
            f"float64 matrices in float32 on PyTorch and JAX. Received: dtype={policy.name}"
        )
    return policy
