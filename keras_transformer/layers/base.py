"""The base class of most layers, and Keras layers with faster gradients and kept LoRA."""

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

from keras_transformer._backend import without_tensorflow
from keras_transformer._backend.gradient_checkpointing import Recomputable
from keras_transformer._backend.operations import affine_relu
from keras_transformer._backend.types import Mask, Shape, Tensor
from keras_transformer.layers.saving import CreatesPlaceholders, apply_layer_changes, layer_changes

# Constructor arguments of every Keras layer.
BASE_ARGUMENTS = {"name", "dtype", "trainable"}
# Constructor arguments that are objects with configs.
OBJECTS = ("position_encoding", "attention_pattern")

# The weights from which Keras makes the merged kernel of a `Dense` with LoRA.
UNMERGED = ("kernel", "kernel_scale", "kernel_zero", "lora_kernel_a", "lora_kernel_b")

# While a model is cloned, the clones of its layers, by the ids of the layers.
CLONES: ContextVar[dict[int, Any] | None] = ContextVar("CLONES", default=None)


class Adaptable:
    """Mixin of layers and models whose linear maps take adapters."""

    def enable_lora(
        self, rank: int, lora_alpha: float | None = None, parts: Sequence[str] = ("",)
    ) -> None:
        """Freezes the weights, and adds trainable low-rank matrices to linear maps.

        Call it before `compile`. The biases of the linear maps stay trainable, as with
        `keras.layers.Dense.enable_lora`. Exports contain the sum of a kernel and its adapter.

        Example:

        >>> model.encoder.trainable = model.target_embedding.trainable = False
        >>> model.decoder.enable_lora(rank=4)

        Args:
            rank: Rank of the matrices, at least 1.
            lora_alpha: The adapters are multiplied by `lora_alpha / rank`. Defaults to `rank`.
            parts: Parts of the paths of the linear maps that get adapters, such as "decoder" or
                "self_attention". Defaults to all of them.

        Raises:
            ValueError: If the layer is not built, has no linear map, or has LoRA already.

        Source: Hu et al. 2021, LoRA.
        """
        owner: Any = self
        leaves = _leaves(self)
        linear = [layer for layer in leaves if isinstance(layer, keras.layers.Dense)]
        linear = [layer for layer in linear if any(part in layer.path for part in parts)]
        if not linear or any(layer.lora_enabled for layer in linear):
            raise ValueError(
                "LoRA needs a built layer that has linear maps, and no LoRA yet. "
                f"Received: {owner.name!r} of class {type(owner).__name__}, built={owner.built}, "
                f"parts={[*parts]}"
            )
        owner.trainable = True
        for layer in leaves:
            layer.trainable = layer in linear
        for layer in linear:
            layer.enable_lora(rank, lora_alpha=lora_alpha)

    def freeze(self, parts: Sequence[str]) -> None:
        """Freezes the layers whose paths contain one of `parts`, such as "encoder".

        Raises ValueError if there is no weight in such a layer.
        """
        for part in parts:
            layers = [x for x in _leaves(self) if x.weights and part in x.path]
            if not layers:
                raise ValueError(f"no layer has this part in its path. Received: {part!r}")
            for layer in layers:
                layer.trainable = False


def _leaves(owner: Any) -> list[Any]:
    return [x for x in owner._flatten_layers() if not x._flatten_layers(include_self=False)]


class StoresArguments:
    """Mixin of layers and models with an attribute of equal name for each constructor argument."""

    @classmethod
    def all_arguments(cls) -> list[str]:
        """Returns the names of the constructor's arguments, including those of superclasses.

        Superclasses are those below the class that has this mixin as a base.
        """
        names: dict[str, None] = {}
        for owner in reversed(cls.__mro__):
            is_own = issubclass(owner, StoresArguments) and StoresArguments not in owner.__bases__
            if is_own and "__init__" in vars(owner):
                _, *parameters = inspect.signature(vars(owner)["__init__"]).parameters.values()
                names |= {x.name: None for x in parameters if x.kind is not x.VAR_KEYWORD}
        return list(names)

    @classmethod
    def argument_names(cls) -> list[str]:
        """Returns the names of all arguments that not every Keras layer has."""
        return [x for x in cls.all_arguments() if x not in BASE_ARGUMENTS]

    def store_arguments(self, values: dict[str, Any]) -> None:
        """Stores the constructor's arguments, which are in its `locals()`.

        Initializers are stored as configs: sublayers that share an object would get equal weights.
        """
        for name in self.argument_names():
            if name in values:
                value = values[name]
                is_rule = name.endswith(("initializer", "regularizer"))
                if is_rule and not (value is None or isinstance(value, str | dict)):
                    with without_tensorflow():
                        value = keras.saving.serialize_keras_object(value)
                setattr(self, name, value)


class Registry(dict[str, tuple[Any, dict[str, Any]]]):
    """Classes and arguments of their constructors, by the names that models and recipes use."""

    def __init__(self, setting: str) -> None:
        super().__init__()
        self.setting = setting

    def register(self, name: str, **arguments: Any) -> Callable[[type], type]:
        """Returns a decorator that registers a class, for Keras's saved layers, too."""

        def decorator(registered: type) -> type:
            self[name] = registered, arguments
            keras.saving.register_keras_serializable(package="keras_transformer")(registered)
            return registered

        return decorator

    def new(self, name: str, /, **options: Any) -> Any:
        """Creates an object of a registered class, with those `options` that the class takes."""
        registered, arguments = self[name]
        return registered(**arguments, **taken_arguments(registered, options))

    def __missing__(self, name: str) -> Any:
        raise ValueError(
            f"`{self.setting}` must be one of {list(self)}. Received: {self.setting}={name!r}"
        )


class ConfiguredLayer(
    StoresArguments, Adaptable, Recomputable, CreatesPlaceholders, keras.layers.Layer
):
    """Base class of layers that store each constructor argument in an attribute of equal name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def get_config(self) -> dict[str, Any]:
        # A subclass may store an argument under another name and override `get_config`.
        names = [name for name in self.argument_names() if hasattr(self, name)]
        config = {name: getattr(self, name) for name in names}
        clones = CLONES.get() or {}
        for name in config.keys() & OBJECTS:
            if id(config[name]) in clones:  # The layers of the clone share it, too.
                config[name] = clones[id(config[name])]
                continue
            # If a model is being saved, Keras adds the id of a shared object to the second config.
            keras.saving.serialize_keras_object(config[name])
            config[name] = keras.saving.serialize_keras_object(config[name])
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        saved = {x: config[x] for x in OBJECTS if isinstance(config.get(x), dict | list)}
        return cls(**config | keras.saving.deserialize_keras_object(saved))

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns `_output_spec` of the arguments of `call`, if the class of `call` defines it.

        Otherwise, Keras traces `call`, which doubles the time to load a model on TensorFlow.
        """
        # Keras calls the product of a symbolic tensor and a number sparse. Here, all are dense.
        args, kwargs = keras.tree.map_structure(_dense, (args, kwargs))
        owner: Any = next(x for x in type(self).__mro__ if "call" in vars(x))
        if "_output_spec" in vars(owner):
            call = inspect.signature(owner.call).bind(self, *args, **kwargs)
            call.apply_defaults()
            return owner._output_spec(**call.arguments)
        if type(self).compute_output_shape is not ConfiguredLayer.compute_output_shape:
            return super().compute_output_spec(*args, **kwargs)  # asks the subclass's own
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, *input_shapes: Shape) -> Any:
        """Returns the shape of the output, for layers such as `keras.layers.TimeDistributed`."""
        inputs = [keras.KerasTensor(shape, self.compute_dtype) for shape in input_shapes]
        return keras.tree.map_structure(lambda x: x.shape, self.compute_output_spec(*inputs))

    def get_build_config(self) -> dict[str, Any] | None:
        """Returns the input shapes and layer changes that `build_from_config` takes."""
        config = super().get_build_config()
        changes = layer_changes(self)
        return {**config, "changes": changes} if config and changes else config

    def build_from_config(self, config: dict[str, Any]) -> None:
        super().build_from_config(config)
        apply_layer_changes(self, config.get("changes", {}))


def _dense(x: Any) -> Any:
    if isinstance(x, keras.KerasTensor) and x.sparse:
        return keras.KerasTensor(x.shape, x.dtype, name=x.name)
    return x


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(Recomputable, CreatesPlaceholders, keras.layers.Dense):
    """`keras.layers.Dense` that computes ReLU in its product on GPUs, and saves LoRA.

    The layer of Keras saves the merged kernel only, and its loaded LoRA would never change again.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Any:
        if self.bias is not None and self.activation is keras.activations.relu:
            x = affine_relu(inputs, self.kernel, self.bias)
            if x is not None:
                return x
        return super().call(inputs, training=training)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """Quantizes the weights without Keras's type check, which would reject this subclass."""
        super().quantize(mode, type_check=False, config=config)

    def save_own_variables(self, store: Any) -> None:
        """Saves the merged kernel, as Keras does, and with LoRA also the unmerged weights."""
        super().save_own_variables(store)
        for name, weight in self._unmerged().items():
            store[name] = weight

    def load_own_variables(self, store: Any) -> None:
        """Loads the unmerged weights if the layer uses LoRA, otherwise the merged kernel."""
        merged = {name: store[name] for name in store.keys() if name.isdigit()}
        super().load_own_variables(merged)
        for name, weight in self._unmerged().items():
            if name in store.keys():
                weight.assign(store[name])

    def _unmerged(self) -> dict[str, Any]:
        is_adapted = self.built and self.lora_enabled
        return {x.name: x for x in self.weights if is_adapted and x.name in UNMERGED}


def check_lora_is_kept(model: keras.Model) -> None:
    """Raises `ValueError` if a layer of Keras has LoRA, because a saved model would lose it."""
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False) and not isinstance(layer, Dense):
            raise ValueError(
                "Checkpoints keep LoRA of this package's layers only. A layer of Keras saves the "
                "merged kernel, and its LoRA would not train after a resume. Train the model with "
                f"`model.fit`, or without LoRA in this layer. Received: layer={layer.name!r} of "
                f"class {type(layer).__name__}"
            )


def registered(maker: Any) -> Any:
    """Returns the class or function that is registered under a name, and others unchanged."""
    if not isinstance(maker, str):
        return maker
    # Without a module, Keras finds nothing but what a program registers.
    config = {"module": None, "class_name": "function", "config": maker}
    return keras.saving.deserialize_keras_object({**config, "registered_name": maker})


def taken_arguments(maker: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns those of `arguments` that a class of layers, or a function, names.

    With `**`, a function takes all, and a class those of every Keras layer and of base classes.
    """
    parameters = inspect.signature(maker).parameters.values()
    names = {x.name for x in parameters if x.kind is not x.VAR_KEYWORD}
    if len(names) < len(parameters):  # There is `**`.
        names |= BASE_ARGUMENTS if isinstance(maker, type) else arguments.keys()
    if isinstance(maker, type) and issubclass(maker, StoresArguments):
        names |= {*maker.argument_names()}
    return {name: value for name, value in arguments.items() if name in names}


def given_mask(*masks: Mask | None) -> Mask | None:
    """Returns the first of the masks that is not None, otherwise None.

    The last ones are Keras's: it sets the argument `mask` of a `call` if the first argument, such
    as `x`, is the only tensor, otherwise `x_mask`.
    """
    return next((mask for mask in masks if mask is not None), None)


def on_rows(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    """Applies a function of tokens to `(B, T, D)` as to one matrix.

    TensorFlow would multiply the tokens of each sentence on their own.
    """
    y = function(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(y, (*ops.shape(x)[:2], y.shape[-1]))


def dense_options(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the options of a layer, and its dtype policy, for its `Dense` layers."""
    rules = ("kernel_initializer", "bias_initializer", "kernel_regularizer", "bias_regularizer")
    options = {name: getattr(layer, name) for name in ("use_bias", *rules)}
    return {**options, "dtype": layer.dtype_policy}
