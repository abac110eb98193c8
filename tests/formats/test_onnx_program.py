"""The search in NumPy against that of the package, and alone in a process of its own."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
from support.contract import randomize, to_numpy
from support.parallel_text import SENTENCES
from support.searching import beam_search
from support.small_models import make_token_likelier

from keras_transformer import SamplingOptions, SearchOptions, Translator
from keras_transformer.models import Transformer

pytest.importorskip("onnx", reason="onnx is an optional dependency")
pytest.importorskip("onnxruntime", reason="onnxruntime is an optional dependency")

from keras_transformer.formats import export_onnx, onnx_translator  # noqa: E402
from keras_transformer.formats.onnx_program import (  # noqa: E402
    StandaloneTranslator,
    main,
)

V, LENGTH = 60, 9
SOURCES = [source[:7] for source, _ in SENTENCES]
TEXTS = ["a dog", "", "a", " men ", "漢"]  # 漢 has no piece


@pytest.fixture(scope="module")
def model():
    """Some of its translations end by themselves."""
    model = Transformer(
        V, num_layers=2, d_model=12, num_heads=3, d_ff=23, max_length=LENGTH, norm_first=True, d_k=5
    )
    randomize(model)
    make_token_likelier(model, 3, 0.3)
    return model


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx") / "model"
    export_onnx(model, tokenizer, folder, options=SearchOptions(beam_size=3, length_penalty=0.6))
    return folder


def texts_of(translator, sentences):
    return [text for text, _ in translator.translate(sentences)]


def test_translator_searches_with_the_exported_model(model, tokenizer, folder):
    """Also what the program cannot do: n-best lists, rules and sampling."""
    options = SearchOptions(beam_size=4, n_best=3, repetition_penalty=1.5, length_penalty=0.0)
    sampling = SamplingOptions(num_samples=2, top_k=9)
    exported = onnx_translator(folder, options)
    expected = Translator(model, tokenizer, options)
    for found, own in (
        (exported.translate_nbest(SOURCES), expected.translate_nbest(SOURCES)),
        (exported.sample(TEXTS, sampling, seed=3), expected.sample(TEXTS, sampling, seed=3)),
    ):
        assert [[x.ids for x in row] for row in found] == [[x.ids for x in row] for row in own]
        for row, own_row in zip(found, own, strict=True):
            scores = [[x.score for x in rows] for rows in (row, own_row)]
            np.testing.assert_allclose(*scores, atol=1e-4)


def test_translator_has_the_exported_options(folder):
    translator = onnx_translator(folder, overlong="truncate")
    assert translator.options == SearchOptions(beam_size=3, length_penalty=0.6)
    assert translator.translate(TEXTS) == texts_of(StandaloneTranslator(folder), TEXTS)


def test_text_without_a_known_word_is_copied_with_a_warning(folder):
    with pytest.warns(UserWarning, match="Copied without translation: '漢字！'"):
        found = StandaloneTranslator(folder).translate([" 漢字！", "a 漢", "a", "\u2800", "\0"])
    assert found[0] == ("漢字！", 0.0)
    assert [score < 0 for _, score in found[1:]] == [True, True, False, False]
    assert found[3:] == [("", 0.0)] * 2


@pytest.mark.parametrize(
    "beam_size, length_penalty, form", [(1, 0.0, "wu"), (5, 2.0, "wu"), (5, 1.0, "power")]
)
def test_search_finds_what_the_package_finds(model, folder, beam_size, length_penalty, form):
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
        length_penalty_form=form,
    )
    translator = StandaloneTranslator(folder, beam_size, length_penalty)
    translator.model.config["length_penalty_form"] = form
    found = translator.search(np.array(sources), limits)
    expected_ids = [[id for id in row if id] for row in to_numpy(expected.ids)[:, 0].tolist()]
    assert [ids for ids, _ in found] == expected_ids
    scores = [score for _, score in found]
    np.testing.assert_allclose(scores, to_numpy(expected.scores)[:, 0], atol=1e-4)
    ends = [ids[-1] == 3 for ids in expected_ids]
    assert any(ends) and not all(ends)  # some ended by themselves, some were cut


def test_neighbours_in_a_batch_change_nothing_and_an_overlong_sentence_is_cut(folder):
    text = " ".join(SOURCES)
    with pytest.warns(UserWarning, match="Only 8 of .* pieces"):
        together = texts_of(StandaloneTranslator(folder), [*SOURCES, text])
    assert together.pop()  # it is cut
    alone = texts_of(StandaloneTranslator(folder, tokens_per_batch=1), SOURCES)
    assert together == alone


def test_exported_program_translates_without_this_package(folder):
    expected = texts_of(StandaloneTranslator(folder), SOURCES)
    code = (
        "import runpy, sys; "
        "sys.modules.update(dict.fromkeys(['keras', 'keras_transformer', 'tensorflow', 'jax', "
        "'torch', 'onnx'])); "
        f"sys.argv = ['translate.py']; runpy.run_path({str(folder / 'translate.py')!r}, "
        "run_name='__main__')"
    )
    text = "".join(f"{line}\n" for line in SOURCES)
    words = [sys.executable, "-c", code]
    result = subprocess.run(words, input=text, capture_output=True, text=True)
    assert result.stdout.splitlines() == expected, result.stderr


@pytest.fixture
def translated(folder, tmp_path, capfdbinary):
    """Runs the program on a file of bytes; returns its lines of output."""

    def run(content, *arguments):
        (tmp_path / "in").write_bytes(content)
        main(["--model", str(folder), "--beam-size", "1", *arguments, str(tmp_path / "in")])
        return capfdbinary.readouterr().out.split(b"\n")

    return run


def test_lines_end_at_line_feeds_alone_and_a_byte_order_mark_is_skipped(translated):
    plain = translated(b"a\na dog\n")
    assert len(plain) == 3
    assert translated(b"\xef\xbb\xbfa\r\na dog") == plain
    texts = ["a\rb", "a\u2028b", "a\x0bb", "a\x85b", "", "b"]
    assert len(translated("\n".join(texts).encode())) == len(texts) + 1
    assert translated(b"") == [b""]


@pytest.mark.parametrize(
    "content, arguments, message",
    [
        (b"a\nb \xff\n", [], "Error: 'utf-8' codec can't decode byte 0xff"),
        (gzip.compress(b"a\n"), [], "Error: 'utf-8' codec can't decode byte 0x8b"),
        (b"a", ["--model", "nowhere"], "Error: .* No such file"),
        (b"a", ["--beam-size", "0"], "Error: `beam_size` must be"),
    ],
)
def test_errors_are_one_line(content, arguments, message, translated):
    with pytest.raises(SystemExit, match=message):
        translated(content, *arguments)
