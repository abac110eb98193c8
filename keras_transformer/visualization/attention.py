"""The attention weights of all layers and heads of a model, and what can be computed from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import compile_function
from keras_transformer._backend.gradient_checkpointing import gradient_checkpointing
from keras_transformer.capabilities import Capabilities
from keras_transformer.data.tokenizer import check_utf8, most_pieces
from keras_transformer.errors import UserError
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    AttentionKind,
    AttentionRecord,
    recorded_attention,
)
from keras_transformer.translation.hypothesis import (
    align_words,
    source_word_indices,
    target_word_indices,
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


def head_entropy(weights: np.ndarray, query_mask: np.ndarray | None = None) -> np.ndarray:
    """Returns the mean entropy of the rows of each head, in nats.

    The entropy is 0 if each query attends to one key, and ln(S) if all weights are equal.

    Args:
        weights: float array `(B, H, T, S)`, such as `AttentionMap.weights`.
        query_mask: bool array `(B, T)`, True where a query is a real token. At least one query of
            each example must be real. Defaults to None, which means that all queries are real.

    Returns:
        float64 array `(B, H)`.
    """
    weights = np.asarray(weights, "float64")
    entropies = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=-1)
    is_query = np.ones_like(entropies) if query_mask is None else np.asarray(query_mask)[:, None]
    counted = np.broadcast_to(is_query, entropies.shape)
    return np.average(entropies, axis=-1, weights=counted)


@dataclass(frozen=True)
class AttentionExample:
    """Attention maps of one example, and the tokens of their rows and columns.

    Example:

    >>> tokens = ["<s>", "▁to", "▁be"]
    >>> maps = attention_maps(language_model, token_ids)                # token_ids: int (1, 3)
    >>> page = attention_page(AttentionExample(maps, {"decoder": (tokens, tokens)}))

    Args:
        maps: The result of `attention_maps` for a batch of one example.
        tokens: For each kind in `maps`, the tokens of the queries (rows) and of the keys (columns).
        texts: Titles of the page, such as the sentence and its translation. Defaults to none.
        special_tokens: Tokens that are not part of the text. They are marked. Defaults to none.
        alignment: Pairs of word indices (source, target). Defaults to none.

    Raises:
        ValueError: If `maps` has a batch of several examples, or if the numbers of tokens are not
            the numbers of rows and columns.
    """

    maps: Sequence[AttentionMap] = field(repr=False)
    tokens: Mapping[AttentionKind, tuple[Sequence[str], Sequence[str]]]
    texts: Sequence[str] = ()
    special_tokens: Sequence[str] = ()
    alignment: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for each in self.maps:
            queries, keys = map(len, self.tokens[each.kind])
            shape = each.weights.shape
            if (shape[0], *shape[2:]) != (1, queries, keys):
                raise ValueError(
                    "`weights` of each map must have the shape (1, H, T, S), with T tokens of "
                    f"queries and S tokens of keys. Received: weights of shape {shape}, {queries} "
                    f"and {keys} tokens of kind {each.kind!r}"
                )

    @property
    def kinds(self) -> list[AttentionKind]:
        """The kinds of the maps, in their order."""
        return list(dict.fromkeys(each.kind for each in self.maps))

    def layers(self, kind: AttentionKind) -> list[np.ndarray]:
        """Returns the weights `(H, T, S)` of each layer of a kind."""
        return [each.weights[0] for each in self.maps if each.kind == kind]

    def entropies(self, kind: AttentionKind) -> list[list[float]]:
        """Returns `head_entropy` of each layer of a kind."""
        return [head_entropy(each.weights)[0].tolist() for each in self.maps if each.kind == kind]

    def _repr_html_(self) -> str:
        """Shows the attention in a notebook."""
        from keras_transformer.visualization.attention_pages import attention_page

        return attention_page(self)._repr_html_()


def translation_attention(
    translator: Any, sentence: str, target: str | None = None
) -> AttentionExample:
    """Returns the attention of a translation model for a sentence and its translation.

    The tokens of the decoder's queries are those that the decoder reads. The tokens of the queries
    of cross-attention are those that the decoder predicts at the same positions.

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
    source = _encoded(tokenizer, "source", sentence, translator.max_length)
    if target is None:
        hypothesis = translator.translate_nbest([sentence])[0][0]
        target = hypothesis.text
        pieces = list(hypothesis.ids[len(tokenizer.target_prefix_ids) :])
    else:
        pieces = _encoded(tokenizer, "target", target, translator.max_length)
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
    if Capabilities.of(model).source_attention is not None:
        attention = model.source_attention(inputs["source_ids"], inputs["target_ids"][:, None])
        alignment = align_words(
            ops.convert_to_numpy(attention)[0, 0, before[1] :, before[0] :],
            source_word_indices(tokenizer, sentence, source),
            target_word_indices(tokenizer, pieces),
        )
    try:
        return AttentionExample(
            attention_maps(model, inputs),
            {"encoder": (keys, keys), "decoder": (queries, queries), "cross": (predicted, keys)},
            (sentence, target),
            tuple(names[0][id] for id in special),
            alignment,
        )
    except ValueError as error:
        raise UserError(str(error)) from None


def source_tokens(tokenizer: Any, sentence: str, source_ids: Sequence[int]) -> list[str]:
    """Returns the tokens of a framed sentence, with the characters of those that are unknown."""
    pieces, surfaces = tokenizer.source_pieces, tokenizer.source_surfaces(sentence)
    shown = dict(enumerate(surfaces, len(source_ids) - len(surfaces) - tokenizer.source_eos))
    return [
        shown.get(place, "") if id == tokenizer.unk_id else pieces[id]
        for place, id in enumerate(source_ids)
    ]


def _encoded(tokenizer: Any, side: str, text: str, max_length: int) -> list[int]:
    """Returns the pieces of a text, without special tokens."""
    check_utf8(text)
    pieces: list[int] = getattr(tokenizer, f"encode_{side}")([text])[0]
    most = most_pieces(tokenizer, side, max_length)
    if not 0 < len(pieces) <= most:
        raise UserError(
            f"a sentence must have 1 to {most} tokens. Received: {len(pieces)} tokens, {text!r:.80}"
        )
    return pieces
