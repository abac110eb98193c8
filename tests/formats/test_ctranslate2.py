"""CTranslate2 as a witness: it reads what was written, and computes the same."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.cases import most_once
from support.contract import randomize, to_numpy
from support.parallel_text import LOSSLESS_TARGET, SENTENCES
from support.small_models import VARIANTS as MODELS, make_token_likelier

from keras_transformer import (
    SearchOptions,
    Tokenizer,
    Transformer,
    Translator,
    import_run,
    open_model,
)
from keras_transformer.formats import (
    CTranslate2Translator,
    export_ctranslate2,
)

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")

FIXTURES = Path(__file__).parent.parent / "fixtures"
V, LENGTH = 60, 19
TEXTS = [source for source, _ in SENTENCES]
SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": LENGTH}
VARIANTS = {
    "sinusoidal": {},
    "pre_norm": {"norm_first": True, "position_encoding": "sinusoidal_half_split"},
    "gelu": {"activation": "gelu", "position_encoding": "learned"},
    "silu": {"activation": "silu", "position_encoding": "rotary"},
    "tanh": {"activation": "tanh", "position_encoding": "none"},
    "gelu_approximate": {"activation": "gelu_approximate", "position_encoding": "binary"},
    "unscaled": {"use_scale": False, "use_logits_bias": True},
    "all_of_opennmt": {**MODELS["all_of_opennmt"], "target_vocabulary_size": V},
}
# What the docstring of `export_ctranslate2` recommends.
SEARCH = {"length_penalty": 1e-9, "min_decoding_length": 0, "max_decoding_length": LENGTH}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=V, **LOSSLESS_TARGET)


@pytest.fixture(scope="module")
def separate_tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=V, joint=False)


@pytest.fixture
def load(tmp_path):
    """Exports a model and loads what was written."""

    def export_and_load(model, tokenizer, **options):
        export_ctranslate2(model, tokenizer, tmp_path / "model", **options)
        return ctranslate2.Translator(str(tmp_path / "model"), intra_threads=1)

    return export_and_load


def new_model(**arguments):
    model = Transformer(V, **{**SIZES, **arguments})
    randomize(model)
    return model


def strings(pieces, rows):
    return [[pieces[id] for id in row] for row in rows]


def assert_same_log_probabilities(model, translator, tokenizer, atol):
    """Of random targets and eos, as NumPy computes them without padding and bos."""
    sources, targets = np.random.default_rng(1).integers(4, V, (2, 3, LENGTH - 1))
    bos, eos = (np.full((3, 1), id) for id in (tokenizer.bos_id, tokenizer.eos_id))
    labels = np.hstack([targets, eos])
    ids = {"source_ids": np.hstack([sources, eos]), "target_ids": np.hstack([bos, targets])}
    logits = to_numpy(model(ids)).astype("float64")
    logits[..., [tokenizer.pad_id, tokenizer.bos_id]] = -np.inf
    expected = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    scored = translator.score_batch(
        strings(tokenizer.source_pieces, sources), strings(tokenizer.target_pieces, targets)
    )
    of_labels = np.take_along_axis(expected, labels[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose([x.log_probs for x in scored], of_labels, atol=atol)


# The variants that run once need the same operations.
@pytest.mark.each_backend
@pytest.mark.parametrize("variant", most_once(VARIANTS, "sinusoidal", "pre_norm"))
def test_log_probabilities_are_those_of_the_model(variant, tokenizer, separate_tokenizer, load):
    model = new_model(**VARIANTS[variant])
    tokenizer = separate_tokenizer if model.target_vocabulary_size else tokenizer
    assert_same_log_probabilities(model, load(model, tokenizer), tokenizer, atol=1e-5)


@pytest.mark.parametrize("version", [4, 5])
def test_files_of_older_releases_are_read(version, tmp_path):
    """Random weights, written by `specs` of ctranslate2 1.20.1 and 2.24.0."""
    folder = FIXTURES / f"ctranslate2_v{version}"
    run = import_run(folder, tmp_path / "run")
    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    pieces = (folder / "shared_vocabulary.txt").read_text().split("\n")
    names = SimpleNamespace(
        source_pieces=pieces, target_pieces=pieces, pad_id=0, bos_id=2, eos_id=3
    )
    assert_same_log_probabilities(open_model(run), translator, names, atol=1e-5)


def test_positions_of_a_half_precision_model_are_exported_in_float32(tokenizer, load):
    model = new_model()
    half = Transformer(V, **SIZES, dtype="mixed_bfloat16")
    half.set_weights(model.get_weights())
    assert_same_log_probabilities(model, load(half, tokenizer), tokenizer, atol=1e-5)


def test_padding_and_bos_are_never_chosen(tokenizer, load):
    model = new_model()
    for id in (tokenizer.pad_id, tokenizer.bos_id):
        make_token_likelier(model, id, 20.0)
    translator = load(model, tokenizer)
    sources = tokenizer.source_pieces[10:13], tokenizer.source_pieces[20:28]
    for result in translator.translate_batch(sources, beam_size=2, **SEARCH):
        assert result.hypotheses[0]
        assert not {"<pad>", "<s>"} & set(result.hypotheses[0])


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["int8", "int16", "float16", "bfloat16"])
def test_quantized_models_are_close_and_smaller(quantization, tokenizer, tmp_path):
    if quantization == "bfloat16":
        pytest.importorskip("torch", reason="CTranslate2 needs PyTorch to write bfloat16")
    model = new_model()
    for name, how in [("whole", None), ("quantized", quantization)]:
        export_ctranslate2(model, tokenizer, tmp_path / name, how)
    size, whole_size = (
        (tmp_path / name / "model.bin").stat().st_size for name in ("quantized", "whole")
    )
    assert size < 0.8 * whole_size
    translator = ctranslate2.Translator(str(tmp_path / "quantized"), intra_threads=1)
    assert_same_log_probabilities(model, translator, tokenizer, atol=0.3)
    copy = open_model(import_run(tmp_path / "quantized", tmp_path / "run"))
    assert_same_log_probabilities(copy, translator, tokenizer, atol=0.3)


@pytest.mark.parametrize("source_eos", [True, False])
def test_prefixes_and_a_missing_source_eos_are_exported(source_eos, tokenizer, tmp_path):
    prefixes = {"source_prefix": ["b"], "target_prefix": ["▁", "s"], "source_eos": source_eos}
    framed = Tokenizer(tokenizer.source_model, **prefixes)
    model, options = new_model(num_layers=1), SearchOptions(beam_size=2, n_best=2, length_penalty=0)
    found = export_ctranslate2(model, framed, tmp_path / "model", None, TEXTS)
    assert found.identical == len(TEXTS)
    copy = import_run(tmp_path / "model", tmp_path / "run").tokenizer()
    assert copy.frames == framed.frames
    expected = Translator(model, framed, options).translate_nbest(TEXTS)
    found = CTranslate2Translator(tmp_path / "model", options).translate_nbest(TEXTS)
    for ours, theirs in zip(expected, found, strict=True):
        assert [x.ids for x in theirs] == [x.ids for x in ours]
        between = [second.score - first.score for first, second in (ours, theirs)]
        np.testing.assert_allclose(*between, atol=1e-3)  # Its softmax leaves out pad and bos.


def test_every_sentence_is_compared_but_spaces_around_it_are_not(tokenizer, tmp_path):
    sentences = ["", " \t ", *TEXTS, f"{TEXTS[0]}\t\t", "漢"]
    found = export_ctranslate2(
        new_model(num_layers=1), tokenizer, tmp_path / "model", None, sentences
    )
    assert found.identical == found.sentences == len(sentences)
    assert Tokenizer.load(tmp_path / "model" / "tokenizer").fingerprint == tokenizer.fingerprint


@pytest.mark.slow
def test_sentences_longer_than_the_default_of_ctranslate2_are_compared(tokenizer, tmp_path):
    model = new_model(num_layers=1, max_length=1_300, position_encoding="none", norm_first=True)
    make_token_likelier(model, tokenizer.eos_id, 3.0)
    sentence = "a " * 1_050 + " ".join(TEXTS)
    assert len(tokenizer.encode_source([sentence])[0]) > 1_100
    found = export_ctranslate2(model, tokenizer, tmp_path / "model", None, [sentence])
    assert found.largest_difference < 0.1  # 0.2 if it reads 1,024 pieces
