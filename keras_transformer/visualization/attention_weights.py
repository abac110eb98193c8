"""The attention weights of all layers and heads of a model, and what can be computed from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import compile_function
from keras_transformer._backend.gradient_checkpointing import gradient_checkpointing
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    AttentionKind,
    AttentionRecord,
    recorded_attention,
)


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of all heads of one layer.

    Attributes:
        name: Path of the layer in the model, such as `"encoder_layer_1/self_attention"`.
        kind: `"encoder"` (self-attention to all positions), `"decoder"` (causal self-attention) or
            `"cross"` (attention to another sequence).
        weights: float32 array `(B, H, T, S)`. Row t, column s is the weight of key s for query t.
            A layer without heads has H = 1.
    """

    name: str
    kind: AttentionKind
    weights: np.ndarray


def attention_maps(model: Any, inputs: Any) -> list[AttentionMap]:
    """Returns the attention weights of all layers and heads of a model.

    The model can be any Keras model with layers that call `record_attention`, such as
    `MultiHeadAttention` and `SelfAttention`, also within other layers. The model runs once, without
    dropout.

    Example:

    >>> maps = attention_maps(model, {"source_ids": source_ids, "target_ids": target_ids})
    >>> maps[0].name, maps[0].kind, maps[0].weights.shape
    ('encoder_layer_1/self_attention', 'encoder', (1, 8, 12, 12))

    Args:
        model: The model. Functions in it that `tf.function` or `jax.jit` has compiled are not
            supported.
        inputs: What the model is called with, for a batch of B examples.

    Returns:
        One `AttentionMap` per call of an attention layer, in the order of the calls. For a
        `Transformer`, the shapes are `(B, H, S, S)` in the encoder, `(B, H, T, T)` in the decoder's
        self-attention and `(B, H, T, S)` in cross-attention. Each row sums to 1. Masked keys
        (padding, later positions in causal attention, distances outside an attention pattern) have
        the weight 0. If all keys of a query are masked, they have equal weights. Rows of padding
        contain what the model computes for padding. With a dtype policy such as `mixed_bfloat16`,
        the weights are rounded to the compute dtype, as in the model, so that a row sums to 1 only
        up to rounding errors.

    Raises:
        ValueError: If `model` is no Keras model, or calls no attention layer of this package.
    """
    if not isinstance(model, keras.layers.Layer):
        raise ValueError(
            "`model` must be a Keras model, such as one of `Ensemble.models`. "
            f"Received: model={model}"
        )
    if not model.built:
        model(inputs)  # Keras may trace layers to build them. Only the call after that is recorded.
    calls: list[AttentionRecord] = []

    def run(model: Any, inputs: Any) -> list[Any]:
        with gradient_checkpointing(False), recorded_attention() as records:
            model(inputs, training=False)
        calls[:] = records
        return [record.weights for record in records]

    # Without compilation, JAX takes 10 times as long for a first call.
    is_jax = keras.config.backend() == "jax"
    weights = compile_function(run, model)(inputs) if is_jax else run(model, inputs)
    if not calls:
        raise ValueError(
            "`model` must have attention layers of keras_transformer, such as MultiHeadAttention. "
            f"Received: a model of the class {type(model).__name__}"
        )
    return [_attention_map(*each) for each in zip(calls, weights, strict=True)]


def _attention_map(record: AttentionRecord, weights: Any) -> AttentionMap:
    weights = ops.convert_to_numpy(ops.cast(weights, "float32"))
    weights = weights[:, None] if weights.ndim == 3 else weights
    return AttentionMap(record.layer.path, record.kind, weights)


def attention_rollout(maps: Sequence[AttentionMap]) -> np.ndarray:
    """Estimates how much each position of the last layer depends on each input position.

    Each layer is the mean over its heads, averaged with the identity for the residual connection.
    The roll-out is the product of these matrices over all layers.

    Example:

    >>> rollout = attention_rollout([x for x in maps if x.kind == "encoder"])

    Args:
        maps: The self-attention of the layers of one stack, from the first to the last.

    Returns:
        float64 array `(B, T, T)`. Each row sums to 1.

    Raises:
        ValueError: If `maps` is empty, or contains cross-attention or different shapes.

    Source: Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, §3.
    """
    shapes = {(*each.weights.shape[:1], *each.weights.shape[2:]) for each in maps}
    kinds = {each.kind for each in maps}
    if len(shapes) != 1 or len(kinds) != 1 or "cross" in kinds:
        raise ValueError(
            "`maps` must be the self-attention of the layers of one stack. "
            f"Received: kinds={sorted(kinds)}, shapes (B, T, S)={sorted(shapes)}"
        )
    rollout = np.eye(maps[0].weights.shape[-1])
    for each in maps:
        mean = each.weights.mean(axis=1, dtype="float64")
        rollout = (mean + np.eye(mean.shape[-1])) / 2 @ rollout
    return rollout


def head_entropy(weights: np.ndarray, query_mask: np.ndarray | None = None) -> np.ndarray:
    """Returns the mean entropy of the rows of each head, in nats.

    The entropy is 0 if each query attends to one key, and ln(S) if all weights are equal.

    Args:
        weights: float array `(B, H, T, S)`, such as `AttentionMap.weights`.
        query_mask: bool array `(B, T)`, True where a query is a real token. At least one query of
            each example must be real. Defaults to None, which means that all queries are real.

    Returns:
        float64 array `(B, H)`.

    Raises:
        ValueError: If `weights` or `query_mask` has another shape.
    """
    weights = np.asarray(weights, "float64")
    if weights.ndim != 4:
        raise ValueError(
            f"`weights` must have the shape (B, H, T, S). Received: shape={weights.shape}"
        )
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    entropies = -(weights * logarithms).sum(axis=-1)
    if query_mask is None:
        return entropies.mean(axis=-1)
    query_mask = np.asarray(query_mask, bool)
    if query_mask.shape != (len(weights), weights.shape[2]):
        raise ValueError(
            f"`query_mask` must have the shape (B, T) = {(len(weights), weights.shape[2])}. "
            f"Received: shape={query_mask.shape}"
        )
    is_query = query_mask[:, None, :]
    return np.where(is_query, entropies, 0.0).sum(axis=-1) / is_query.sum(axis=-1)
