"""Lines in, lines out."""

import io
import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest

from keras_transformer import Hypothesis, SamplingOptions
from keras_transformer.cli.text_lines import read_source, translate_lines
from keras_transformer.errors import UserError


class Echo:
    """A translator that says what it was asked."""

    def __init__(self, n_best=1):
        self.asked, self.n_best = [], n_best

    def translate_nbest(self, sentences, alignments, progress, **beside):
        self.asked.append(beside)
        alignment = ((0, 1), (2, 0)) if alignments else None
        return [
            [
                Hypothesis(f"{sentence}{n}", (), -n / 3, 0.0, 1, alignment)
                for n in range(self.n_best)
            ]
            for sentence in sentences
        ]

    def sample(self, sentences, options, seed, first_index, progress):
        self.asked.append((options, seed))
        indices = itertools.count(first_index)
        return [
            [Hypothesis(f"{sentence}@{index}", (), 0.0, 0.0, 1)] * options.num_samples
            for sentence, index in zip(sentences, indices, strict=False)
        ]


def text_of(lines, translator=None, **options):
    return "".join(translate_lines(translator or Echo(), lines, **options))


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode())
        return path

    return write


@pytest.fixture
def standard_input(monkeypatch):
    def give(content):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    return give


def test_standard_input_ends_lines_as_files_do(standard_input, write):
    text = "a\r\n\n b\u2028c \nlast"
    standard_input(text.encode())
    expected = ["a", "", " b\u2028c ", "last"]
    assert [line.sentence for line in read_source(None)] == expected
    assert [line.sentence for line in read_source(write("in", text))] == expected


def test_words_stand_between_tabs(write):
    source, prefixes, words = write("in", "a\nb\n"), write("p", "x y\n\n"), write("w", "\nu v\tw\n")
    assert list(read_source(source, prefixes, None, words)) == [
        ("a", "x y", [""], [""]),
        ("b", "", [""], ["u v", "w"]),
    ]


def test_what_stands_beside_goes_to_the_search(write):
    translator = Echo()
    lines = read_source(write("in", "a\nb\n"), write("p", "x\n\n"), write("r", "\nc\td\n"))
    assert text_of(lines, translator) == "a0\nb0\n"
    assert translator.asked == [
        {"prefixes": ("x", ""), "required": ([""], ["c", "d"]), "forbidden": ([""], [""])}
    ]


def test_scores_and_alignments_stand_around_each_translation(write):
    lines = read_source(write("in", "a\n"))
    text = text_of(lines, Echo(n_best=2), scores=True, alignments=True)
    assert text == "0.0000\ta0\t0-1 2-0\n-0.3333\ta1\t0-1 2-0\n"


def test_samples_are_numbered_through_the_whole_text(write):
    source = write("in", "a\n" * 1500)
    text = text_of(read_source(source), sampling=SamplingOptions(), seed=3)
    assert text.splitlines() == [f"a@{index}" for index in range(1500)]


def test_bytes_that_are_no_text_are_named(standard_input):
    standard_input(b"good\nba\xffd\n")
    lines = read_source(None)
    assert next(lines).sentence == "good"
    with pytest.raises(UserError, match="^standard input, line 2: .* byte 0xff at column 3$"):
        next(lines)


def test_files_beside_have_a_line_for_each_sentence(write):
    source = write("in", "a\nb\n")
    for text, relation in (("x\n", "fewer"), ("x\n" * 3, "more")):
        with pytest.raises(UserError, match=f"p has {relation} lines than there are sentences"):
            list(read_source(source, write("p", text)))


def test_a_stop_while_waiting_for_input_ends_the_process_properly():
    """Python aborts if standard input is closed while a thread waits for its next line."""
    code = (
        "from keras_transformer.cli.text_lines import available_chunks, read_source\n"
        "for chunk in available_chunks(read_source(None), 8):\n"
        "    print(chunk[0].sentence, flush=True)\n"
        "    raise SystemExit(7)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        process.stdin.write("first\n")
        process.stdin.flush()
        assert process.stdout.readline() == "first\n"
        assert process.wait(timeout=60) == 7  # Standard input is still open.
