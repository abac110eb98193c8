"""Sentences of more pieces than the model takes."""

import pytest

from keras_transformer import Tokenizer
from keras_transformer.translation.base_translator import source_parts, split_overlong

pytestmark = pytest.mark.once


class Words:
    """A tokenizer with a piece for each word: its length is the id; "zwsp" has no piece."""

    frame_source = Tokenizer.frame_source

    def encode_source(self, texts):
        return [[len(word) for word in text.split() if word != "zwsp"] for text in texts]


def at_most(words):
    return lambda text: len(text.split()) <= words


def test_sentences_become_parts():
    text = 'Is it so? "Yes," he said. Then... no'
    assert split_overlong(text, at_most(5)) == ["Is it so?", '"Yes," he said.', "Then...", "no"]


def test_a_long_sentence_is_halved_between_words_until_it_fits():
    parts = split_overlong("a b c d e f g. Short one.", at_most(2))
    assert parts == ["a", "b c", "d e", "f g.", "Short one."]


def test_east_asian_sentences_end_without_a_space():
    parts = split_overlong("你好吗？我很好。谢谢你。", lambda text: len(text) <= 6)
    assert parts == ["你好吗？", "我很好。", "谢谢你。"]


def test_a_long_word_is_halved_between_characters():
    assert split_overlong("abcdefgh", lambda text: len(text) <= 3) == ["ab", "cd", "ef", "gh"]
    assert split_overlong("ab", lambda text: False) == ["a", "b"]


@pytest.mark.parametrize("limit", [1, 2, 5, 17])
def test_nothing_is_lost(limit):
    text = "One two, three. Four five six seven! Eight? " + "word " * 30 + "end."
    parts = split_overlong(text.strip(), at_most(limit))
    assert " ".join(parts).split() == text.split()
    assert all(len(part.split()) <= limit for part in parts)


def test_parts_know_sentence_number_and_words():
    sentences = [" a bb ", "", "one two. three  four five", "zwsp"]
    assert source_parts(sentences, Words(), 4, "split") == [
        (0, 0, [1, 2, 3], "a bb", 0),
        (2, 0, [3, 4, 3], "one two.", 0),
        (2, 1, [5, 4, 4, 3], "three  four five", 2),
    ]


def test_halves_of_a_word_begin_in_this_word():
    class Letters(Words):
        def encode_source(self, texts):
            return [[ord(letter) for letter in text if letter != " "] for text in texts]

    parts = source_parts(["ab cdefghi 你。好 j"], Letters(), 5, "split")
    assert [(part.text, part.first_word) for part in parts] == [
        ("ab", 0),
        ("cde", 1),
        ("fghi", 1),
        ("你。", 2),
        ("好 j", 2),
    ]


def test_cutting_keeps_the_beginning_and_warns():
    with pytest.warns(UserWarning, match="first 2 of 3 pieces of 'aa b cc'... are translated"):
        parts = source_parts(["aa b cc"], Words(), 3, "truncate")
    assert parts == [(0, 0, [2, 1, 3], "aa b cc", 0)]
