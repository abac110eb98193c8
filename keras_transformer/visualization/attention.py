"""Reads the attention weights of all layers and heads of a model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import compile_function
from keras_transformer._backend.gradient_checkpointing import gradient_checkpointing
from keras_transformer.capabilities import Capabilities
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    AttentionRecord,
    recorded_attention,
)
from keras_transformer.translation.alignment import align_words, memberships, words
from keras_transformer.translation.scoring import checked_pieces
from keras_transformer.visualization.attention_pages import AttentionExample, AttentionMap


def attention_maps(model: keras.Model, inputs: Any) -> list[AttentionMap]:
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
        One `AttentionMap` per call of an attention layer, in the order of the calls. Each row sums
        to 1, except for rounding errors in the compute dtype. Masked keys (padding, later positions
        in causal attention, distances outside an attention pattern) have the weight 0. If all keys
        of a query are masked, they have equal weights.

    Raises:
        ValueError: If `model` calls no attention layer of this package.
    """
    if not model.built:
        model(inputs)  # Keras may trace layers to build them. Only the call after that is recorded.
    calls: list[AttentionRecord] = []

    def run(model: keras.Model, inputs: Any) -> list[Any]:
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
    maps = []
    for record, tensor in zip(calls, weights, strict=True):
        array = ops.convert_to_numpy(ops.cast(tensor, "float32"))
        array = array[:, None] if array.ndim == 3 else array
        maps.append(AttentionMap(record.layer.path, record.kind, array))
    return maps


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
        ValueError: If `maps` is empty, or contains cross-attention or different kinds.

    Source: Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, §3.
    """
    kinds = sorted({each.kind for each in maps})
    if kinds not in (["encoder"], ["decoder"]):
        raise ValueError(
            f"`maps` must be the self-attention of the layers of one stack. Received: kinds={kinds}"
        )
    rollout = np.eye(maps[0].weights.shape[-1])
    for each in maps:
        mean = each.weights.mean(axis=1, dtype="float64")
        rollout = (mean + np.eye(mean.shape[-1])) / 2 @ rollout
    return rollout


def translation_attention(
    translator: Any, sentence: str, target: str | None = None
) -> AttentionExample:
    """Returns the attention of a translation model for a sentence and its translation.

    The tokens of the decoder's queries are those that the decoder reads. The tokens of the queries
    of cross-attention are those that the decoder predicts at the same positions. A translation by
    the model has word scores.

    Example:

    >>> translator = Translator.from_run("tatoeba_en_de")
    >>> example = translation_attention(translator, "The dog sleeps.")
    >>> Path("attention.html").write_text(attention_page(example), encoding="utf-8")

    Args:
        translator: A `Translator`.
        sentence: The source sentence.
        target: A translation of the sentence. Defaults to None, which means that the model
            translates the sentence.

    Raises:
        UserError: If the sentence or the target has no token or too many tokens for the model, or
            if the model has no attention between its tokens.
    """
    model, tokenizer = translator.model, translator.tokenizer
    sentence = translator.word_forms.of_line(sentence).text
    (source,) = checked_pieces(tokenizer, "source", [sentence], translator.max_length, least=1)
    word_scores: tuple[float, ...] = ()
    if target is None:
        hypothesis = translator.translate_nbest([sentence], word_scores=True)[0][0]
        word_scores = hypothesis.word_scores
        pieces = list(hypothesis.ids[len(tokenizer.target_prefix_ids) :])
        (target,) = tokenizer.decode_target([pieces])
    else:
        (pieces,) = checked_pieces(tokenizer, "target", [target], translator.max_length, least=1)
    source_ids = tokenizer.frame_source(source)
    target_ids, labels = tokenizer.frame_target(pieces)
    inputs = {
        "source_ids": np.array([source_ids], "int32"),
        "target_ids": np.array([target_ids], "int32"),
    }
    names = tokenizer.source_pieces, tokenizer.target_pieces
    keys = source_tokens(tokenizer, sentence, source_ids)
    queries, predicted = ([names[1][id] for id in ids] for ids in (target_ids, labels))
    special = tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id
    first = len(source_ids) - len(source) - tokenizer.source_eos
    before = first, len(tokenizer.target_prefix_ids)
    alignment: tuple[tuple[int, int], ...] = ()
    with translator.own_weights():
        if Capabilities.of(model).source_attention is not None:
            attention = model.source_attention(inputs["source_ids"], inputs["target_ids"][:, None])
            alignment = align_words(
                ops.convert_to_numpy(attention)[0, 0, before[1] :, before[0] :],
                memberships(tokenizer.source_offsets(sentence), words(sentence)),
                memberships(tokenizer.target_offsets(pieces), words(target)),
            )
        try:
            return AttentionExample(
                attention_maps(model, inputs),
                {
                    "encoder": (keys, keys),
                    "decoder": (queries, queries),
                    "cross": (predicted, keys),
                },
                (sentence, target),
                tuple(names[0][id] for id in special),
                alignment,
                word_scores,
            )
        except ValueError as error:
            raise UserError(str(error)) from None


def source_tokens(tokenizer: Tokenizer, sentence: str, source_ids: Sequence[int]) -> list[str]:
    """Returns the tokens of a framed sentence, with the characters of those that are unknown."""
    pieces, surfaces = tokenizer.source_pieces, tokenizer.source_surfaces(sentence)
    shown = dict(enumerate(surfaces, len(source_ids) - len(surfaces) - tokenizer.source_eos))
    return [
        shown.get(place, "") if id == tokenizer.unk_id else pieces[id]
        for place, id in enumerate(source_ids)
    ]
