"""Which source word each target word was translated from, by the attention to the source."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.search import count_tokens, run_search

WORD_BEGIN = "▁"


class AttentionState(NamedTuple):
    """What `forced_attention` carries from token to token, beside the model's cache.

    Attributes:
        position: int32 `()`, tokens read so far.
        attention: float32 `(B, N, T, S)`, zeros from `position` on.
    """

    position: Any
    attention: Any


def forced_attention(model: Any, source_ids: Any, target_ids: Any, pad_id: int = 0) -> Any:
    """Returns the attention to the source of hypotheses that are given.

    A function of tensors alone, for any backend; `compile_function` makes it fast. Any N
    hypotheses share one encoding of their source.

    Example:

    >>> attention = forced_attention(model, source_ids, target_ids)            # (B, N, T, S)

    Args:
        model: Has `init_cache` and `step`, as `Transformer` documents them; `step` must be able to
            return attention weights.
        source_ids: int tensor `(B, S)`.
        target_ids: int tensor `(B, N, T)`: bos and pieces, padded at the end.
        pad_id: Id of padding. Defaults to 0.

    Returns:
        float32 `(B, N, T, S)`: the mean over the heads of the decoder's last layer. Row t belongs
        to the step that reads token t and predicts token t + 1. It adds up to 1 over the source,
        eos included; rows and columns of padding are 0.
    """
    source_ids = ops.convert_to_tensor(source_ids, dtype="int32")
    target_ids = ops.convert_to_tensor(target_ids, dtype="int32")
    batch, beams, length = ops.shape(target_ids)
    longest = ops.max(count_tokens(target_ids, pad_id))

    def advance(state: AttentionState, cache: Any) -> tuple[AttentionState, Any]:
        position, attention = state
        tokens = ops.take(target_ids, position, axis=-1)
        _, cache, weights = model.step(tokens, cache, position, return_attention_weights=True)
        attention = ops.slice_update(attention, (0, 0, position, 0), weights[:, :, None])
        return AttentionState(position + 1, attention), cache

    start = AttentionState(
        position=ops.convert_to_tensor(0, dtype="int32"),
        attention=ops.zeros((batch, beams, length, ops.shape(source_ids)[1]), "float32"),
    )
    end = run_search(
        model,
        lambda positions: model.init_cache(source_ids, positions, beams),
        advance,
        lambda state: state.position < longest,
        start,
        length,
    )
    return ops.where((target_ids != pad_id)[..., None], end.attention, 0.0)


def word_alignment(
    attention: np.ndarray, source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> tuple[tuple[int, int], ...]:
    """Aligns each target word to the source word that gets most of its pieces' attention.

    Words are what the pieces of SentencePiece say: "▁" begins one.

    Example:

    >>> word_alignment(np.array([[0.1, 0.9], [0.6, 0.4]]), ["▁black", "▁cat"], ["▁chat", "▁noir"])
    ((0, 1), (1, 0))

    Args:
        attention: float array, row t the attention of target piece t, column s that to source
            piece s. Further rows and columns, such as those of eos, do not count.
        source_pieces: Pieces of the source.
        target_pieces: Pieces of the target.

    Returns:
        Pairs (source word, target word), counted from 0, sorted.
    """
    of_source, of_target = _words(source_pieces), _words(target_pieces)
    if not of_source.size or not of_target.size:
        return ()
    between_words = np.zeros((of_target[-1] + 1, of_source[-1] + 1))
    between_pieces = np.asarray(attention)[: of_target.size, : of_source.size]
    np.add.at(between_words, (of_target[:, None], of_source), between_pieces)
    pairs = ((int(source), target) for target, source in enumerate(between_words.argmax(axis=1)))
    return tuple(sorted(pairs))


def _words(pieces: Sequence[str]) -> np.ndarray:
    """The word that each piece belongs to, counted from 0.

    A "▁" alone that no piece of the same word follows is white space, not a word.
    """
    words: list[int] = []
    count = 0
    for piece, following in zip(pieces, [*pieces, WORD_BEGIN][1:], strict=True):
        is_blank = piece == WORD_BEGIN and following.startswith(WORD_BEGIN)
        if not is_blank and (count == 0 or piece.startswith(WORD_BEGIN)):
            count += 1
        words.append(max(count - 1, 0))
    return np.array(words, dtype=int)
