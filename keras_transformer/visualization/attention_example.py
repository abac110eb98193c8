"""The attention of a model for one example, with the tokens that the weights belong to."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.data.tokenizer import check_utf8, fits
from keras_transformer.errors import UserError
from keras_transformer.layers.attention.scaled_dot_product_attention import AttentionKind
from keras_transformer.translation.hypothesis import (
    align_words,
    source_word_indices,
    target_word_indices,
)
from keras_transformer.visualization.attention_weights import AttentionMap, attention_maps


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
        ValueError: If `maps` is empty or has a batch of several examples.
        ValueError: If the numbers of tokens are not the numbers of rows and columns.
    """

    maps: Sequence[AttentionMap]
    tokens: Mapping[AttentionKind, tuple[Sequence[str], Sequence[str]]]
    texts: Sequence[str] = ()
    special_tokens: Sequence[str] = ()
    alignment: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.maps:
            raise ValueError("`maps` must have at least one map. Received: maps=[]")
        for each in self.maps:
            queries, keys = map(len, self.tokens[each.kind])
            batch, _, rows, columns = each.weights.shape
            if (batch, rows, columns) != (1, queries, keys):
                raise ValueError(
                    "`weights` of each map must have the shape (1, H, T, S), with T tokens of "
                    f"queries and S tokens of keys. Received: weights of shape "
                    f"{each.weights.shape}, {queries} and {keys} tokens of kind {each.kind!r}"
                )

    @property
    def kinds(self) -> list[AttentionKind]:
        """The kinds of the maps, in their order."""
        return list(dict.fromkeys(each.kind for each in self.maps))

    def layers(self, kind: AttentionKind) -> list[np.ndarray]:
        """Returns the weights `(H, T, S)` of each layer of a kind."""
        return [each.weights[0] for each in self.maps if each.kind == kind]


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
            if the model has no attention.
    """
    model, tokenizer = translator.model, translator.tokenizer
    source = _encoded(tokenizer.encode_source, sentence, translator.max_length)
    if target is None:
        hypothesis = translator.translate_nbest([sentence])[0][0]
        target, pieces = hypothesis.text, list(hypothesis.ids)
    else:
        pieces = _encoded(tokenizer.encode_target, target, translator.max_length)
    source_ids = tokenizer.frame_source(source)
    target_ids, labels = tokenizer.frame_target(pieces)
    inputs = {
        "source_ids": np.array([source_ids], "int32"),
        "target_ids": np.array([target_ids], "int32"),
    }
    try:
        with warnings.catch_warnings():  # Keras warns of a softmax over one token.
            warnings.filterwarnings("ignore", message="You are using a softmax")
            maps = attention_maps(model, inputs)
    except ValueError as error:
        raise UserError(str(error)) from None
    names = tokenizer.source_pieces, tokenizer.target_pieces
    keys = [names[0][id] for id in source_ids]
    queries, predicted = ([names[1][id] for id in ids] for ids in (target_ids, labels))
    special = tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id
    attention = model.source_attention(inputs["source_ids"], inputs["target_ids"][:, None])
    return AttentionExample(
        maps,
        {"encoder": (keys, keys), "decoder": (queries, queries), "cross": (predicted, keys)},
        (sentence, target),
        tuple(names[0][id] for id in special),
        align_words(
            ops.convert_to_numpy(attention)[0, 0],
            source_word_indices(tokenizer, sentence, source),
            target_word_indices(tokenizer, pieces),
        ),
    )


def _encoded(encode: Any, text: str, max_length: int) -> list[int]:
    """Returns the pieces of a text, without special tokens."""
    check_utf8(text)
    pieces: list[int] = encode([text])[0]
    if not pieces or not fits(pieces, max_length):
        raise UserError(
            f"a sentence must have 1 to {max_length - 1} tokens. Received: {len(pieces)} tokens, "
            f"{text!r:.80}"
        )
    return pieces
