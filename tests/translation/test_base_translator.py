"""What all translators share: parts of long sentences, options and progress."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.translation import WordForms
from keras_transformer.translation.base_translator import BaseTranslator
from keras_transformer.translation.hypothesis import NO_HYPOTHESIS, Hypothesis
from keras_transformer.translation.long_lines import is_invisible
from keras_transformer.translation.target_constraints import ConstraintError


class Words:
    """A tokenizer with a piece for each word: its length is the id; "zwsp" has no piece."""

    pad_id, unk_id, bos_id, eos_id = range(4)
    source_prefix_ids, target_prefix_ids, source_pieces, source_eos = [], [], [], True
    frame_source, split_tag, tag_ids = Tokenizer.frame_source, Tokenizer.split_tag, {}

    def encode_source(self, texts):
        return [[len(word) for word in text.split() if word != "zwsp"] for text in texts]


class Letters(Words):
    """A tokenizer with one piece per letter."""

    def encode_source(self, texts):
        return [[ord(letter) for letter in text if letter != " "] for text in texts]

    encode_target = encode_source


class Capitals(BaseTranslator):
    """Translates a part to itself in capitals."""

    def _search_parts(self, parts, options, constraints, advance, aligned):
        advance(range(len(parts)))
        others = [NO_HYPOTHESIS] * (options.n_best - 1)
        return [
            [Hypothesis(part.text.upper(), tuple(part.ids), -1.0, -1.0, len(part.ids)), *others]
            for part in parts
        ]

    def _attention(self, parts, found):
        return ((n, np.array([np.eye(len(x.ids))] * len(found[n]))) for n, x in enumerate(parts))

    def _token_scores(self, pairs):
        return [[-1.0] * len(part.ids) for part, _ in pairs]


SHIPPED = Path(__file__).parents[2] / "saved_models" / "tatoeba_en_de" / "tokenizer"


def test_thirty_chinese_sentences_on_a_line_stay_without_spaces():
    text = "他说：“好。”我很高兴！" * 15
    assert Capitals(Letters(), max_length=14).translate([text]) == [text]


@pytest.mark.parametrize(
    "text", ["\u00ad", "\u200b\u2060", "\ufeff \u200e", "\ufe0f\u3164", " \x00\n"]
)
def test_text_that_nobody_sees_is_blank(text):
    assert is_invisible(text)
    for copy_unknown in ("lines", "never"):
        translator = Capitals(Tokenizer.load(SHIPPED), 64, copy_unknown=copy_unknown)
        assert translator.translate([text]) == [""]


@pytest.mark.parametrize(
    "text", ["😀", "你好", "你好！", "Привет!", "— 👍🏽 😀", "你好 世界 " * 40 + "。"]
)
def test_text_without_a_known_word_is_copied_with_a_warning(text):
    assert not is_invisible(text)
    translator = Capitals(Tokenizer.load(SHIPPED), 64, SearchOptions(n_best=2))
    with pytest.warns(UserWarning, match="known word is copied, not translated .1.: '"):
        found = translator.translate_nbest(["a dog", f" {text} ", ""], alignments=True)
    best, second = found[1]
    words = tuple((word, word) for word in range(len(text.split())))
    assert (best.text, best.score, best.alignment) == (text.strip(), 0, words)
    assert (second.text, second.score) == ("", -np.inf)
    assert [found[0][0].text, found[2][0].text] == ["A DOG", ""]
    turned_off = Capitals(Tokenizer.load(SHIPPED), 64, copy_unknown="never")
    assert turned_off.translate([text]) == [text.strip().upper()]


def test_the_warning_of_a_copy_has_no_added_final_mark():
    forms = WordForms(("Rome",), ".")
    translator = Capitals(Tokenizer.load(SHIPPED), 64, word_forms=forms)
    with pytest.warns(UserWarning, match="copied, not translated .1.: '你好'$"):
        assert translator.translate_nbest(["你好"])[0][0].text == "你好"


@pytest.mark.parametrize("text", ["5 😀", "Hello 你好", "a", "!?", "№ 1"])
def test_text_with_a_known_word_or_nothing_unknown_is_translated(text):
    translator = Capitals(Tokenizer.load(SHIPPED), 64)
    assert [part.is_copied for part in translator._parts([text])] == [False]


def test_a_part_without_a_known_word_is_copied_but_not_where_words_are_required():
    translator = Capitals(Tokenizer.load(SHIPPED), 8)
    line = "a dog eats a dog. ß? " + "the cat sees the cat."
    with pytest.warns(UserWarning, match="copied, not translated"):
        (copied,) = translator.translate([line.replace("ß", "яяя")])
    assert copied == "A DOG EATS A DOG. яяя? THE CAT SEES THE CAT."
    with pytest.raises(
        ConstraintError, match="required=.'dog'.*no translation that meets|no transl"
    ):
        translator.translate(["яяя"], required=[["dog"]])


def test_a_translation_has_the_length_of_its_source_plus_50_tokens():
    translator = Capitals(Letters(), max_length=90)
    assert [*map(translator._limit(SearchOptions()), (3, 80))] == [53, 90]
    assert translator._limit(SearchOptions(max_length=7))(3) == 7
    assert translator._limit(SearchOptions(min_length=60))(3) == 60


def test_a_line_is_split_into_sentences_if_lines_of_the_training_text_have_one():
    seen = []

    class Recording(Capitals):
        def _search_parts(self, parts, *rest):
            seen.append([part.text for part in parts])
            return super()._search_parts(parts, *rest)

    forms, lines = WordForms(("Rome",), "."), ["One two. Dr. Who?", "One. Two."]
    for are_sentences, parts in (False, lines), (True, ["One two.", "Dr. Who?", "One. Two."]):
        known = replace(forms, lines_are_sentences=are_sentences)
        translator = Recording(Tokenizer.load(SHIPPED), 64, word_forms=known)
        found = translator.translate(lines, forbidden=[[], ["NO"]])
        assert (found, seen.pop()) == (["ONE TWO. DR. WHO?", "ONE. TWO."], parts)


def test_parts_know_sentence_number_and_words():
    sentences = [" aa bbb ", "", "one two. Three  four five", "zwsp"]
    assert Capitals(Words(), 4)._parts(sentences) == [
        (0, 0, [2, 3, 3], "aa bbb", 0, False, 0),
        (2, 0, [3, 4, 3], "one two.", 0, False, 0),
        (2, 1, [5, 4, 4, 3], "Three  four five", 2, False, 0),
    ]
    parts = Capitals(Letters(), 5)._parts(["ab cdefghi 你。好 j"])
    texts = ["ab", "cde", "fghi", "你。", "好 j"]
    assert [(x.text, x.first_word) for x in parts] == [*zip(texts, [0, 1, 1, 2, 2], strict=True)]
