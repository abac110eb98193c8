"""`keras-transformer translate`."""

import io
import itertools
import os
import pty
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.command_line import fails, invoke, succeeds
from support.time_limit import time_limit

from keras_transformer import Hypothesis, SamplingOptions
from keras_transformer.cli.translate import read_source, translate_lines
from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.translation import translator as decoding
from keras_transformer.translation.target_constraints import ConstraintError

OLD_RUN = Path(__file__).parents[1] / "fixtures" / "trained_run"


def test_translate_gives_one_line_a_line(run):
    lines = succeeds("translate", run, "--beam-size", 1, input="one two\n\nnine\n").split("\n")
    assert len(lines) == 4
    assert (lines[1], lines[3]) == ("", "")


def test_a_sentence_in_place_of_a_file_is_refused_with_a_hint(run):
    assert "translate ..." not in fails("translate", run, "in.txt")
    told = fails("translate", run, "It's late")
    assert 'File "It\'s late" does not exist. A sentence comes from standard input: echo' in told
    assert told.endswith("translate ...")


SHOUT = """
import sys
import zipfile
from keras_transformer import cli
from keras_transformer.translation.hypothesis import Hypothesis
from keras_transformer.runs.run import Run

class Shouter:
    def translate_nbest(self, sentences, **_):
        return [[Hypothesis(x.upper(), (), 0.0, 0.0, 1)] for x in sentences]

Run.translator = lambda *_, **__: Shouter()
cli.main(sys.argv[1:])
"""


@pytest.fixture
def session():
    """Starts `translate` on a terminal; returns a function that types and waits for a text.

    The process translates to capitals, without Keras.
    """
    terminal, of_process = pty.openpty()
    processes = []

    def start(*arguments, stdout=of_process):
        command = [sys.executable, "-c", SHOUT, "translate", OLD_RUN, *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "dumb"}
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=of_process,
            stdout=stdout,
            stderr=of_process,
            env=environment,
        )
        processes.append(process)
        os.close(of_process)

        def type_and_wait(keys, expected):
            os.write(terminal, keys)
            shown = b""
            with time_limit(300):
                while expected not in shown:
                    shown += os.read(terminal, 4096)
            return shown.decode().replace("\r\n", "\n")

        return type_and_wait

    yield start
    for process in processes:
        process.kill()
        process.wait()
    os.close(terminal)


def test_on_a_terminal_a_session_asks_for_sentences(session):
    type_and_wait = session()
    assert type_and_wait(b"", b"\n> ") == (
        f"Loading {OLD_RUN}.\n"
        "Type one sentence at a time, in the source language (en). Ctrl-D ends.\n> "
    )
    assert type_and_wait(b"one two\n", b"\n> ") == "one two\nONE TWO\n> "
    # Ctrl-P gets the earlier line.
    assert type_and_wait(b"\x10 three\n", b"\n> ") == "one two three\nONE TWO THREE\n> "
    type_and_wait(b"\x04", b"\n")


def test_a_session_writes_no_prompt_into_a_file(session, tmp_path):
    with (tmp_path / "out").open("w") as output:
        type_and_wait = session(stdout=output)
    type_and_wait(b"", b"\n> ")
    type_and_wait(b"one\n", b"> ")
    type_and_wait(b"two\n", b"> ")
    type_and_wait(b"\x04", b"\n")
    assert (tmp_path / "out").read_text("utf-8") == "ONE\nTWO\n"


def test_a_pipe_is_not_asked_for_sentences():
    command = [sys.executable, "-c", SHOUT, "translate", OLD_RUN]
    found = subprocess.run(command, input="one\ntwo\n", capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("ONE\nTWO\n", "")


def test_translate_writes_n_best_with_falling_scores_to_a_file(run, tmp_path):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("one two\n")
    shown = succeeds("translate", run, source, "--n-best", 2, "--scores", "--output", output)
    assert shown == ""
    first, second = (line.split("\t") for line in output.read_text("utf-8").splitlines())
    assert 0 > float(first[0]) >= float(second[0])


def test_prefixes_and_words_stand_beside_the_sentences(run, tmp_path):
    source, prefixes, forbidden = (tmp_path / name for name in ("in", "prefixes", "forbidden"))
    source.write_text("one two\nthree\nfour\n")
    translate = ("translate", run, source, "--beam-size", 1)
    free = succeeds(*translate).split("\n")
    prefixes.write_text("acht neun\n\nacht neun\n")
    forced = succeeds(*translate, "--prefix", prefixes).split("\n")
    assert [line.startswith("acht neun") for line in forced] == [True, False, True, False]
    assert forced[1] == free[1]
    forbidden.write_text("zehn\n\nsechs\tneun\n")
    beside = ("--prefix", prefixes, "--forbidden", forbidden)
    message = fails(*translate, *beside)
    assert message.startswith(
        "line 3: A prefix or required word must not contain a forbidden word."
    )
    assert message.endswith("Received: --prefix 'acht neun', --forbidden ['sechs', 'neun']")
    forbidden.write_text("zehn\n\nsechs\n")
    assert succeeds(*translate, *beside).split("\n") == forced
    assert "sieben" not in free[1]
    required = tmp_path / "required"
    required.write_text("\nsieben\teins\n\n")
    found = succeeds(*translate, "--required", required).split("\n")
    assert "sieben" in found[1] and "eins" in found[1]
    assert (found[0], found[2]) == (free[0], free[2])


def test_unknown_characters_of_prefixes_and_words_are_refused(run, tmp_path):
    source, words = tmp_path / "in", tmp_path / "words"
    source.write_text("one\ntwo\n")
    words.write_text("\nzwei\tz☃ei\n", "utf-8")
    assert "Received: 'z☃ei'" in fails("translate", run, source, "--required", words)
    assert r"Received: 'zwei\tz☃ei'" in fails("translate", run, source, "--prefix", words)


def test_damaged_weights_do_not_crash_the_process_at_its_end(run):
    path = run / "model.keras"
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("model.weights.h5")
    content = bytearray(path.read_bytes())
    content[place.header_offset + place.file_size // 2] ^= 255
    path.write_bytes(content)
    command = [sys.executable, "-m", "keras_transformer", "translate", run]
    process = subprocess.run(command, capture_output=True, text=True, input="one\n")
    assert process.returncode == 2 and "Bad CRC-32" in process.stderr, process.stderr


def test_an_unfinished_run_translates_with_a_checkpoint(run):
    expected = succeeds("translate", run, "--scores", input="one two\n")
    (run / "model.keras").unlink()
    message = fails("translate", run, input="one two\n")
    assert f"To finish it: keras-transformer train {run} --resume. " in message
    assert message.endswith("with --checkpoint: best, last or a step (2, 4)")
    # The finished model is the last checkpoint, because the recipe has average_last=1.
    last = succeeds("translate", run, "--scores", "--checkpoint", "last", input="one two\n")
    assert last == expected
    pair = ("--ensemble", run, "--checkpoint", 4)
    _, _, translation = expected.partition("\t")
    assert succeeds("translate", run, *pair, input="one two\n") == translation


@pytest.mark.parametrize("value", ["worst", "-1", "1.5", "", "9" * 9])
def test_a_checkpoint_is_best_last_or_a_step(run, value):
    result = invoke("translate", run, "--checkpoint", value, input="one\n")
    assert result.exit_code == 2
    assert f"{value!r} is not best, last or a step." in result.stderr


def test_ctranslate2_refuses_a_checkpoint(run):
    options = ("--engine", "ctranslate2", "--checkpoint", "last")
    message = fails("translate", run, *options, input="one\n")
    assert message.startswith("--checkpoint cannot be used with --engine ctranslate2")


def test_alignments_stand_behind_translations(run):
    (line,) = succeeds("translate", run, "--alignments", input="one two\n").splitlines()
    translation, alignment = line.split("\t")
    pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
    assert pairs == sorted(pairs)
    assert sorted(target for _, target in pairs) == list(range(len(translation.split())))
    assert {source for source, _ in pairs} <= {0, 1}


def test_samples_depend_on_the_seed_and_the_line(run):
    sample = ("translate", run, "--sample", 3, "--top-k", 20, "--temperature", 0.9)
    lines = succeeds(*sample, "--seed", 5, input="one\ntwo\n").splitlines()
    assert len(lines) == 6
    again = succeeds(*sample, "--seed", 5, input="one\none\n").splitlines()
    assert again[:3] == lines[:3]
    assert again[3:] != lines[:3]
    assert succeeds(*sample, "--seed", 6, input="one\ntwo\n").splitlines() != lines


def test_mbr_gives_one_line_with_its_expected_chrf(run):
    lines = succeeds("translate", run, "--mbr", 4, "--scores", input="one two\n\n").split("\n")
    assert len(lines) == 3
    assert 0 < float(lines[0].split("\t")[0]) <= 100
    assert lines[1] == "100.0000\t"  # all samples of a blank line are equal


def test_options_reach_the_translator(run, monkeypatch):
    seen = {}

    class Recorder(decoding.Translator):
        def __init__(self, *arguments, **others):
            super().__init__(*arguments, **others)
            seen.update(self.options.model_dump(), overlong=self.overlong)

    monkeypatch.setattr(decoding, "Translator", Recorder)
    given = {
        "beam_size": 1,
        "length_penalty": 0.3,
        "length_penalty_form": "power",
        "coverage_penalty": 0.2,
        "min_length": 2,
        "max_length": 5,
        "repetition_penalty": 1.5,
        "no_repeat_ngram_size": 3,
        "overlong": "truncate",
    }
    options = [
        word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    assert len(succeeds("translate", run, *options, input="one\n").split("\n")) == 2
    assert seen.items() >= given.items()


def test_batch_tokens_limit_the_batches_of_the_search(run, monkeypatch):
    seen = []

    class Recorder(decoding.Translator):
        def __init__(self, *arguments, **others):
            super().__init__(*arguments, **others)
            seen.append(self.tokens_per_batch)

    monkeypatch.setattr(decoding, "Translator", Recorder)
    translate = ("translate", run, "--beam-size", 1)
    whole = succeeds(*translate, input="one\ntwo three\n")
    assert succeeds(*translate, "--batch-tokens", 1, input="one\ntwo three\n") == whole
    assert seen == [decoding.Translator.TOKENS_PER_BATCH, 1]
    assert "not in the range" in fails("translate", run, "--batch-tokens", 0, input="one\n")
    message = fails("translate", run, "--engine", "ctranslate2", "--batch-tokens", 8, input="one\n")
    assert message.endswith("Received: --batch-tokens 8")


def test_an_overlong_line_is_split_or_truncated(run):
    translate = ("translate", run, "--beam-size", 1)
    whole, part = succeeds(*translate, input="one two. " * 30 + "\none two.\n").splitlines()
    assert whole == " ".join([part] * 30)
    result = invoke(*translate, "--overlong", "truncate", input="one two. " * 30)
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.startswith("Warning: Only the first 23 of ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_an_ensemble_of_one_model_twice_is_that_model(run, finished):
    translate = ("translate", run, "--beam-size", 1)
    alone = succeeds(*translate, input="one two\n")
    assert succeeds(*translate, "--ensemble", finished / "run", input="one two\n") == alone


def test_invalid_utf8_to_translate(run, tmp_path):
    result = invoke("translate", run, input=b"one\n\ntwo\n\xff\nthree\n")
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == (
        "Error: standard input, line 4: text must be UTF-8. Received: byte 0xff at column 1\n"
    )
    (tmp_path / "in.txt").write_bytes(b"one\n\xff\n")
    assert "in.txt, line 2" in fails("translate", run, tmp_path / "in.txt")


def test_files_beside_of_another_length(run, tmp_path):
    source, beside = tmp_path / "in.txt", tmp_path / "prefixes.txt"
    source.write_text("one\ntwo\n")
    for text, relation in (("eins\n", "fewer"), ("eins\n" * 3, "more")):
        beside.write_text(text)
        message = fails("translate", run, source, "--prefix", beside)
        assert message == f"{beside} has {relation} lines than there are sentences"


def test_an_ensemble_with_another_tokenizer(run, finished, tmp_path):
    other = shutil.copytree(finished / "run", tmp_path / "other")
    shutil.rmtree(other / "tokenizer")
    Tokenizer.train([("one", "eins")], vocabulary_size=17).save(other / "tokenizer")
    message = fails("translate", run, "--ensemble", other, input="one\n")
    assert message == f"the tokenizers of {other} and {run} differ"


def test_longer_translations_than_the_model_makes(run):
    message = fails("translate", run, "--max-length", 25, input="one\n")
    assert "at most the model's max_length, 24" in message


def test_truncated_model(run):
    path = run / "model.keras"
    path.write_bytes(path.read_bytes()[:-100])
    message = fails("translate", run, input="one\n")
    assert message.startswith(f"{path} is not a complete Keras model file")


def test_the_largest_seed_is_taken(run):
    lines = succeeds("translate", run, "--sample", 1, "--seed", 2**64 - 1, input="one\n")
    assert len(lines.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sample", 2, "--max-length", 25), "at most the model's max_length, 24"),
        (("--sample", 2, "--temperature", "1e-320"), "1e-320 is not in the range"),
        (("--sample", 2, "--repetition-penalty", "nan"), "finite number"),
        (("--sample", 2**31), "is not in the range"),
        (("--beam-size", 2**31), "is not in the range"),
        (("--min-length", 2**64), "is not in the range"),
        (("--n-best", 3), "--n-best must be at most --beam-size. Received: --n-best 3, --beam-"),
    ],
)
def test_options_that_no_search_can_have_are_refused(run, options, message):
    assert message in fails("translate", run, *options, input="one\n")


def test_output_is_utf8_whatever_the_locale_is(run):
    """The translation has the letter ü."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.getcwd()}
    command = ("translate", run, "--beam-size", "1", "--prefix", run / "prefix")
    (run / "prefix").write_text("fünf\n", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "keras_transformer", *command],
        input=b"one\n",
        env=environment,
        capture_output=True,
    )
    assert result.stdout.decode().startswith("fünf"), result.stderr.decode()[-2000:]


def test_words_required_of_an_overlong_line(run, tmp_path):
    source, required = tmp_path / "in.txt", tmp_path / "required.txt"
    source.write_text("one two. " * 30 + "\n")
    required.write_text("eins\n")
    message = fails("translate", run, source, "--required", required)
    assert message.startswith("line 1: A sentence with required words must not be longer than")


def test_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path):
    missing = tmp_path / "no run"
    for output in (tmp_path, tmp_path / ("x" * 300)):
        message = fails("translate", missing, "--output", output, input="one\n")
        assert message.startswith(f"{output} cannot be written: ")


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
        stdin = SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", stdin)

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
        "from keras_transformer.cli.translate import read_source\n"
        "from keras_transformer.data.corpus import available_chunks\n"
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


def test_a_refused_line_is_numbered_through_the_whole_text(write):
    class Refusing(Echo):
        def translate_nbest(self, sentences, **_):
            if "b" in sentences:
                raise ConstraintError(sentences.index("b"), "impossible")
            return super().translate_nbest(sentences, **_)

    with pytest.raises(UserError, match="^line 1501: impossible$"):
        text_of(read_source(write("in", "a\n" * 1500 + "b\n")), Refusing())


def test_engine_ctranslate2_gives_the_translations_of_keras(run):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")
    lines = "one two\n\nnine\n"
    translate = ("translate", run, "--length-penalty", 0)
    found = succeeds(*translate, "--engine", "ctranslate2", input=lines)
    assert found == succeeds(*translate, input=lines)


def test_options_that_ctranslate2_lacks_are_refused_by_name(run, tmp_path):
    words = tmp_path / "words"
    words.write_text("\n")
    translate = ("translate", run, "--engine", "ctranslate2")
    for option in (
        *(("--sample", 2), ("--mbr", 2), ("--required", words)),
        *(("--alignments",), ("--shortlist",)),
    ):
        expected = f"{option[0]} cannot be used with --engine ctranslate2: use --engine keras"
        assert fails(*translate, *option, input="one\n") == expected
    others = ("--ensemble", run, "--forbidden", words)
    assert fails(*translate, *others).startswith("--ensemble, --forbidden cannot be used")
    assert not (run / ".ctranslate2").exists()


def test_the_shortlist_is_learned_once(run):
    translate = ("translate", run, "--shortlist")
    found = succeeds(*translate, input="one two\n\nnine\n")
    assert len(found.splitlines()) == 3
    path = run / "shortlist.npz"
    content = path.read_bytes()
    shutil.rmtree(run / "store", ignore_errors=True)
    assert succeeds(*translate, "--ensemble", run, input="one two\n\nnine\n") == found
    assert path.read_bytes() == content
    path.write_bytes(content[:50])
    assert fails(*translate, input="one\n") == f"{path} is damaged: remove it"
    path.unlink()
    assert succeeds(*translate, input="one two\n\nnine\n") == found  # from the text
    assert not (run / "store").exists()


def test_the_output_must_not_replace_an_input(run, tmp_path):
    (tmp_path / "in.txt").write_text("one two\n")
    (tmp_path / "link.txt").symlink_to(tmp_path / "in.txt")
    for output in ("in.txt", "link.txt"):
        arguments = (tmp_path / "in.txt", "--output", tmp_path / output)
        assert "must not be an input file" in fails("translate", run, *arguments)
    assert (tmp_path / "in.txt").read_text() == "one two\n"
