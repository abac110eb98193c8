"""Long lines of every script: where they are split, and what joins their translations."""

import pytest

from keras_transformer.translation.long_lines import separator, split_overlong


def split(text, longest):
    parts = split_overlong(text, lambda part: len(part) <= longest)
    assert "".join(parts) == text
    return [part.strip() for part in parts]


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Smith met Mr. and Mrs. J. R. Jones. ", "They like the U.S. Army. ", "No."],
        ["Das ist z. B. Nr. 5, bzw. der 3. Oktober. ", "Prof. Ei kam. ", "Ja."],
        ["Es ist der 3.10. Montags um 10:30. ", "Es kostet 3,50. ", "Ja."],
        ["It costs $3.50. ", "Then it was 0.75. ", "Yes."],
        ["„Ja, gut.“ ", "Dann ging er. ", "»Nein!«, rief sie. ", "(Wirklich?) ", "Nie."],
        ["А. С. Пушкин жил на ул. Мойка. ", "Он писал."],
        ["See http://a.b/c?d=e.f, version 3.5! ", "It helps."],
        ["— Oui. ", "— Non. ", "« Oui ! » dit-il. ", "Elle dit «Viens.» ", "Puis…"],
        ["你好吗？", "他说：“好。”", "然后走了。", "“是吗？！”", "是。"],
        ["他說「好。」", "他走了。", "「什麼？」", "她問。"],
        ["ああ．", "いい?", "うう。 ", "ええ！"],
        ["मैं घर गया। ", "वह आया।", "तुम कौन हो? ", "अच्छा॥"],
        ["བཀྲ་ཤིས། ", "བདེ་ལེགས།"],
        ["a man sleeps . ", "a dog runs . ", "two cats ."],
    ],
    ids=lambda sentences: sentences[0].strip(),
)
def test_a_line_is_split_between_its_sentences(sentences):
    longest = max(map(len, sentences))
    expected = [sentence.strip() for sentence in sentences]
    assert split("".join(sentences), min(longest, len("".join(sentences)) - 1)) == expected


@pytest.mark.parametrize(
    ("text", "longest", "expected"),
    [
        ("a b c d e f go. Short one.", 10, ["a b c", "d e f go.", "Short one."]),
        ("他来了，我走了，你也走", 5, ["他来了，", "我走了，", "你也走"]),
        ("abcdefgh", 3, ["ab", "cd", "ef", "gh"]),
        ("ab", 0, ["a", "b"]),
        ("👨‍👩‍👧👍🏽🇩🇪🏴‍☠️", 5, ["👨‍👩‍👧", "👍🏽", "🇩🇪", "🏴‍☠️"]),
        ("e\u0301a\u0308\u0323o\u0302", 2, ["e\u0301", "a\u0308\u0323", "o\u0302"]),
        ("เก่าน้ำแม่", 4, ["เก่า", "น้ำ", "แม่"]),
        ("ເກົ່າໄປ", 5, ["ເກົ່າ", "ໄປ"]),
        ("क्षत्रिय", 4, ["क्ष", "त्रि", "य"]),
        ("\u1100\u1161\u11a8" * 2, 4, ["\u1100\u1161\u11a8"] * 2),
    ],
)
def test_long_sentences_are_split_between_words_and_words_between_characters(
    text, longest, expected
):
    assert split(text, longest) == expected


@pytest.mark.parametrize("text", ["… 1 ", ". ", "!", '."', "Dr. ", "。“", "a. b "])
def test_splitting_takes_linear_time(text):
    assert split(text * 50_000, 10**7) == [(text * 50_000).strip()]


JOINED = [
    ("One two", " ", "three.", "一二", "三。", ""),
    ("One two.", " ", "Three.", "“一二。”", "“三。”", ""),
    ("One two.", " ", "Three.", "一二。", "A 三。", ""),
    ("你好。", "", "我很好。", "Hello.", "I am fine.", " "),
    ("你好 世界", " ", "我很好。", "你好 世界", "我很好。", " "),
    ("One two.", " ", "Three.", "หนึ่ง", "สาม", " "),
    ("One two", " ", "three.", "หนึ่ง", "สาม", ""),
    ("หนึ่ง", " ", "สาม", "នេះ", "នោះ", " "),
    ("你好。", "", "我很好。", "หนึ่ง", "สาม", " "),
    ("मैं।", "", "वह।", "I.", "He.", " "),
    ("https://a.", "", "b/c", "https://a.", "b/c", ""),
    ("하나.", " ", "둘.", "One.", "Two.", " "),
]


@pytest.mark.parametrize(("left", "space", "right", "before", "after", "expected"), JOINED)
def test_translations_are_joined_as_their_script_joins(left, space, right, before, after, expected):
    assert separator(left, before, right, after, bool(space)) == expected
