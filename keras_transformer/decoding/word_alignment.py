"""Which source word each target word was translated from, by the attention to the source."""

from collections.abc import Sequence

import numpy as np

WORD_BEGIN = "▁"


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
