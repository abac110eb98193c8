"""Segments keep their markup, and what is not language."""

import html
from contextlib import nullcontext
from dataclasses import replace

import pytest
from support.document_doubles import NAMES, NUMBERS, Double, new_double

from keras_transformer.translation import Glossary, Segment, Span


def translated(double, text, *spans, **given):
    (found,) = double.translate_segments([Segment(text, spans)], escape=html.escape, **given)
    return found.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It costs 1,299.50 at 10:30.", "IT COSTS 1,299.50 AT 10:30."),
        ("Dear Tom, meet {x}.", "DEAR Tom, MEET {x}."),
        ("One 😀 two. Three {a}! 🎉", "ONE 😀 TWO. THREE {a}! 🎉"),
        ("One.\nTwo {x} now.", "ONE.\nTWO {x} NOW."),
        ("✓ 😀 One two. 😀 🎉", "✓ 😀 ONE TWO. 😀 🎉"),
        ("{a}: <{b}>", "{a}: &lt;{b}&gt;"),
        ("", ""),
    ],
)
def test_what_is_not_language_stays(text, expected):
    assert translated(new_double(), text) == expected


@pytest.mark.parametrize("names, numbers", [(NAMES, NUMBERS), (NAMES[:1], ()), ((), ())])
def test_more_items_than_words_that_the_model_copies_are_translated_in_parts(names, numbers):
    text = "a {a} b {b} c {c} d 5 and {d}."
    with pytest.warns(UserWarning, match="in parts") if names else nullcontext():
        found = translated(new_double(names, numbers), text)
    assert found == "A {a} B {b} C {c} D 5 AND {d}."


@pytest.mark.parametrize("can_align, forms", [(True, ("Rome",)), (False, ("Rome",)), (True, ())])
def test_lines_keep_names_if_words_can_be_aligned_and_their_forms_are_known(can_align, forms):
    double = new_double(forms=forms)
    double.has_attention = can_align
    lines = ["See {x} at https://a.org/b?c.", "It costs 5 and 😀.", "", "Ask %s!"]
    kept = ["SEE {x} AT https://a.org/b?c.", "IT COSTS 5 AND 😀.", "", "ASK %s!"]
    shouted = [line.upper() for line in lines]
    assert double.translate(lines) == (kept if can_align and forms else shouted)
    assert [x.text for (x,) in double.translate_nbest(lines)] == shouted
    assert [*double.stream(lines[3:])] == double.translate(lines)[3:]


def test_lines_of_another_script_are_copied_with_a_warning():
    double = new_double(forms=("Rome",))
    double.word_forms = replace(double.word_forms, words=("see",), final_mark=".")
    lines = ["日本語", "See ü.", "https://a.org/é"]
    with pytest.warns(UserWarning, match=r"not translated \(1\): '日本語'$"):
        assert double.translate(lines)[0] == "日本語"


def test_a_line_whose_numbers_change_is_translated_with_its_numbers():
    double = new_double(forms=("Rome",))
    double._pieces = lambda text: (x.replace("12.50", "120") for x in Double._pieces(double, text))
    assert double.translate(["It costs 12.50.", "At 5."]) == ["IT COSTS 12.50.", "AT 5."]
    assert double.translate_nbest(["It costs 12.50."])[0][0].text == "IT COSTS 120."
    double.word_forms = replace(double.word_forms, names=())
    double.copied |= {"Rome"}
    double._pieces = lambda text: (x.replace("20", "21") for x in Double._pieces(double, text))
    assert double.translate(["{x} is 20."]) == ["{x} IS 20."]


def test_marks_that_the_training_text_lacks_are_read_by_no_model():
    seen = []

    class Recording(Double):
        def _search_parts(self, parts, *rest):
            seen.extend(part.text for part in parts)
            return super()._search_parts(parts, *rest)

    line = "Red [1] / blue (a; big/small {x}) and b; C/Dc & ef – gh."
    double = new_double(forms=("Rome",), marks=".,", words=("a",))
    double.__class__ = Recording
    assert double.translate([line]) == ["RED [1] / BLUE (A; BIG/SMALL {x}) AND B; C/DC & EF – GH."]
    assert seen == ["A.", "Big.", "Small Tom.", "Red.", "Blue and b.", "C/dc.", "Ef.", "Gh."]
    seen.clear()
    double.word_forms = replace(double.word_forms, marks="([/;&")
    assert double.translate(["One (two); three & four."]) == ["ONE (TWO); THREE & FOUR."]
    assert seen == ["One (two); three & four."]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("Ann: A dog.", ["Ann.", "A dog."]),
        ("Fig. 3: A dog", ["Fig. 22.", "A dog."]),
        ("- A? - B!", ["A?", "B!"]),
        ("One\\nTwo", ["One.", "Two."]),
        ("One!!! Two??? Three.", ["One!", "Two?", "Three."]),
        ("One\tTwo three.\t\t5\t7:", ["One.", "Two three."]),
        (":-)", []),
        ("", []),
        ("A: b", ["A: b."]),
        ("A! B? C $ d + e", ["A!", "B?", "C $ d.", "E."]),
    ],
)
def test_labels_and_items_of_a_line_are_apart(line, parts):
    seen = []
    double = new_double(forms=("Rome",), words=("a",))
    search = double._search_parts
    double._search_parts = lambda x, *rest: seen.extend(p.text for p in x) or search(x, *rest)
    assert double.translate([line]) == [line.upper().replace("\\N", "\\n")]
    assert seen == parts
    assert double.translate([" \u200b "]) == [""]


def test_parts_of_a_sentence_begin_in_lower_case_as_their_sources():
    double = new_double(forms=("Rome",), words=("a",), target_words=("one", "two"))
    double._pieces = lambda text: (x.title() for x in Double._pieces(double, text))
    text = "one (one two); two three. {x} – [Two]"
    assert translated(double, text) == "One (one Two); two Three. {x} – [Two]"
    assert translated(double, "(One,) two {x}.") == "(One,) two {x}."
    assert translated(double, "- one two") == "- One Two"
    assert translated(double, "😀 one two ✓") == "😀 One Two ✓"


def test_acronyms_stay_and_words_in_upper_case_are_read_in_lower_case():
    double = new_double(forms=("Rome",), words=("is", "big", "Rome"))
    double._pieces = lambda text: (
        x if "?" in text else x.lower() for x in Double._pieces(double, text)
    )
    lines = ["It BIG xx ROME USB-C.", "It IS"]
    assert double.translate(lines) == ["it BIG xx ROME USB-C.", "it IS"]
    assert [x[0].text for x in double.translate_nbest(["It BIG xx?"])] == ["IT BIG XX?"]


def test_a_mark_between_sentences_has_one_space():
    double = new_double(forms=("Rome",), words=("a",))
    assert double.translate(["One. 😀 ♪ Two."]) == ["ONE. 😀 ♪ TWO."]


def test_the_end_of_a_line_is_written_once():
    double = new_double(forms=("Rome",), words=("a",))
    lines = ["One {x}...", "One {x}!!!", "One {x} :", "One {x} –", 'One {x} "a (bb);".']
    assert [translated(double, x).replace("&quot;", '"') for x in lines] == [
        x.upper().replace("X", "x") for x in lines
    ]


def test_overlong_sentences_are_one_text_again():
    text = "one two three {a} five six seven. Eight {b}."
    assert (
        translated(new_double(max_length=5), text) == "ONE TWO THREE {a} FIVE SIX SEVEN. EIGHT {b}."
    )


def test_terms_are_counted_and_named():
    glossary = Glossary({"red car": "Auto & so", "Tom": "Thomas"})
    segments = [Segment("My red car and {Tom}."), Segment("Red.")]
    one, other = new_double().translate_segments(segments, glossary=glossary, escape=html.escape)
    assert one.text == "MY Auto &amp; so AND {Tom}."
    assert one.terms == (("red car", "Auto & so"),) and other.terms == ()


def test_items_and_brackets_are_no_part_of_a_sentence():
    double = new_double(forms=("Bonn",), is_reversed=True)
    text = "12. One two {x}. (Three 5 four) ♪"
    assert translated(double, text) == "12. {x} TWO ONE. (FOUR 5 THREE) ♪"
    assert translated(double, "My note: Go on. It is 5: ok") == "NOTE MY: ON GO. OK: 5 IS IT"
    assert translated(double, "- a b", Span(2, 3, "<b>", "</b>")) == "- B <b>A</b>"


def test_lines_in_upper_case_keep_what_stays_and_headings_have_no_final_mark():
    double = new_double(forms=("Bonn",))
    assert (
        translated(double, "SEE {x} IN BONN", glossary=Glossary({"see": "Seht"}))
        == "SEHT {x} IN BONN"
    )
    lines = []
    double._search_parts = lambda parts, *_: (
        lines.extend(x.text for x in parts) or Double._search_parts(double, parts, *_)
    )
    assert translated(double, "The House of {x}") == "THE HOUSE OF {x}"
    assert lines == ["The house of Tom."]


def test_words_have_scores_and_progress_counts_segments():
    finished = []
    segments = [Segment("aa ee. Oo"), Segment(""), Segment("{d}"), Segment("e")]
    found = new_double().translate_segments(segments, word_scores=True, progress=finished.append)
    assert [x.word_scores for x in found] == [
        (("AA", 0.0), ("EE.", -1.5), ("OO", 0.0)),
        (),
        (("{d}", 0.0),),
        (("E", 0.0),),
    ]
    assert sum(finished) == len(segments)
