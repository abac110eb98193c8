"""What all translators share: parts of long sentences, options and progress."""

import pytest

from keras_transformer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.translation.base_translator import (
    BaseTranslator,
    source_parts,
    split_overlong,
)
from keras_transformer.translation.hypothesis import Hypothesis

pytestmark = pytest.mark.once


class Words:
    """A tokenizer with a piece for each word: its length is the id; "zwsp" has no piece."""

    pad_id, unk_id, bos_id, eos_id = range(4)
    source_prefix_ids, target_prefix_ids, source_eos = [], [], True
    frame_source = Tokenizer.frame_source

    def encode_source(self, texts):
        return [[len(word) for word in text.split() if word != "zwsp"] for text in texts]


class Letters(Words):
    """A tokenizer with one piece per letter."""

    def encode_source(self, texts):
        return [[ord(letter) for letter in text if letter != " "] for text in texts]

    encode_target = encode_source


class Capitals(BaseTranslator):
    """Translates a part to itself in capitals."""

    def _search_parts(self, parts, options, constraints, advance):
        advance(range(len(parts)))
        return [
            [Hypothesis(part.text.upper(), tuple(part.ids), -1.0, -1.0, len(part.ids))]
            for part in parts
        ]

    def _align(self, parts, found):
        return found


def test_parts_of_overlong_sentences_are_joined_and_blank_sentences_stay_blank():
    translator = Capitals(Letters(), max_length=5)
    finished = []
    sentences = ["abc", " ", "ab cd ef", "a"]
    assert translator.translate(sentences, progress=finished.append) == ["ABC", "", "AB CD EF", "A"]
    assert sum(finished) == len(sentences)
    assert list(translator.stream(["ab", "cd ef"])) == ["AB", "CD EF"]


def test_a_translation_has_the_length_of_its_source_plus_50_tokens():
    translator = Capitals(Letters(), max_length=90)
    assert [*map(translator._limit(SearchOptions()), (3, 80))] == [53, 90]
    assert translator._limit(SearchOptions(max_length=7))(3) == 7
    assert translator._limit(SearchOptions(min_length=60))(3) == 60


def at_most(words):
    return lambda text: len(text.split()) <= words


@pytest.mark.parametrize(
    ("text", "is_short", "expected"),
    [
        (
            'Is it so? "Yes," he said. Then... no',
            at_most(5),
            ["Is it so?", '"Yes," he said.', "Then...", "no"],
        ),
        ("a b c d e f g. Short one.", at_most(2), ["a", "b c", "d e", "f g.", "Short one."]),
        (
            "你好吗？我很好。谢谢你。",
            lambda text: len(text) <= 6,
            ["你好吗？", "我很好。", "谢谢你。"],
        ),
        ("abcdefgh", lambda text: len(text) <= 3, ["ab", "cd", "ef", "gh"]),
        ("ab", lambda text: False, ["a", "b"]),
    ],
    ids=["sentences", "words", "East Asian", "characters", "no limit"],
)
def test_text_is_split_between_sentences_then_words_then_characters(text, is_short, expected):
    assert split_overlong(text, is_short) == expected


@pytest.mark.parametrize("limit", [1, 5])
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
    parts = source_parts(["ab cdefghi 你。好 j"], Letters(), 5, "split")
    texts = ["ab", "cde", "fghi", "你。", "好 j"]
    assert [(x.text, x.first_word) for x in parts] == [*zip(texts, [0, 1, 1, 2, 2], strict=True)]


def test_cutting_keeps_the_beginning_and_warns():
    with pytest.warns(UserWarning, match="first 2 of 3 pieces of 'aa b cc'... are translated"):
        parts = source_parts(["aa b cc"], Words(), 3, "truncate")
    assert parts == [(0, 0, [2, 1, 3], "aa b cc", 0)]
