"""Activations that are computed again for the gradient instead of being kept."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.dropout import Dropout


@contextmanager
def recomputation(layers: Sequence[Any]) -> Iterator[None]:
    """Context in which calls of some layers in training keep their inputs and outputs alone.

    What is between them is computed again when the gradient is. The numbers stay the same: dropout
    draws its seeds once, and has the same masks in both passes. `keras.RematScope` cannot do that:
    it loses keyword arguments on TensorFlow, leaks seeds on JAX and draws other masks elsewhere.

    Args:
        layers: Keras layers, called with float tensors that have a gradient and others that have
            none, and returning one tensor. Their only random state is that of `Dropout`.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    for layer in layers:
        layer.call = partial(_call, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """What stands for `layer.call` within the context."""
    structure = (args, kwargs)
    flat = keras.tree.flatten(structure)
    places = [place for place, x in enumerate(flat) if _is_float_tensor(x)]
    dropouts = [d for d in layer._flatten_layers() if isinstance(d, Dropout) and d.rate > 0]
    seeds = [dropout.seed_generator.next() for dropout in dropouts]

    def function(*tensors: Any) -> Any:
        filled = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        inputs, named = keras.tree.pack_sequence_as(structure, filled)
        with _fixed(dropouts, _anew(seeds, tensors[0])):
            return layer(*inputs, **named, training=True)

    replacement = layer.call
    del layer.call  # `function` calls the layer itself
    try:
        return _keeping_inputs_alone(function)(*(flat[place] for place in places))
    finally:
        layer.call = replacement


def _is_float_tensor(x: Any) -> bool:
    return ops.is_tensor(x) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(x.dtype)
    )


@contextmanager
def _fixed(dropouts: Sequence[Dropout], seeds: Sequence[Any]) -> Iterator[None]:
    for dropout, seed in zip(dropouts, seeds, strict=True):
        dropout.fixed_seed = seed
    try:
        yield
    finally:
        for dropout in dropouts:
            dropout.fixed_seed = None


def _anew(seeds: Sequence[Any], x: Any) -> list[Any]:
    """The seeds, as if they depended on `x`, or else TensorFlow would keep the masks."""
    if keras.config.backend() != "tensorflow":
        return list(seeds)
    first = ops.reshape(x, (-1,))[0]
    return [seed + ops.cast(ops.isnan(first), seed.dtype) for seed in seeds]


def _keeping_inputs_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of tensors, whose results between are not kept for the gradient."""
    if keras.config.backend() == "torch":
        from torch.utils.checkpoint import checkpoint

        return partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
    if keras.config.backend() == "jax":
        return _keeping_inputs_alone_on_jax(function)
    return keras.remat(function)


def _keeping_inputs_alone_on_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """What `jax.checkpoint` is for, also on CPUs: there XLA sees that it computes a thing twice.

    So the inputs of the second time are made to look as if they depended on the gradient.
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

        forgetful = jax.custom_vjp(compute)
        forgetful.defvjp(forward, backward)
        return forgetful(list(tensors), weights)

    return call
