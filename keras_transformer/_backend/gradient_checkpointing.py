"""Recomputes activations in the backward pass instead of storing them (checkpointing)."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any, TypeVar

import keras
from keras import ops

Call = TypeVar("Call", bound=Callable[..., Any])


class _State(local):
    """Whether `gradient_checkpointing` is on in each thread."""

    is_on = False


_state = _State()


@contextmanager
def gradient_checkpointing(is_on: bool = True) -> Iterator[None]:
    """Makes `checkpointable` layers store only their inputs and outputs within this context.

    The backward pass recomputes all other activations. The results do not change, because forward
    and backward pass use the same dropout masks. `keras.RematScope` is unsuitable. On TensorFlow,
    `keras.RematScope` loses keyword arguments. On JAX, it fails because seeds leak out of a trace.
    On PyTorch, `keras.RematScope` draws new dropout masks in the backward pass.

    Args:
        is_on: Whether to use gradient checkpointing. Defaults to True.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    outer, _state.is_on = _state.is_on, is_on
    try:
        yield
    finally:
        _state.is_on = outer


def checkpointable(call: Call) -> Call:
    """Decorates a layer's `call` so that gradient checkpointing can recompute its activations.

    Args:
        call: Method that returns one tensor. Gradients are computed with respect to the method's
            float arguments. In this method, only `keras_transformer.layers.Dropout` may draw random
            numbers.
    """

    @functools.wraps(call)
    def checkpointable_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        # False if the `call` of a subclass calls this method.
        is_own = getattr(type(layer).call, "__wrapped__", None) is call
        if is_own and _state.is_on:
            return _checkpointed(layer, args, kwargs)
        return call(layer, *args, **kwargs)

    checkpointable_call.is_checkpointable = True  # type: ignore[attr-defined]
    return checkpointable_call  # type: ignore[return-value]


def check_checkpointable(model: keras.Model) -> None:
    """Raises `ValueError` if gradient checkpointing has no effect, or would change the results."""
    layers = [x for x in model._flatten_layers() if hasattr(type(x).call, "is_checkpointable")]
    if not layers:
        raise ValueError(
            "`gradient_checkpointing` has no effect on this model: none of its layers supports "
            f"it. Received: model={type(model).__name__}"
        )
    parts = (part for layer in layers for part in layer._flatten_layers())
    if any(isinstance(part, keras.layers.BatchNormalization) for part in parts):
        raise ValueError(
            "`gradient_checkpointing` does not support batch normalization: the backward pass "
            "would update the moving averages again. "
            f"Received: model={type(model).__name__} with batch normalization"
        )


def _checkpointed(layer: Any, args: Any, kwargs: Any) -> Any:
    structure = (args, kwargs)
    flat = keras.tree.flatten(structure)
    floats = [i for i, x in enumerate(flat) if _is_float_tensor(x)]
    dropouts = [d for d in layer._flatten_layers() if hasattr(d, "fixed_seed") and d.rate > 0]
    seeds = [dropout.next_seed() for dropout in dropouts]

    def function(*tensors: Any) -> Any:
        filled = list(flat)
        for i, tensor in zip(floats, tensors, strict=True):
            filled[i] = tensor
        inputs, named = keras.tree.pack_sequence_as(structure, filled)
        with gradient_checkpointing(False), _fixed(dropouts, _tied_to(tensors[0], seeds)):
            return layer(*inputs, **named, training=True)

    return _recomputing(function)(*(flat[i] for i in floats))


def _is_float_tensor(x: Any) -> bool:
    return ops.is_tensor(x) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(x.dtype)
    )


@contextmanager
def _fixed(dropouts: Sequence[Any], seeds: Sequence[Any]) -> Iterator[None]:
    for dropout, seed in zip(dropouts, seeds, strict=True):
        dropout.fixed_seed = seed
    try:
        yield
    finally:
        for dropout in dropouts:
            dropout.fixed_seed = None


def _tied_to(x: Any, seeds: Sequence[Any]) -> list[Any]:
    """On TensorFlow, makes the seeds depend on `x`, so that the dropout masks are not stored."""
    if keras.config.backend() != "tensorflow":
        return list(seeds)
    first = ops.reshape(x, (-1,))[0]
    return [seed + ops.cast(ops.isnan(first), seed.dtype) for seed in seeds]


def _recomputing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of tensors so that its activations are not stored."""
    if keras.config.backend() == "torch":
        from torch.utils.checkpoint import checkpoint

        return functools.partial(
            checkpoint, function, use_reentrant=False, preserve_rng_state=False
        )
    if keras.config.backend() == "jax":
        return _recomputing_on_jax(function)
    return keras.remat(function)


def _recomputing_on_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Works like `jax.checkpoint`, but prevents XLA from removing the recomputation on CPUs.

    With `jax.checkpoint`, XLA on CPUs recognizes that the recomputation repeats the forward pass.
    XLA then omits the recomputation and stores the activations. In this function, the inputs of the
    recomputation depend on the gradient, so XLA recognizes no repetition.
    """
    import jax
    from jax import numpy as jnp

    def call(*tensors: Any) -> Any:
        pure, weights = jax.closure_convert(function, *tensors)

        def compute(tensors: Any, weights: Any) -> Any:
            return pure(*tensors, *weights)

        def forward(tensors: Any, weights: Any) -> Any:
            return compute(tensors, weights), (tensors, weights)

        def backward(inputs: Any, upstream: Any) -> Any:
            tensors, weights = inputs
            is_lost = jnp.isnan(jnp.ravel(upstream)[0])
            tensors = [jnp.where(is_lost, jnp.nan, x) for x in tensors]
            _, pull_back = jax.vjp(compute, tensors, weights)
            return pull_back(upstream)

        checkpointed = jax.custom_vjp(compute)
        checkpointed.defvjp(forward, backward)
        return checkpointed(list(tensors), weights)

    return call
