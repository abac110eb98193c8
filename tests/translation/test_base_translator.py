"""What all translators share."""

import pytest

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.translation.base_translator import BaseTranslator, counted_progress
from keras_transformer.translation.hypothesis import Hypothesis

pytestmark = pytest.mark.once


class Letters:
    """A tokenizer with one piece per letter."""

    pad_id, unk_id, bos_id, eos_id = range(4)

    def encode_source(self, sentences):
        return [[ord(letter) for letter in sentence if letter != " "] for sentence in sentences]

    encode_target = encode_source

    def frame_source(self, pieces):
        return [*pieces, self.eos_id]


class Capitals(BaseTranslator):
    """Translates a part to itself in capitals."""

    def _search_parts(self, parts, count, options, constraints, progress):
        with counted_progress(progress, parts, count) as advance:
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


def test_options_beyond_the_model_are_refused():
    with pytest.raises(
        ValueError, match="`options.max_length` must be at most the model's max_length, 5"
    ):
        Capitals(Letters(), 5, SearchOptions(max_length=6))
