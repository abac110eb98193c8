"""Lines in one case, titles, headings and items are read as sentences, and changed back."""

import json
from dataclasses import replace

import pytest

from keras_transformer import UserError
from keras_transformer.translation import WordForms
from keras_transformer.translation.hypothesis import NO_HYPOTHESIS, Hypothesis
from keras_transformer.translation.word_forms import Rewritten

LINES = ["We met Tom in Bonn.", "The red house is Tom's.", "I'm here, TV and all.", "RED TOM IN!"]
FORMS = WordForms.learn(LINES)


def test_the_forms_within_sentences_count_but_not_those_of_lines_in_upper_case():
    assert set(FORMS.forms) == {"Tom", "Bonn", "TV"} and FORMS.forms[0] == "Tom"
    assert FORMS.final_mark == "."
    assert WordForms.learn(["a b", "c d", ""]).final_mark == ""
    assert WordForms.learn([]) == WordForms()
    lines = ["We say us, US; and (it)."] + ["We met 9 x, us."] * 290
    known = WordForms.learn([*lines, *["In the U.S. I like iPods."] * 4])
    assert {"met", "x", "iPods", "U.S."} <= {*known.words} and {*known.marks} == {*".,"}
    assert not {"us", "US", "it", "in"} & {*known.words}
    known = WordForms.learn([*lines, *["A dog, in Bonn (x)."] * 5_000, *["Go."] * 100_000])
    assert {*known.marks} == {*".,()"} and known.lacks(";") and not known.lacks("(")
    assert known.lacks(" .") and not WordForms.learn(["Est-ce Tom\u202f?"] * 5_000).lacks(" ?")
    assert not WordForms().lacks("/")
    assert FORMS.lines_are_sentences
    assert not WordForms.learn([*LINES, "We met. Tom left."]).lines_are_sentences


def test_words_are_read_without_their_apostrophe_or_with_repeated_letters():
    lines = ["We don't, and it's its. Why we’re"] * 5 + ["I don’t"]
    known = WordForms.learn(lines)
    assert known.contractions == ("don't", "we're")
    words = {"dont": "don't", "Were": "We're", "DONT": "DON'T", "its": None, "itttts": "its"}
    words |= {"so": None, "Sooo": "So", "goood": "good", "gooooose": None, "gooo": None}
    known = replace(known, words=(*known.words, "so", "good", "gooo"))
    assert {word: known.respelled(word) for word in words} == words


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("TOM'S RED HOUSE. THE TV!", "Tom's red house. The TV!"),
        ("„THE HOUSE“, SAID TOM.", "„The house“, said Tom."),
        ("We Met Tom In The Red House.", "We met Tom in the red house."),
        ("The House of Tom", "The house of Tom."),
        ("the house (red)", "The house (red)."),
        ("tom, is the tv red?", "Tom, is the TV red?"),
        ("Tom has a red house :", "Tom has a red house."),
        ("RED HOUSES:", "Red houses."),
        ("Tom has a house...", "Tom has a house."),
        ("Tom has a house –", "Tom has a house."),
        ("STRASSE ß", "Strasse ß."),
        ("Tom has a house;", "Tom has a house."),
        ("Has Tom a house???", "Has Tom a house?"),
        ("Tom´s house is red!!!", "Tom's house is red!"),
        ("Το σπίτι;", "Το σπίτι;"),
    ],
)
def test_a_line_is_read_as_a_sentence(line, read):
    assert FORMS.rewritten(line, {"x"}).text == read


def test_marks_between_words_are_read_in_linear_time():
    marks = " !&" * 20_000
    assert FORMS.rewritten(f"THE{marks} HOUSE").text == f"The{marks} House."


@pytest.mark.parametrize(
    "line",
    ["We met Doctor Tom.", "Tom, Bonn!", "TV.", "TV?", "Dear Doctor!", "12", ""]
    + ["Is it Tom?", "。", "漢字。", "U.", "Well!…", "გამარჯობა."],
)
def test_ordinary_lines_stay(line):
    assert FORMS.rewritten(line) == Rewritten(line)
    assert WordForms().rewritten(line.upper()) == Rewritten(line.upper())
    assert WordForms(FORMS.forms).rewritten(line.lower()) == Rewritten(line.lower())


def test_a_part_within_a_sentence_begins_in_lower_case_as_its_source():
    forms = WordForms.learn([], ["Er und der Hund und Sie.", "Es ist der Hund und Sie. I"])
    assert {*forms.target_words} == {"der", "und"}
    assert forms.within("the dog", "Der Hund") == "der Hund"
    assert forms.within(" the dog ", " Der Hund ") == " der Hund "
    for source, target in ("dogs", "Hunde"), ("The dog", "Der Hund"), ("she", "„Der"), ("", ""):
        assert forms.within(source, target) == target


def test_a_word_in_upper_case_is_read_with_its_usual_form():
    known = replace(FORMS, words=("red", "house", "Tom"))
    assert (
        known.rewritten("The RED house is TOM'S TV, DVD.").text == "The red house is Tom's TV, DVD."
    )
    assert FORMS.rewritten("The RED house is big.").text == "The RED house is big."


def test_a_name_in_lower_case_is_read_with_its_capital():
    known = replace(FORMS, words=("red", "house", "Tom", "TV", "bonn"))
    line = "The red house is tom's, in bonn near the tv, tom.e."
    assert known.rewritten(line).text == "The red house is Tom's, in bonn near the TV, tom.e."


def test_edges_of_a_line_are_no_part_of_its_sentence():
    assert FORMS.of_line("- (TOM) ♪") == Rewritten("Tom.", True, "", "- (", ") ♪", True)
    assert FORMS.of_line("\t (TOM) ").head == "\t (" and FORMS.of_line(" \u200b ").head == ""
    for forms in (WordForms(), WordForms(FORMS.forms)):
        assert forms.of_line("- (tom)") == Rewritten("- (tom)")


def test_words_at_the_edges_are_aligned_with_themselves():
    found = Hypothesis("b c.", (), 0.0, 0.0, 2, ((0, 1), (1, 0)), (-1.0, -2.0))
    restored = Rewritten("a b.", False, "", "- (", ") ♪").restored(found)
    assert restored.text == "- (b c) ♪"
    assert restored.alignment == ((0, 0), (1, 2), (2, 1), (3, 3))
    assert restored.word_scores == (0.0, -1.0, -2.0, 0.0)
    missing = replace(NO_HYPOTHESIS, alignment=())
    assert Rewritten("a", head="- ").restored(missing) == missing


@pytest.mark.parametrize(
    ("line", "translation", "restored"),
    [
        (Rewritten("", True), "Die Straße ist nah.", "DIE STRASSE IST NAH."),
        (Rewritten("", False, ""), "Die Katze.", "Die Katze"),
        (Rewritten("", False, ""), "(Die Katze.)", "(Die Katze)"),
        (Rewritten("", False, ""), "Und so ...", "Und so ..."),
        (Rewritten("", False, ""), "猫。", "猫"),
        (Rewritten("", False, ":"), "Die Katze.", "Die Katze:"),
        (Rewritten(""), "Die Katze.", "Die Katze."),
    ],
)
def test_a_translation_is_changed_back(line, translation, restored):
    assert line.restored(Hypothesis(translation, (), 0.0, 0.0, 0)).text == restored


def test_words_that_stay_are_not_written_in_upper_case_and_places_follow():
    text, places = Rewritten("Big is Tom.", True).places("Groß ist Tom.", ["Tom"])
    assert text == "GROSS IST Tom." and text[places[9] : places[12]] == "Tom"


def test_a_word_that_stays_is_not_repeated():
    line = Rewritten("The old Tom house burns.")
    assert line.places("Das alte Tom brennt Tom.", ["Tom"])[0] == "Das alte Tom brennt."
    assert line.places("Toms Tomate, Tom", ["Tom"])[0] == "Toms Tomate, Tom"


def test_forms_are_kept_and_damaged_files_refused(tmp_path):
    path = tmp_path / "word_forms.json"
    assert WordForms.load(path) == WordForms()
    FORMS.save(path)
    assert WordForms.load(path) == FORMS
    assert WordForms.load(path, as_written=True).rewritten("THE HOUSE") == Rewritten("THE HOUSE")
    assert not WordForms.load(path, as_written=True).is_name("GitHub")
    replace(FORMS, contractions=("don't",)).save(path)
    assert WordForms.load(path).respelled("dont") == "don't"
    assert WordForms.load(path, as_written=True).respelled("dont") is None
    for damaged in ("{", "[]", json.dumps({"shape": 1}), json.dumps({"forms": 3})):
        path.write_text(damaged)
        with pytest.raises(UserError, match="is damaged"):
            WordForms.load(path)
