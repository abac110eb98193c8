"""Recomputes activations in the backward pass instead of storing them (checkpointing)."""

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

import keras
from keras import ops

from keras_transformer._backend import replaced, set_to
from keras_transformer._backend.types import Tensor

Call = TypeVar("Call", bound=Callable[..., Any])


# None: only layers that were made in a `keras.RematScope` recompute their activations.
_is_on: ContextVar[bool | None] = ContextVar("gradient_checkpointing", default=None)


def gradient_checkpointing(is_on: bool = True) -> AbstractContextManager[None]:
    """Makes `checkpointable` layers store only their inputs and outputs within this context.

    The backward pass recomputes all other activations, with the same dropout masks. If `is_on` is
    False, no layer recomputes anything, not even in a `keras.RematScope`.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    return set_to(_is_on, is_on)


def checkpointable(call: Call) -> Call:
    """Decorates a layer's `call` so that gradient checkpointing can recompute its activations.

    The method returns one tensor. Gradients are computed with respect to its float arguments. Only
    `keras_transformer.layers.Dropout` may draw random numbers in it.
    """

    @functools.wraps(call)
    def checkpointable_call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        # False if the `call` of a subclass calls this method.
        is_own = getattr(type(layer).call, "__wrapped__", None) is call
        is_on = _is_on.get()
        if is_own and (_is_in_scope(layer, args, kwargs) if is_on is None else is_on):
            return _recomputed(layer, args, kwargs)
        return call(layer, *args, **kwargs)

    checkpointable_call.is_checkpointable = True  # type: ignore[attr-defined]
    return checkpointable_call  # type: ignore[return-value]


class Recomputable:
    """Mixin of layers and models that Keras must not recompute in a `keras.RematScope`.

    Keras would draw new dropout masks in the backward pass on PyTorch, and fails on TensorFlow and
    JAX. Instead, `checkpointable` layers recompute as with `gradient_checkpointing`.
    """

    def rematerialized_call(self, layer_call: Any, *_: Any, **__: Any) -> Any:
        """Returns what Keras calls in place of `layer_call`, the layer's `call`: the same."""
        return layer_call


class RepeatableDropout:
    """Mixin of a dropout layer whose `next_seed` returns `fixed_seed`, if that is set."""

    rate: float
    fixed_seed: Tensor | None = None
    next_seed: Callable[[], Tensor]


def _is_in_scope(layer: keras.layers.Layer, *inputs: Any) -> bool:
    """Returns whether this call is one that the layer's `keras.RematScope` wants recomputed."""
    scope = layer._remat_mode
    if not scope or not layer._get_call_context().get_value("training"):
        return False
    tensors = filter(ops.is_tensor, keras.tree.flatten(inputs))
    shapes = [[n if isinstance(n, int) else 1 for n in x.shape] for x in tensors]
    is_wanted = {
        "full": True,
        "larger_than": max(map(math.prod, shapes)) > scope.output_size_threshold,
        "list_of_layers": layer.name in (scope.layer_names or ()),
    }
    return is_wanted.get(scope.mode, False) and not any(map(_has_state, layer._flatten_layers()))


def check_not_recomputed_by_keras(layer: keras.layers.Layer) -> None:
    """Raises `ValueError` if the outermost layer of this call is one that Keras recomputes."""
    outermost = layer._get_call_context().entry_layer
    mode = outermost._remat_mode and outermost._remat_mode.mode
    if mode in ("full", "larger_than") and not isinstance(outermost, Recomputable):
        raise ValueError(
            "Keras would recompute its own model with other dropout masks. Create it outside of "
            f"the scope. Received: {outermost.name} in `keras.RematScope` of mode {mode!r}"
        )


def check_checkpointable(model: keras.Model) -> None:
    """Raises `ValueError` if gradient checkpointing has no effect, or would change the results."""
    layers = [x for x in model._flatten_layers() if hasattr(type(x).call, "is_checkpointable")]
    parts = [part for layer in layers for part in layer._flatten_layers()]
    reason = "" if layers else "none of the layers supports it"
    if any(map(_has_state, parts)):
        reason = (
            "batch normalization would update its moving averages twice, and random layers of "
            "Keras would draw new numbers"
        )
    if reason:
        raise ValueError(
            f"`gradient_checkpointing` does not support this model: {reason}. "
            f"Received: model={type(model).__name__}"
        )


def _has_state(layer: keras.layers.Layer) -> bool:
    """Returns whether a second pass would update the layer's own state or draw other numbers."""
    is_random = getattr(layer, "seed_generator", None) and not isinstance(layer, RepeatableDropout)
    return bool(is_random) or isinstance(layer, keras.layers.BatchNormalization)


def _recomputed(layer: keras.layers.Layer, *structure: Any) -> Any:
    """Calls a layer with the positional and named inputs of `structure`, and stores only those."""
    flat = keras.tree.flatten(structure)
    dtypes = {i: x.dtype for i, x in enumerate(flat) if ops.is_tensor(x)}
    floats = [i for i, dtype in dtypes.items() if "float" in keras.backend.standardize_dtype(dtype)]
    layers = layer._flatten_layers()
    dropouts = [x for x in layers if isinstance(x, RepeatableDropout) and x.rate > 0]
    # TensorFlow would read them again in the backward pass, possibly after the optimizer's update.
    weights = layer.weights if keras.config.backend() == "tensorflow" else []
    seeds = [dropout.next_seed() for dropout in dropouts]
    given = [flat[i] for i in floats], seeds, [x._value for x in weights]

    def function(*tensors: Any) -> Any:
        inputs, seeds, values = keras.tree.pack_sequence_as(given, tensors)
        filled = list(flat)
        for i, tensor in zip(floats, inputs, strict=True):
            filled[i] = tensor
        args, kwargs = keras.tree.pack_sequence_as(structure, filled)
        mapping = [*zip(weights, values, strict=True)]
        scope = keras.StatelessScope(state_mapping=mapping) if weights else nullcontext()
        with gradient_checkpointing(False), scope, ExitStack() as stack:
            for dropout, seed in zip(dropouts, seeds, strict=True):
                stack.enter_context(replaced(dropout, {"fixed_seed": seed}))
            return layer(*args, **{**kwargs, "training": True})

    return _recomputing(function)(*keras.tree.flatten(given))


def _recomputing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of tensors so that its activations are not stored."""
    if keras.config.backend() == "torch":
        from torch.utils.checkpoint import checkpoint

        return functools.partial(
            checkpoint, function, use_reentrant=False, preserve_rng_state=False
        )
    return (_recomputing_on_jax if keras.config.backend() == "jax" else remat)(function)


def remat(function: Callable[..., Any]) -> Callable[..., Any]:
    """Works like `keras.remat`, but has no NaN among its constants on TensorFlow.

    There, `function` must read no variables.
    """
    if keras.config.backend() != "tensorflow":
        return keras.remat(function)
    import tensorflow as tf

    @tf.custom_gradient
    def call(*tensors: Any) -> Any:
        def backward(*upstream: Any) -> Any:
            # The inputs depend on the gradient, so that TensorFlow does not recompute earlier.
            is_lost = tf.math.is_nan(tf.reshape(upstream[0], (-1,))[0])
            inputs = [tf.where(is_lost, tf.zeros((), x.dtype), x) for x in tensors]
            floats = [x for x in inputs if x.dtype.is_floating]
            with tf.GradientTape() as tape:
                tape.watch(floats)
                outputs = function(*inputs)
            zero = tf.UnconnectedGradients.ZERO
            found = iter(tape.gradient(outputs, floats, upstream, unconnected_gradients=zero))
            return [next(found) if x.dtype.is_floating else None for x in inputs]

        return function(*tensors), backward

    return call


def _recomputing_on_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Works like `jax.checkpoint`, but XLA on CPUs does not remove the recomputation.

    With `jax.checkpoint`, XLA would recognize that it repeats the forward pass, and store the
    activations. Here, the inputs of the recomputation depend on the gradient.
    """
    import jax
    from jax import numpy as jnp

    def call(*tensors: Any) -> Any:
        pure, weights = jax.closure_convert(function, *tensors)

        def compute(tensors: Any, weights: Any) -> Any:
            return pure(*tensors, *weights)

        def forward(*inputs: Any) -> Any:
            return compute(*inputs), inputs

        def backward(inputs: Any, upstream: Any) -> Any:
            tensors, weights = inputs
            is_lost = jnp.isnan(jnp.ravel(jax.tree.leaves(upstream)[0])[0])
            tensors = [jnp.where(is_lost, 0, x) for x in tensors]
            return jax.vjp(compute, tensors, weights)[1](upstream)

        checkpointed = jax.custom_vjp(compute)
        checkpointed.defvjp(forward, backward)
        return checkpointed(list(tensors), weights)

    return call
