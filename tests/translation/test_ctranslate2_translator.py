"""CTranslate2 as an engine finds what the search in Keras finds."""

import pytest
from support.contract import randomize
from support.parallel_text import SENTENCES
from support.small_models import make_token_likelier

from keras_transformer import SearchOptions, Tokenizer, Transformer, Translator
from keras_transformer.errors import UserError
from keras_transformer.export import export_ctranslate2
from keras_transformer.translation.ctranslate2_translator import CTranslate2Translator

pytestmark = pytest.mark.once

pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")

V, LENGTH = 60, 61
TEXTS = [*(source[:15] for source, _ in SENTENCES[:8]), "", "漢 dog", "a b c d e f g h " * 8]


@pytest.fixture(scope="module")
def model():
    model = Transformer(V, num_layers=2, d_model=12, num_heads=3, d_ff=23, max_length=LENGTH)
    randomize(model)
    make_token_likelier(model, 3, 1.0)  # eos, so that some translations end before their limits
    for id in (0, 2):  # CTranslate2 divides the probabilities by 1 - p(padding) - p(bos)
        make_token_likelier(model, id, -20.0)
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=V)


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ctranslate2") / "model"
    export_ctranslate2(model, tokenizer, folder)
    return folder


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert [x.ids for x in ours] == [x.ids for x in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert (a.text, a.length) == (b.text, b.length)
            assert a.score == pytest.approx(b.score, abs=1e-3)
            assert a.log_probability == pytest.approx(b.log_probability, abs=1e-3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"beam_size": 1},
        {"beam_size": 4},
        {"beam_size": 5, "length_penalty": 2.0},
        {"beam_size": 3, "length_penalty": 0.0, "n_best": 3},
        {"beam_size": 4, "length_penalty": 1.5, "length_penalty_form": "power", "n_best": 4},
        {"beam_size": 4, "max_length": 5},
    ],
    ids=str,
)
def test_hypotheses_and_scores_are_those_of_keras(arguments, model, tokenizer, folder):
    options = SearchOptions(**arguments)
    expected = Translator(model, tokenizer, options).translate_nbest(TEXTS)
    assert len({x[0].length for x in expected}) > 1
    assert_same(CTranslate2Translator(folder, options).translate_nbest(TEXTS), expected)


def test_every_sentence_has_its_own_maximum_length(model, tokenizer, folder):
    texts = ["a", *TEXTS]
    options = SearchOptions(beam_size=2, length_penalty=10.0)  # long translations
    expected = Translator(model, tokenizer, options).translate_nbest(texts)
    translator = CTranslate2Translator(folder, options)
    calls = []

    class Recorder:
        def translate_batch(self, sources, *arguments, **options):
            calls.append((len(sources), options["max_decoding_length"]))
            return engine.translate_batch(sources, *arguments, **options)

    engine, translator._model = translator._model, Recorder()
    assert_same(translator.translate_nbest(texts), expected)
    assert calls[0][1] == LENGTH
    assert min(limit for _, limit in calls) < LENGTH


def test_greedy_translations_begin_with_their_prefixes(model, tokenizer, folder):
    options = SearchOptions(beam_size=1)
    prefixes = [
        SENTENCES[0][1][:9] if text and index % 2 else "" for index, text in enumerate(TEXTS)
    ]
    expected = Translator(model, tokenizer, options).translate_nbest(TEXTS, prefixes=prefixes)
    found = CTranslate2Translator(folder, options).translate_nbest(TEXTS, prefixes=prefixes)
    assert_same(found, expected)
    with pytest.raises(UserError, match="`prefixes`, `beam_size` must be 1.*beam_size=2"):
        translator = CTranslate2Translator(folder, SearchOptions(beam_size=2))
        translator.translate(TEXTS, prefixes=prefixes)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"min_length": 2}, "set min_length=1, or use the engine keras. Received: min_length=2"),
        (
            {"repetition_penalty": 1.5},
            "repetition_penalty=1.0, .* Received: repetition_penalty=1.5",
        ),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size=0"),
        ({"coverage_penalty": 0.2}, "coverage_penalty=0.0"),
        (
            {"num_beam_groups": 2, "diversity_penalty": 0.5},
            "num_beam_groups=1, diversity_penalty=0.0, .* num_beam_groups=2, diversity_penalty=0.5",
        ),
        ({"n_best": 2}, "length_penalty_form=power, length_penalty=0 or n_best=1.* n_best=2"),
        ({"beam_size": 30}, "`beam_size` must be at most 29.* beam_size=30"),
    ],
)
def test_other_options_are_refused_by_name(arguments, message, folder):
    with pytest.raises(UserError, match=message):
        CTranslate2Translator(folder, SearchOptions(**arguments))


def test_words_and_alignments_are_refused(folder):
    translator = CTranslate2Translator(folder)
    for name in ("required", "forbidden"):
        with pytest.raises(UserError, match="omit `required` and `forbidden`"):
            translator.translate(["dog"], **{name: [["a"]]})
    with pytest.raises(UserError, match="omit `alignments`"):
        translator.translate_nbest(["dog"], alignments=True)


def test_a_folder_that_is_no_export_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not an export for CTranslate2"):
        CTranslate2Translator(tmp_path)
