"""The base class of the models, and the dtypes in which they compute."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from numbers import Integral
from pathlib import Path
from typing import Any

import keras

from keras_transformer._backend import (
    check_not_forked,
    check_trains_alone,
    set_to,
    without_tensorflow,
)
from keras_transformer._backend.fit_data import has_own_order, prepared
from keras_transformer._backend.gradient_checkpointing import Recomputable
from keras_transformer._files import read_bytes
from keras_transformer.capabilities import Capabilities
from keras_transformer.layers.base import CLONES, Adaptable, StoresArguments
from keras_transformer.layers.saving import (
    apply_layer_changes,
    layer_changes,
    merged_weights,
    placeholder_weights,
    without_lora,
)
from keras_transformer.models.protocol import check_tokenizer

_LOADS_IN_FLOAT32 = ContextVar("_LOADS_IN_FLOAT32", default=False)


class FitsTokens:
    """Mixin of models whose `fit` and `evaluate` take all that `fit_data` does.

    `fit` keeps the tokenizer of the data. It refuses `class_weight`, with which Keras would choose
    one token as the class of a row, and processes of PyTorch that would train several models.

    After `quantize` or `enable_lora` added variables, the steps are compiled again: on TensorFlow,
    they would still use the old weights. On JAX, the weights are kept if a step raises an error.
    """

    variables: Any

    is_replica = False  # True while it is one of the replicas of `Distribution.fitting`

    def check_data(self, x: Any, y: Any, sample_weight: Any) -> None:
        """Checks the data of `fit` and `evaluate`. The mixin itself checks nothing."""

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Trains the model (see `keras.Model.fit` and `keras_transformer.data.fit_data`)."""
        if class_weight is not None:
            raise ValueError(
                "Weight the labels (B, T) by `sample_weight` (B, T): a row of labels has no class. "
                f"Received: class_weight={class_weight!s:.100}"
            )
        if not self.is_replica:
            check_trains_alone()
        is_ours = hasattr(x, "tokenizer_files")  # a `ParallelDataset`
        if is_ours:
            model = getattr(self, "model", self)
            check_tokenizer(model, x.tokenizer)
            vars(model)["tokenizer_files"] = x.tokenizer_files
        given, x = x, prepared(x, self, batch_size, shuffle)
        ends = isinstance(given, Iterator) or isinstance(x, Iterator)
        if ends and epochs > 1 and steps_per_epoch is None:
            # From the second epoch on, Keras would train on the first two batches.
            raise ValueError("Data without a length last one epoch: give `steps_per_epoch`")
        shuffle = shuffle and not (is_ours or x is not given or has_own_order(x))
        validation_data = prepared(validation_data, self, batch_size)
        self.check_data(x, y, sample_weight)
        data = x, y, batch_size, epochs, verbose, callbacks, validation_split, validation_data
        order = shuffle, None, sample_weight, initial_epoch, steps_per_epoch
        return super().fit(*data, *order, *args, **kwargs)  # type: ignore

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Evaluates the model (see `keras.Model.evaluate`)."""
        x = prepared(x, self, batch_size)
        self.check_data(x, y, sample_weight)
        data = x, y, batch_size, verbose, sample_weight
        return self._then_synced(super().evaluate, *data, *args, **kwargs)  # type: ignore

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the outputs of the model (see `keras.Model.predict`)."""
        return self._then_synced(super().predict, *args, **kwargs)  # type: ignore

    def _then_synced(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a method. Even after an error, the variables of JAX have their last values."""
        try:
            return method(*args, **kwargs)
        finally:
            if keras.config.backend() == "jax":
                self.jax_state_sync()  # type: ignore

    def make_train_function(self, force: bool = False) -> None:
        super().make_train_function(force or self._has_more_variables("train"))  # type: ignore

    def make_test_function(self, force: bool = False) -> None:
        super().make_test_function(force or self._has_more_variables("test"))  # type: ignore

    def make_predict_function(self, force: bool = False) -> None:
        super().make_predict_function(force or self._has_more_variables("predict"))  # type: ignore

    def _purge_model_variables(self, **_: bool) -> None:
        """Keeps the weights. On JAX, Keras would lose them if the first step raises an error."""

    def _has_more_variables(self, function: str) -> bool:
        counts = vars(self).setdefault("_num_variables", {})  # Avoids tracking by Keras.
        check_not_forked(keras.config.backend())
        before, counts[function] = counts.get(function), len(self.variables)
        return before not in (None, counts[function])


class ConfiguredModel(StoresArguments, Adaptable, FitsTokens, Recomputable, keras.Model):
    """Base class of functional models, which saves and loads them.

    A subclass creates its layers and calls `super().__init__(inputs, outputs, **kwargs)`. For each
    constructor argument, which may be a Keras model, it has an attribute of equal name. If it has
    the argument `dtype`, it sets `dtype_policy`.

    A saved model keeps what `quantize`, `enable_lora` and `trainable = False` changed in its
    layers. `quantize` changes token embeddings only in mode `"int8"`, and never the cells of
    recurrent layers. It also keeps `tokenizer_files`, those of the tokenizer that it is trained
    with, which `fit` takes from a `ParallelDataset`.
    """

    tokenizer_files: Mapping[str, bytes] | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        check_not_forked(keras.config.backend())  # before the constructor makes weights
        return super().__new__(cls, *args, **kwargs)

    # Names both arguments, because Keras would ignore unknown ones.
    def __init__(
        self, inputs: Any, outputs: Any, name: str | None = None, trainable: bool | None = None
    ) -> None:
        super().__init__(inputs, outputs, name=name, trainable=trainable)

    def _run_through_graph(
        self, inputs: Any, operation_fn: Any = lambda layer: layer, call_fn: Any = None
    ) -> Any:
        """Calls the layers or, for `keras.models.clone_model`, their clones.

        Without `CLONES`, each layer of a clone would have a position encoding of its own. A layer
        of a model in this one has a clone there.
        """
        clones: dict[int, Any] = {}

        def operation(layer: Any) -> Any:
            if id(layer) not in clones:
                clones[id(layer)] = clone = operation_fn(layer)
                if isinstance(clone, keras.Model):
                    clones.update(zip(map(id, layer.layers), clone.layers, strict=True))
            return clones[id(layer)]

        with set_to(CLONES, clones):
            return super()._run_through_graph(inputs, operation, call_fn)

    def _repr_html_(self) -> str:
        """Lists the layers in a notebook."""
        from keras_transformer._pages import render

        trainable = sum(math.prod(weight.shape) for weight in self.trainable_weights)
        counts = {"total": self.count_params(), "trainable": trainable}
        return str(render("model.html", title=type(self).__name__, layers=self.layers, **counts))

    def save_assets(self, directory: str) -> None:
        for name, content in (self.tokenizer_files or {}).items():
            (Path(directory) / name).write_bytes(content)

    def load_assets(self, directory: str | None) -> None:
        files = Path(directory).glob("*") if directory else ()  # There may be no folder.
        found = {x.name: read_bytes(x) for x in files if x.is_file()}
        self.__dict__["tokenizer_files"] = found or None

    def get_config(self) -> dict[str, Any]:
        config = {name: _serialized(getattr(self, name)) for name in self.argument_names()}
        if "dtype" in self.all_arguments():
            config["dtype"] = keras.dtype_policies.serialize(self.dtype_policy)
        config |= {"name": self.name, "trainable": self.trainable}
        if changes := layer_changes(self):
            config["changes"] = changes
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        objects = {x: y for x, y in config.items() if isinstance(y, dict) and "class_name" in y}
        objects = {x: keras.saving.deserialize_keras_object(y) for x, y in objects.items()}
        config = config | objects
        changes = config.pop("changes", {})
        if _LOADS_IN_FLOAT32.get() and "dtype" in config:
            if keras.dtype_policies.get(config["dtype"]).name.startswith("mixed_"):
                config["dtype"] = "float32"
        model = cls(**config)
        apply_layer_changes(model, changes)
        return model


def _serialized(value: Any) -> Any:
    if not isinstance(value, keras.Model):
        return keras.saving.get_registered_name(value) if callable(value) else value
    serialized = keras.saving.serialize_keras_object(value)
    serialized["config"].pop("changes", None)  # the changes of the outer model contain them
    return serialized


def loading_in_float32(active: bool = True) -> AbstractContextManager[None]:
    """Makes models in mixed precision compute in float32 if they are loaded within this context."""
    return set_to(_LOADS_IN_FLOAT32, active)


def in_float32(model: keras.Model) -> Any:
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


def merge_lora(model: keras.Model) -> Any:
    """Returns a copy of a model in which each kernel is the sum of the kernel and its adapter.

    The copy computes the same as `model`, which must not be quantized, and has no LoRA, so all its
    layers can be trained.

    Example:

    >>> save_run("runs/adapted", merge_lora(adapted), tokenizer)
    """
    if any(getattr(x, "quantization_config", None) for x in model._flatten_layers()):
        raise ValueError("Merge LoRA before `quantize`. Received: a quantized model")
    with without_tensorflow(), placeholder_weights():
        merged = type(model).from_config(without_lora(model.get_config()))
    merged.set_weights([keras.ops.convert_to_numpy(x) for _, x in merged_weights(model)])
    vars(merged)["tokenizer_files"] = Capabilities.of(model).tokenizer_files
    return merged


def check_pad_id(pad_id: Any, vocabulary_size: int, minimum: int = 0) -> None:
    """Raises `ValueError` if `pad_id` is not an integer from `minimum` to the last id."""
    if not isinstance(pad_id, Integral) or not minimum <= int(pad_id) < vocabulary_size:
        raise ValueError(
            f"`pad_id` must be an integer from {minimum} to {vocabulary_size - 1}. "
            f"Received: pad_id={pad_id}"
        )
