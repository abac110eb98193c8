"""The search in NumPy against that of the package, and alone in a process of its own."""

import gzip
import io
import subprocess
import sys

import numpy as np
import pytest
from support.contract import randomize, to_numpy
from support.hostile_text import HOSTILE, TEXT, lines_of
from support.parallel_text import SENTENCES
from support.searching import beam_search

from keras_transformer import SearchOptions, Translator
from keras_transformer.data import Tokenizer
from keras_transformer.models import Transformer

pytest.importorskip("onnxruntime", reason="onnxruntime is an optional dependency")

from keras_transformer.export import OnnxTranslator, export_onnx  # noqa: E402
from keras_transformer.export.onnx_translator import OnnxModel, main  # noqa: E402

V, LENGTH = 60, 9
SOURCES = [source[:7] for source, _ in SENTENCES]


def likelier(model, id, amount):
    """Adds about `amount` to the logits of a token: the last norm's shift points at it."""
    shift = to_numpy(model.decoder.norm.beta)
    embeddings = to_numpy(model.target_embedding.embeddings).copy()
    embeddings[id] += amount * shift / np.sum(shift**2)
    model.target_embedding.embeddings.assign(embeddings)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=V)


@pytest.fixture(scope="module")
def model():
    """Some of its translations end by themselves."""
    model = Transformer(
        V, num_layers=2, d_model=12, num_heads=3, d_ff=23, max_length=LENGTH, norm_first=True, d_k=5
    )
    randomize(model)
    likelier(model, 3, 0.3)
    return model


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx") / "model"
    export_onnx(model, tokenizer, folder, beam_size=3, length_penalty=0.6)
    return folder


@pytest.mark.parametrize("beam_size, length_penalty", [(1, 0.0), (5, 2.0)])
def test_search_finds_what_the_package_finds(model, folder, beam_size, length_penalty):
    generator = np.random.default_rng(2)
    sources = [[*generator.integers(4, V, 5), 3] for _ in range(30)]
    limits = generator.integers(1, LENGTH + 1, 30)
    expected = beam_search(
        model,
        np.array(sources),
        limits.astype("int32"),
        max_length=LENGTH,
        beam_size=beam_size,
        length_penalty=length_penalty,
    )
    translator = OnnxTranslator(folder, beam_size, length_penalty)
    found = translator._beam_search(np.array(sources), limits)
    expected_ids = [[id for id in row if id] for row in to_numpy(expected.ids)[:, 0].tolist()]
    assert [one.ids for one in found] == expected_ids
    scores = [one.score for one in found]
    np.testing.assert_allclose(scores, to_numpy(expected.scores)[:, 0], atol=1e-4)
    ends = [ids[-1] == 3 for ids in expected_ids]
    assert any(ends) and not all(ends)  # some ended by themselves, some were cut


TEXTS = ["a dog", "", "a", " men ", "漢"]  # 漢 has no piece


def test_texts_are_encoded_and_decoded_as_by_the_tokenizer(tokenizer, folder):
    translator = OnnxTranslator(folder)
    sources = [[*ids, 3] for ids in tokenizer.encode_source([text.strip() for text in TEXTS])]
    found = [[] if source == [3] else translator.search([source])[0].ids for source in sources]
    pieces = [[id for id in ids if id != 3] for ids in found]
    assert any(pieces)
    assert translator.translate(TEXTS) == tokenizer.decode_target(pieces)


@pytest.mark.slow
def test_texts_are_translated_alike(model, tokenizer, folder):
    expected = Translator(model, tokenizer, SearchOptions(beam_size=3)).translate(TEXTS)
    assert OnnxTranslator(folder).translate(TEXTS) == expected


def test_a_string_in_place_of_a_list_is_refused(folder):
    with pytest.raises(TypeError, match="`sentences` must be a list of strings. Received: 'one'"):
        OnnxTranslator(folder).translate("one")


def test_neighbours_in_a_batch_change_nothing(folder):
    together = OnnxTranslator(folder).translate(SOURCES)
    alone = OnnxTranslator(folder, tokens_per_batch=1).translate(SOURCES)
    assert together == alone


def test_hypotheses_continue_those_that_parents_name(folder):
    model = OnnxModel(folder)
    start = model.encode(np.array([[7, 8, 3]]))
    first = model.step(np.array([[2, 2]]), np.array([[0, 0]]), 4, start)
    newest = np.array([[10, 20]])

    def logits(parents):
        step = model.step(newest, np.array([[0, 1]]), 1, first.state)
        return model.step(np.array([[30, 30]]), np.array([parents]), 1, step.state).logits.numpy()

    kept, swapped, twice = logits([0, 1]), logits([1, 0]), logits([1, 1])
    assert not np.allclose(kept[0, 0], kept[0, 1])
    np.testing.assert_allclose(swapped, kept[:, ::-1], atol=1e-6)
    np.testing.assert_allclose(twice, kept[:, [1, 1]], atol=1e-6)


def test_candidates_are_the_most_probable_but_padding_and_bos(folder):
    model = OnnxModel(folder)
    step = model.step(np.array([[2]]), np.array([[0]]), V, model.encode(np.array([[9, 3]])))
    logits = step.logits.numpy()[0, 0].astype("float64")
    expected = logits - np.log(np.sum(np.exp(logits)))
    expected[[0, 2]] = -np.inf
    order = np.argsort(-expected)[: V - 2]
    assert step.ids[0, 0, : V - 2].tolist() == order.tolist()
    np.testing.assert_allclose(step.log_probabilities[0, 0, : V - 2], expected[order], atol=1e-5)
    assert np.all(step.log_probabilities[0, 0, V - 2 :] == -np.inf)


def test_overlong_sentence_is_cut_with_a_warning(folder):
    text = " ".join(SOURCES)
    with pytest.warns(UserWarning, match="Only the first 8 of .* pieces"):
        (translation,) = OnnxTranslator(folder).translate([text])
    assert translation


def test_options_out_of_range_are_refused(folder):
    for options, message in [
        ({"beam_size": 0}, "from 1 to half of the 60 tokens. Received: beam_size=0"),
        ({"beam_size": 31}, "Received: beam_size=31"),
        ({"length_penalty": -1.0}, "Received: length_penalty=-1.0"),
        ({"length_penalty": float("inf")}, "from 0 to 10. Received: length_penalty=inf"),
        ({"max_length": 10}, "from 1 to the model's 9. Received: max_length=10"),
        ({"tokens_per_batch": 0}, "at least 1. Received: tokens_per_batch=0"),
        ({"num_threads": -1}, "from 0 to 1024. Received: num_threads=-1"),
        ({"num_threads": 1025}, "Received: num_threads=1025"),
    ]:
        with pytest.raises(ValueError, match=message):
            OnnxTranslator(folder, **options)


def run_python(*arguments, input=""):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], input=input, capture_output=True, text=True
    )


def test_exported_program_translates_without_this_package(folder, tmp_path):
    expected = OnnxTranslator(folder).translate(SOURCES)
    code = (
        "import runpy, sys; "
        "sys.modules.update(dict.fromkeys(['keras', 'keras_transformer', 'tensorflow', 'jax', "
        "'torch', 'onnx'])); "
        f"sys.argv = ['translate.py']; runpy.run_path({str(folder / 'translate.py')!r}, "
        "run_name='__main__')"
    )
    text = "".join(f"{line}\n" for line in SOURCES)
    result = run_python("-c", code, input=text)
    assert result.stdout.splitlines() == expected, result.stderr


def test_module_runs_without_keras_and_names_a_missing_folder(folder, tmp_path):
    code = (
        "import sys; from keras_transformer.export.onnx_translator import main; "
        f"main(['--model', {str(folder)!r}, '--beam-size', '1', {str(tmp_path / 'in.txt')!r}]); "
        "print('keras' in sys.modules)"
    )
    (tmp_path / "in.txt").write_text("a dog\n\n")
    lines = run_python("-c", code).stdout.splitlines()
    expected = OnnxTranslator(folder, beam_size=1).translate(["a dog", ""])
    assert lines == [*expected, "False"]
    program = ("-m", "keras_transformer.export.onnx_translator")
    result = run_python(*program, "--model", tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("Error: [Errno 2] No such file")


@pytest.fixture(scope="module")
def translated(folder):
    """Runs the exported program on bytes; returns status, lines of output and errors."""

    def run(content, *arguments):
        command = [sys.executable, folder / "translate.py", "--beam-size", "1", *arguments]
        found = subprocess.run(command, input=content, capture_output=True)
        return found.returncode, found.stdout.split(b"\n"), found.stderr.decode()

    return run


def test_lines_end_at_line_feeds_alone_and_a_byte_order_mark_is_skipped(translated, tmp_path):
    plain = translated(b"a\na dog\n")
    assert plain[0] == 0 and len(plain[1]) == 3
    assert translated(b"\xef\xbb\xbfa\r\na dog") == plain
    texts = ["a\rb", "a\u2028b", "a\x0bb", "a\x85b", "", "b"]
    status, lines, _ = translated("\n".join(texts).encode())
    assert (status, len(lines)) == (0, len(texts) + 1)


def test_gzip_is_read_from_files_and_standard_input(translated, tmp_path):
    plain = translated(b"a\na dog\n")
    packed = gzip.compress(b"a\na dog\n")
    (tmp_path / "in.gz").write_bytes(packed)
    assert translated(packed) == plain
    assert translated(b"", tmp_path / "in.gz") == plain
    status, _, error = translated(packed[:-9])
    assert status == 1
    assert error.startswith("Error: standard input, after line ")
    assert "damaged gzip file" in error


def test_invalid_utf8_is_one_line_after_the_lines_before_it(translated, tmp_path):
    status, lines, error = translated(b"a\na dog\nb \xff\nc\n")
    assert (status, lines[:-1]) == (1, translated(b"a\na dog\n")[1][:-1])
    assert error == (
        "Error: standard input, line 3: text must be UTF-8. Received: byte 0xff at column 3\n"
    )


def test_a_line_end_in_a_translation_adds_no_line(folder, monkeypatch, capfdbinary):
    monkeypatch.setattr(OnnxTranslator, "translate", lambda self, lines: ["x\ny\r\n"] * len(lines))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"a\nb\n"))))
    main(["--model", str(folder)])
    assert capfdbinary.readouterr().out == b"x y  \nx y  \n"


@pytest.mark.parametrize("name", HOSTILE)
def test_each_line_of_a_hostile_file_is_answered(folder, name, monkeypatch, tmp_path, capfdbinary):
    monkeypatch.setattr(OnnxTranslator, "translate", lambda self, lines: ["x"] * len(lines))
    path = tmp_path / "in"
    path.write_bytes(HOSTILE[name])
    if lines_of(name) is None:
        with pytest.raises(SystemExit, match="^Error: "):
            main(["--model", str(folder), str(path)])
    else:
        main(["--model", str(folder), str(path)])
        assert capfdbinary.readouterr().out == b"x\n" * len(lines_of(name))


@pytest.mark.slow
def test_hostile_lines_are_translated(folder):
    translator = OnnxTranslator(folder, beam_size=1, max_length=4)
    for name in TEXT:
        assert len(translator.translate(lines_of(name))) == len(lines_of(name)), name
