"""Alignments of words by normalized attention, and the characters of pieces."""

import numpy as np
import pytest

from keras_transformer import Tokenizer
from keras_transformer.translation.alignment import (
    TokenAlignment,
    joined,
    memberships,
    token_alignment,
    tokens,
    word_alignment,
    word_shares,
    words,
)


@pytest.mark.parametrize(
    ("attention", "source", "target", "pairs"),
    [
        # The word that gets most attention: 0.4 is the most of a piece, but "sunday" has 0.6.
        (
            [[0.4, 0.3, 0.3], [0.2, 0.5, 0.3], [0.9, 0.05, 0.05]],
            ["▁the", "▁sun", "day"],
            ["▁Sonn", "tag", "▁der"],
            ((0, 1), (1, 0)),
        ),
        # All pieces of a target word count.
        ([[0.6, 0.4], [0.1, 0.9]], ["▁a", "▁b"], ["▁x", "y"], ((1, 0),)),
        # Attention to eos and padding does not count.
        ([[0.1, 0.2, 0.7, 0.0], [0.0, 0.0, 1.0, 0.0]], ["▁a", "▁b"], ["▁x"], ((1, 0),)),
        # White space without a word is no word: " a b " has two.
        (
            np.eye(5),
            ["▁", "▁a", "▁", "b", "▁"],
            ["▁p", "▁q", "▁r", "▁s"],
            ((0, 0), (0, 1), (1, 2), (1, 3)),
        ),
        # A piece without a mark can begin the first word.
        (np.eye(2), ["a", "▁b"], ["x", "▁y"], ((0, 0), (1, 1))),
    ],
)
def test_a_target_word_belongs_to_a_source_word(attention, source, target, pairs):
    assert word_alignment(np.array(attention), source, target) == pairs


def test_a_word_that_all_words_attend_to_counts_less():
    attention = np.array([[0.55, 0.45], [0.55, 0.45], [0.9, 0.1]])
    alone = np.eye(2), np.eye(3)
    expected = attention / np.sqrt(np.array([2.0, 1.0]) + 0.1)
    np.testing.assert_allclose(word_shares(attention, *alone), expected)
    names = ["▁a", "▁b"], ["▁x", "▁y", "▁z"]
    assert word_alignment(attention, *names) == ((0, 2), (1, 0), (1, 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tom's e-mail: 1,299.50, 10:30!", "Tom's e - mail : 1,299.50 , 10:30 !"),
        ("10km हिन्दी cafe\u0301", "10km हिन्दी cafe\u0301"),
        ("我爱 Tom。ไทย", "我 爱 Tom 。 ไ ท ย"),
        ("", ""),
    ],
)
def test_tokens_are_words_numbers_marks_and_characters_without_spaces(text, expected):
    assert " ".join(text[start:end] for start, end in tokens(text)) == expected


@pytest.mark.parametrize("model_type, size", [("bpe", 36), ("unigram", 26)])
def test_pieces_have_the_characters_of_the_text(model_type, size):
    """Also where normalization changes their number; a blank piece is of the word that follows."""
    text = [("the cat sat on a mat don't dogs", "ein hund im haus, hallo")] * 20
    tokenizer = Tokenizer.train(text, size, model_type)
    for sentence in ("the  cat don´t ☃ a", "☃☃x the", "the\u200bcat\u3000dog", "½ a"):
        offsets = tokenizer.source_offsets(sentence)
        assert len(offsets) == len(tokenizer.encode_source([sentence])[0])
        assert offsets == sorted(offsets) and offsets[-1][1] == len(sentence)
        of_words = memberships(offsets, words(sentence))
        assert of_words.any(axis=0).all() and (of_words.sum(axis=1) >= 1).all()
    (dogs,), (inner,) = tokenizer.encode_target(["dogs"]), tokenizer.encode_target(["in"])
    ids = [*dogs, tokenizer.unk_id, *inner]
    (decoded,) = tokenizer.decode_target([ids])
    of_words = memberships(tokenizer.target_offsets(ids), words(decoded))
    assert decoded.split() == ["dogs", "⁇", "in"]
    expected = [0] * len(dogs) + [1] + [2] * len(inner)
    assert of_words.argmax(axis=1).tolist() == expected and (of_words.sum(axis=1) == 1).all()


def test_words_are_aligned_and_marks_are_not():
    tokenizer = Tokenizer.train([("ab cd. ef", "ab cd. ef")] * 9, 16)
    (ids,) = tokenizer.encode_target(["ab. ef"])
    attention = np.ones((len(ids), len(tokenizer.encode_source(["cd. ab"])[0])))
    found = token_alignment(tokenizer, "cd. ab", "ab. ef", ids, attention)
    assert found.source == found.target == [(0, 2), (4, 6)]
    np.testing.assert_allclose(found.shares.sum(axis=1), 1)


def test_no_word_belongs_to_a_word_of_another_part():
    one = TokenAlignment([(0, 1)], [(0, 2), (3, 4)], np.array([[1.0], [0.5]]))
    found = joined([(0, 0, one), (5, 7, one)])
    assert (found.source, found.target) == ([(0, 1), (5, 6)], [(0, 2), (3, 4), (7, 9), (10, 11)])
    assert found.shares.tolist() == [[1, 0], [0.5, 0], [0, 1], [0, 0.5]]
