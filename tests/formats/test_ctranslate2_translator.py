"""CTranslate2 as an engine finds what the search in Keras finds. Runs keep their conversion."""

import shutil

import numpy as np
import pytest
from support.contract import randomize
from support.forking import in_a_child
from support.parallel_text import SENTENCES
from support.small_models import make_token_likelier

from keras_transformer import (
    Run,
    SearchOptions,
    Transformer,
    Translator,
    UserError,
    save_run,
)
from keras_transformer.formats import (
    export_ctranslate2,
)
from keras_transformer.formats.ctranslate2_translator import CTranslate2Translator
from keras_transformer.formats.engines import FOLDER, converted, open_translator
from keras_transformer.translation.open_run import open_model

pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")

V, LENGTH = 60, 61
TEXTS = [*(source[:15] for source, _ in SENTENCES[:8]), "", "漢 dog", "a b c d e f g h " * 8]


def new_model(num_layers, seed=0, **arguments):
    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": LENGTH}
    model = Transformer(V, num_layers=num_layers, **sizes, **arguments)
    randomize(model, seed)
    make_token_likelier(model, 3, 1.0)  # eos, so that some translations end before their limits
    for id in (0, 2):  # CTranslate2 divides the probabilities by 1 - p(padding) - p(bos)
        make_token_likelier(model, id, -20.0)
    return model


@pytest.fixture(scope="module")
def model():
    return new_model(2)


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ctranslate2") / "model"
    export_ctranslate2(model, tokenizer, folder)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        {"beam_size": 1},
        {"beam_size": 4},
        {"beam_size": 2, "length_penalty": 10.0},  # long translations
        {"beam_size": 3, "length_penalty": 0.0, "n_best": 3},
        {"beam_size": 4, "length_penalty": 1.5, "length_penalty_form": "power", "n_best": 4},
        {"beam_size": 4, "max_length": 5},
    ],
    ids=str,
)
def test_hypotheses_and_scores_are_those_of_keras(arguments, model, tokenizer, folder):
    """Each sentence has its own maximum length."""
    options = SearchOptions(**arguments)
    texts = ["a", *TEXTS]
    expected = Translator(model, tokenizer, options).translate_nbest(texts)
    assert len({x[0].length for x in expected}) > 1
    found = CTranslate2Translator(folder, options).translate_nbest(texts)
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a.ids, a.text, a.length) == (b.ids, b.text, b.length)
            assert a.score == pytest.approx(b.score, abs=1e-3)
            assert a.log_probability == pytest.approx(b.log_probability, abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"min_length": 2},
        {"num_beam_groups": 2, "diversity_penalty": 0.5},
        {"n_best": 2},
    ],
)
def test_other_options_are_refused_by_name(options, folder):
    received = ", ".join(f"{name}={value}" for name, value in options.items())
    with pytest.raises(UserError, match=f"use the engine keras. Received: {received}"):
        CTranslate2Translator(folder, SearchOptions(**options))


@pytest.mark.filterwarnings("ignore:Text without a known word")
def test_text_without_a_known_word_is_copied_but_for_single_characters(folder):
    texts = ["漢字！", "\u00ad", "a 漢"]
    found = CTranslate2Translator(folder).translate(texts)
    assert found[:2] == ["漢字！", ""]
    turned_off = CTranslate2Translator(folder, copy_unknown="never").translate(texts)
    assert turned_off[0] != found[0] and turned_off[1:] == found[1:]
    with pytest.raises(UserError, match="use the engine keras. Received: copy_unknown=characters"):
        CTranslate2Translator(folder, copy_unknown="characters")


@pytest.mark.parametrize("kind", ["alignments", "word_scores"])
def test_alignments_and_scores_of_words_are_those_of_keras(kind, model, tokenizer, folder):
    assert CTranslate2Translator(folder).translate_nbest(TEXTS, **{kind: True})  # the longest, too
    options = SearchOptions(beam_size=2, max_length=40)
    expected = Translator(model, tokenizer, options).translate_nbest(TEXTS, **{kind: True})
    found = CTranslate2Translator(folder, options).translate_nbest(TEXTS, **{kind: True})
    name = kind.removesuffix("s") if kind == "alignments" else kind
    pairs = [
        (getattr(a, name), getattr(b, name)) for (a,), (b,) in zip(found, expected, strict=True)
    ]
    assert any(len(theirs) > 1 for _, theirs in pairs)
    for ours, theirs in pairs:
        assert np.array(ours) == pytest.approx(np.array(theirs), abs=1e-3)


def test_constraints_are_refused(folder):
    translator = CTranslate2Translator(folder)
    for given in ({"prefixes": ["a"]}, {"required": [["a"]]}, {"forbidden": [["a"]]}):
        with pytest.raises(
            UserError, match="use the engine keras. Received: prefixes, required or forb"
        ):
            translator.translate(["dog"], **given)


# --- The conversion of a run ---------------------------------------------------------------------

# Short and greedy, because the hypotheses of random weights nearly tie.
OPTIONS = SearchOptions(beam_size=1, max_length=3)


@pytest.fixture(scope="module")
def converted_run(tokenizer, tmp_path_factory):
    run = save_run(tmp_path_factory.mktemp("runs") / "run", new_model(1), tokenizer)
    converted(run)
    return run


@pytest.fixture
def run(converted_run, tmp_path):
    """A copy with other times."""
    plain = {"copy_function": shutil.copyfile}
    return Run.open(shutil.copytree(converted_run.directory, tmp_path / "run", **plain))


def is_converted_again(run, capsys):
    capsys.readouterr()
    converted(run)
    return "Converting" in capsys.readouterr().err


def test_a_model_is_converted_once(run, capsys):
    (run.tokenizer_dir / ".ipynb_checkpoints").mkdir()
    assert not is_converted_again(run, capsys)
    shutil.rmtree(run.directory / FOLDER)
    assert is_converted_again(run, capsys)
    assert not is_converted_again(run, capsys)


def test_both_engines_translate_alike_and_follow_the_model(run, capsys):
    before = open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS)
    new_model(1, seed=1).save(run.model_path)
    expected = open_translator(run, OPTIONS).translate(TEXTS)
    found = open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS)
    assert found == expected != before
    assert "Converting" in capsys.readouterr().err
    assert len([*(run.directory / FOLDER).iterdir()]) == 1


def test_a_read_only_run_translates_once_it_is_converted(run, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    assert open_translator(run, OPTIONS, engine="ctranslate2").translate(["a"])
    shutil.rmtree(run.directory / FOLDER)
    with pytest.raises(UserError, match=f"{run.directory} is read-only: copy it"):
        open_translator(run, OPTIONS, engine="ctranslate2")


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_child_raises_at_once(folder):
    translator = CTranslate2Translator(folder)
    expected = translator.translate(["a"])
    for use in (lambda: translator.translate(["a"]), lambda: CTranslate2Translator(folder)):
        assert in_a_child(use).startswith("RuntimeError: ctranslate2 cannot compute in a forked")
    assert translator.translate(["a"]) == expected


def test_a_model_replaced_while_it_is_converted_is_converted_again(run, monkeypatch, capsys):
    def load_and_replace(run):
        model = open_model(run)
        new_model(1, seed=2).save(run.model_path)
        return model

    new_model(1, seed=1).save(run.model_path)
    monkeypatch.setattr("keras_transformer.translation.open_run.open_model", load_and_replace)
    converted(run)
    monkeypatch.undo()
    assert is_converted_again(run, capsys)
