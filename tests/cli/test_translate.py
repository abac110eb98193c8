"""`keras-transformer translate`."""

import itertools
import os
import pty
import shutil
import subprocess
import sys
from typing import get_args

import pytest
from support.command_line import fails, invoke, run_python, succeeds
from support.document_doubles import new_double
from support.time_limit import time_limit

from keras_transformer import Hypothesis, SamplingOptions
from keras_transformer.cli.translate import _TranslateOptions
from keras_transformer.documents import FORMATS
from keras_transformer.translation.target_constraints import ConstraintError

SHOUT = """
import sys
from keras_transformer import cli
from keras_transformer.cli import translate

class Shouter:
    waiting = ""

    def translate(self, sentences, **_):
        return [x.upper() for x in sentences]

translate.open_translator = lambda *_, **__: Shouter()
cli.main(sys.argv[1:])
"""


def test_on_a_terminal_a_session_asks_for_sentences(run):
    """The process translates to capitals, and imports no Keras."""
    terminal, of_process = pty.openpty()
    command = [sys.executable, "-c", SHOUT, "translate", str(run)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "dumb"}
    environment["KERAS_TRANSFORMER_WITHOUT_KERAS"] = "1"
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), of_process)
    process = subprocess.Popen(command, env=environment, **streams)
    os.close(of_process)

    def type_and_wait(keys, expected):
        os.write(terminal, keys)
        shown = b""
        with time_limit(300):
            while expected not in shown:
                shown += os.read(terminal, 4096)
        return shown.decode().replace("\r\n", "\n")

    try:
        assert type_and_wait(b"", b"\n> ") == (
            f"Loading {run}.\n"
            "Type one sentence at a time, in the source language (en). Ctrl-D ends.\n> "
        )
        assert type_and_wait(b"one two\n", b"\n> ") == "one two\nONE TWO\n> "
        # Ctrl-P gets the earlier line.
        assert type_and_wait(b"\x10 three\n", b"\n> ") == "one two three\nONE TWO THREE\n> "
        type_and_wait(b"\x04", b"\n")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_an_overlong_line_is_split_or_truncated(run):
    translate = ("translate", run, "--beam-size", 1)
    whole, part = succeeds(*translate, input="one two. " * 30 + "\none two.\n").splitlines()
    assert whole == " ".join([part] * 30).strip()
    result = invoke(*translate, "--overlong", "truncate", input="one two. " * 30)
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.startswith("Warning: Only the first 23 of ")
    assert len(result.stderr.splitlines()) == 1


def test_a_line_without_a_known_word_is_copied_and_named(run):
    result = invoke("translate", run, input="one\n😀 ✓\n\u00ad\n你好！\n")
    assert result.stdout.splitlines()[1:] == ["😀 ✓", "", "你好！"]
    for text in ("'😀 ✓'", "'你好！'"):
        assert text in result.stderr and "is copied, not translated" in result.stderr
    turned_off = invoke("translate", run, "--copy-unknown", "never", input="😀 ✓\n\u00ad\n")
    assert (turned_off.stderr, turned_off.stdout.splitlines()[1]) == ("", "")


def test_invalid_utf8_to_translate(run, tmp_path):
    result = invoke("translate", run, input=b"one\n\ntwo\n\xff\nthree\n")
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == (
        "Error: standard input, line 4: text must be UTF-8. Received: byte 0xff at column 1. "
        "It may be CP1252, which this converts: iconv -f CP1252 -t UTF-8\n"
    )
    (tmp_path / "in.txt").write_bytes(b"one\n\xff\n")
    assert "in.txt, line 2" in fails("translate", run, tmp_path / "in.txt")


def test_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(run, tmp_path):
    (run / "model.keras").write_bytes(b"no model")
    (tmp_path / "in").write_text("one\n")
    translate = ("translate", run, tmp_path / "in", "--output", tmp_path)
    for options in ((), ("--resume",)):
        assert fails(*translate, *options).startswith(f"{tmp_path} cannot be written: ")


OPEN = "keras_transformer.cli.translate.open_translator"


class Echo:
    """A translator that says what it was asked."""

    waiting = ""

    def __init__(self, n_best=1):
        self.asked, self.n_best = [], n_best

    def translate(self, sentences, progress, **beside):
        self.asked.append(beside)
        return sentences

    def translate_nbest(self, sentences, alignments, word_scores, progress, **beside):
        alignment = ((0, 1), (2, 0)) if alignments else None
        beams = range(self.n_best)
        return [
            [Hypothesis(f"{x}{n}", (), -n / 3, 0.0, 1, alignment) for n in beams] for x in sentences
        ]

    def sample(self, sentences, options, seed, first_index, progress):
        self.asked.append((options, seed))
        indices = itertools.count(first_index)
        pairs = zip(sentences, indices, strict=False)
        return [[Hypothesis(f"{x}@{n}", (), 0.0, 0.0, 1)] * options.num_samples for x, n in pairs]


@pytest.fixture
def echo(monkeypatch):
    """Returns a translator that `translate` uses in place of the run's."""

    def use(translator):
        monkeypatch.setattr(OPEN, lambda *_, **__: translator)
        return translator

    return use


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode())
        return path

    return write


def test_what_stands_beside_goes_to_the_search(run, echo, write):
    source, prefix, words = write("in", "a\nb\n"), write("p", "x y\n\n"), write("w", "\nu v\tw\n")
    translator = echo(Echo())
    found = succeeds("translate", run, source, "--prefix", prefix, "--required", words)
    assert found == "a\nb\n"
    assert translator.asked == [
        {"prefixes": ["x y", ""], "required": [[""], ["u v", "w"]], "forbidden": [[""], [""]]}
    ]


def test_scores_and_alignments_stand_around_each_translation(run, echo, write):
    echo(Echo(n_best=2))
    text = succeeds("translate", run, write("in", "a\n"), "--scores", "--alignments")
    assert text == "0.0000\ta0\t0-1 2-0\n-0.3333\ta1\t0-1 2-0\n"


def test_names_stay_in_the_best_translation(run, echo, write):
    echo(new_double(forms=("Rome",)))
    given = "translate", run, write("in", "See {x}.\n")
    assert (succeeds(*given), succeeds(*given, "--scores")) == ("SEE {x}.\n", "-1.0000\tSEE {X}.\n")


def test_terms_are_named_and_words_scored(run, echo, write):
    echo(new_double())
    given = write("in", "a car\nCar\n\nb\n"), "--glossary", write("terms.tsv", "car\tAuto\n")
    result = invoke("translate", run, *given, "--word-scores")
    assert result.stdout.splitlines() == ["A Auto\t0.00 -1.00", "Auto\t0.00", "\t", "B\t0.00"]
    assert "Terms of the glossary: car → Auto (1), Car → Auto (1)" in result.stderr


def test_samples_are_numbered_through_the_whole_text(run, echo, write):
    translator = echo(Echo())
    sample = ("--sample", 1, "--seed", 3, "--top-k", 5, "--max-length", 9)
    text = succeeds("translate", run, write("in", "a\n" * 1500), *sample)
    assert text.splitlines() == [f"a@{index}" for index in range(1500)]
    options = SamplingOptions(num_samples=1, top_k=5, max_length=9)
    assert set(translator.asked) == {(options, 3)}


def test_options_reach_the_translator(run, monkeypatch):
    seen = []

    def record(runs, **others):
        seen.append((others.pop("options"), others))
        return Echo()

    monkeypatch.setattr(OPEN, record)
    words = ("--beam-size", 3, "--min-length", 2, "--overlong", "truncate", "--checkpoint", "2")
    words += ("--copy-unknown", "characters", "--as-written", "--target-language", "fr")
    succeeds("translate", run, *words, "--batch-tokens", 8, "--shortlist", input="one\n")
    ((options, others),) = seen
    assert (options.beam_size, options.min_length, options.length_penalty) == (3, 2, 0.6)
    text = {"overlong": "truncate", "copy_unknown": "characters", "as_written": True}
    text |= {"engine": "keras", "source_language": None, "target_language": "fr"}
    assert others == {**text, "use_shortlist": True, "checkpoint": 2, "tokens_per_batch": 8}


def test_a_refused_line_is_numbered_through_the_whole_text(run, echo, write):
    class Refusing(Echo):
        def translate(self, sentences, **_):
            if "b" in sentences:
                raise ConstraintError(sentences.index("b"), "impossible")
            return sentences

    echo(Refusing())
    source = write("in", "a\n" * 1500 + "b\n")
    assert fails("translate", run, source).startswith("line 1501: impossible")


def test_help_and_engine_ctranslate2_start_without_keras(run, write):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")
    words = ["translate", str(run), str(write("in", "one two\n")), "--engine", "ctranslate2"]
    succeeds(*words)  # converts the model
    for given in (words, ["--help"]):
        code = f"""
import sys, keras_transformer_cli
sys.argv[1:] = {given}
try:
    keras_transformer_cli.main()
except SystemExit:
    print([x for x in ("keras", "langcodes") if x in sys.modules])
"""
        assert run_python(code).splitlines()[-1] == "[]"


def test_the_shortlist_is_learned_once(run):
    translate = ("translate", run, "--shortlist")
    found = succeeds(*translate, input="one two\n\nnine\n")
    assert len(found.splitlines()) == 3
    path = run / "shortlist.npz"
    content = path.read_bytes()
    shutil.rmtree(run / "store", ignore_errors=True)
    assert succeeds(*translate, "--ensemble", run, input="one two\n\nnine\n") == found
    assert path.read_bytes() == content
    path.unlink()
    assert succeeds(*translate, input="one two\n\nnine\n") == found  # from the text
    assert not (run / "store").exists()


@pytest.fixture
def few_lines(monkeypatch):
    """Makes chunks of three lines."""
    monkeypatch.setattr("keras_transformer.cli.translate.STREAMED_LINES", 3)


SENTENCES = "".join(f"{x}\n" for x in ("one", "two three", "", "9", "four", "six", "one", "ten"))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--sample", 2, "--scores"), marks=pytest.mark.slow),
        ("--prefix", "p", "--required", "r", "--forbidden", "f", "--alignments"),
    ],
    ids=lambda options: options[0],
)
def test_a_stopped_translation_goes_on_and_shards_are_parts(
    options, run, write, few_lines, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write("p", "eins\n\n\n\n\n\neins\n\n")
    write("r", "\n\n\ndrei\n\nacht\n\n\n")
    write("f", "\nnull\n" * 4)
    source, out = write("in", SENTENCES), tmp_path / "out"
    translate = ("translate", run, source, "--output", out, *options)
    succeeds(*translate)
    whole = out.read_bytes()
    per_sentence = whole.count(b"\n") // 8
    assert whole.count(b"\n") == 8 * per_sentence
    parts = b""
    for number in (1, 2):
        succeeds(*translate, "--shard", f"{number}/2")
        assert out.read_bytes().count(b"\n") == (3, 5)[number - 1] * per_sentence
        parts += out.read_bytes()
    assert parts == whole
    out.unlink()
    for kept in (len(whole) // 5, len(whole) * 3 // 4):  # The last kept sentence is incomplete.
        with monkeypatch.context() as patch:
            stop_after_first_chunk(patch)
            assert invoke(*translate, "--resume").exit_code == 130
        (partial,) = tmp_path.glob(".partial-*")
        assert whole.startswith(partial.read_bytes()) and not out.exists()
        partial.write_bytes(whole[:kept])
        succeeds(*translate, "--resume")
        assert out.read_bytes() == whole and not partial.exists()
        out.unlink()


def stop_after_first_chunk(patch):
    """Makes the command stop, as by Ctrl-C, before its second chunk."""
    from keras_transformer.cli import translate

    original = translate._hypotheses

    def stopped(translator, chunk, first, **settings):
        if first > 0:
            raise KeyboardInterrupt
        return original(translator, chunk, first, **settings)

    patch.setattr(translate, "_hypotheses", stopped)


def test_only_the_same_translation_is_continued(run, write, few_lines, tmp_path, monkeypatch):
    source, out = write("in", SENTENCES), tmp_path / "out"
    translate = ("translate", run, source, "--output", out, "--resume")
    with monkeypatch.context() as patch:
        stop_after_first_chunk(patch)
        for change in ((), ("--beam-size", 1), ("--shard", "2/2")):
            invoke(*translate, *change)
        write("in", SENTENCES.replace("ten", "nine"))
        invoke(*translate)
        shutil.copy(run / "checkpoints" / "step-00000002" / "model.keras", run / "model.keras")
        invoke(*translate)
    assert len({*tmp_path.glob(".partial-*")}) == 5


def test_a_document_is_translated_as_a_whole(run, echo, write):
    echo(new_double())
    page = write("a.html", "<p>one <b>two</b>\n")
    assert succeeds("translate", run, page) == "<p>ONE <b>TWO</b>\n"
    other = write("a.x", "<p>one <b>two</b>")
    succeeds("translate", run, other, "--format", "html", "--output", page.with_name("b"))
    assert page.with_name("b").read_text() == "<p>ONE <b>TWO</b>"


NO_SAMPLING = "can only be used with --sample or --mbr"
CTRANSLATE2 = "--engine ctranslate2"
NO_ENGINE = "cannot be used with --engine ctranslate2: use --engine keras"
NO_DOCUMENT = "cannot be used with documents (html): use --format text"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--n-best 3 --beam-size 2", "`beam_size` must be at least `n_best`"),
        ("--min-length 6 --max-length 5", "`min_length` must be at most `max_length`"),
        ("--mbr 2 --sample 2", "--sample and --mbr cannot be used together"),
        ("--top-k 3", f"--top-k {NO_SAMPLING}"),
        ("--seed 0", f"--seed {NO_SAMPLING}"),
        ("--sample 2 --beam-size 2", "--beam-size cannot be used with --sample or --mbr"),
        ("--mbr 2 --alignments", "--alignments cannot be used with --sample or --mbr"),
        ("--mbr 2 --word-scores", "--word-scores cannot be used with --sample or --mbr"),
        ("--sample 2 --word-scores", "--word-scores cannot be used with --sample or --mbr"),
        ("--glossary words --alignments", "--glossary cannot be used with --alignments"),
        ("--glossary words --n-best 2", "--glossary cannot be used with --n-best"),
        ("--glossary words --scores", "--glossary cannot be used with --scores"),
        ("--glossary words --sample 2", "--glossary cannot be used with --sample"),
        (f"{CTRANSLATE2} --sample 2", f"--sample {NO_ENGINE}"),
        (f"{CTRANSLATE2} --mbr 2", f"--mbr {NO_ENGINE}"),
        (f"{CTRANSLATE2} --required words", f"--required {NO_ENGINE}"),
        (f"{CTRANSLATE2} --copy-unknown characters", f"--copy-unknown characters {NO_ENGINE}"),
        (f"{CTRANSLATE2} --shortlist", "CTranslate2 does not have these options"),
        (f"{CTRANSLATE2} --checkpoint last", "CTranslate2 does not have these options"),
        (f"{CTRANSLATE2} --ensemble run", "CTranslate2 does not have these options"),
        ("in --output in", "--output must not be an input file"),
        ("in --output link", "--output must not be an input file"),
        ("a.html --output a.html", "--output must not be an input file"),
        ("--resume", "--resume can only be used with FILE"),
        ("in --resume", "--resume can only be used with --output"),
        ("--shard 1/2", "--shard can only be used with FILE"),
        ("in --shard 3/2", "Invalid value for '--shard': '3/2' is no shard, such as"),
        ("in --shard half", "Invalid value for '--shard': 'half' is no shard, such as"),
        ("a.html --output b --scores", f"--scores {NO_DOCUMENT}"),
        ("a.html --output b --resume", f"--resume {NO_DOCUMENT}"),
        ("a.html --output b --sample 2", f"--sample {NO_DOCUMENT}"),
        ("a.html --output b --n-best 2", f"--n-best {NO_DOCUMENT}"),
        ("a.html --output b --alignments", f"--alignments {NO_DOCUMENT}"),
        ("--format html", "standard input cannot be used with documents"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, write, monkeypatch, words, message):
    monkeypatch.chdir(run.parent)
    write("words", "\n")
    write("a.html", "<p>one")
    source = write("in", "one\n")
    source.with_name("link").symlink_to(source)
    assert fails("translate", run, *words.split(), input="one\n").startswith(message)
    assert source.read_text() == "one\n" and not (run / ".ctranslate2").exists()


def test_the_formats_are_those_of_documents():
    assert get_args(get_args(_TranslateOptions.model_fields["format"].annotation)[0]) == (*FORMATS,)
