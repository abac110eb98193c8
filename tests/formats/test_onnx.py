"""The folder as a whole: complete and compared, or not there at all."""

import json

import numpy as np
import pytest
from support.contract import randomize, to_numpy
from support.parallel_text import LOSSLESS_TARGET, SENTENCES
from support.small_models import VARIANTS

from keras_transformer.data import Tokenizer
from keras_transformer.decoding import SearchOptions
from keras_transformer.models import Transformer

pytest.importorskip("onnx", reason="onnx is an optional dependency")
pytest.importorskip("onnxruntime", reason="onnxruntime is an optional dependency")

from keras_transformer.formats import export_onnx, onnx_graph  # noqa: E402
from keras_transformer.formats.onnx_program import OnnxModel  # noqa: E402

V = 60
SOURCES = [source for source, _ in SENTENCES]


def new_model(**arguments):
    """Wide enough for matrices of more than a page."""
    sizes = {"num_layers": 1, "d_model": 24, "num_heads": 4, "d_ff": 67, "max_length": 19}
    model = Transformer(V, **{**sizes, **arguments})
    randomize(model)
    return model


def size_of(folder):
    return sum(path.stat().st_size for path in [*folder.glob("*.onnx"), folder / "weights.bin"])


def next_tokens(folder):
    """The most probable tokens after each token of random targets, `(16, 9)`."""
    exported, random = OnnxModel(folder), np.random.default_rng(0)
    targets, parents = random.integers(4, V, (16, 9)), np.zeros((16, 1), "int64")
    state, found = exported.encode(random.integers(4, V, (16, 7))), []
    for tokens in targets.T:
        (ids,), state = exported.step(tokens[:, None], parents, state, ["candidate_ids"])
        found.append(ids[:, 0, 0])
    return np.stack(found, axis=1)


def test_folder_holds_what_is_documented_and_constants_of_both_graphs_once(tokenizer, tmp_path):
    """The embeddings (60 x 24 x 4 bytes) are in encoder, step and output projection."""
    folder, model = tmp_path / "model", new_model()
    options = SearchOptions(beam_size=7)
    found = export_onnx(model, tokenizer, folder, sentences=SOURCES, options=options)
    assert found.identical == found.sentences == len(SOURCES)
    assert found.largest_difference < 1e-4
    names = "config.json encoder.onnx step.onnx tokenizer translate.py weights.bin".split()
    assert sorted(path.name for path in folder.iterdir()) == names
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    config = json.loads((folder / "config.json").read_text())
    expected = {"eos_id": 3, "beam_size": 7, "d_k": 6, "max_length": 19}
    assert config.items() >= expected.items()
    loaded = Tokenizer.load(folder / "tokenizer")
    assert loaded.fingerprint == tokenizer.fingerprint
    embeddings = to_numpy(model.target_embedding.embeddings).tobytes()
    assert (folder / "weights.bin").read_bytes().count(embeddings) == 1
    assert embeddings not in (folder / "step.onnx").read_bytes()


ROTARY = {"num_layers": 2, "norm_first": True, "position_encoding": "rotary", "d_k": 10}
QUICK = [ROTARY, {"position_encoding": "learned"}, {"position_encoding": "binary"}]
SLOW = [
    {"position_encoding": "sinusoidal_half_split"},
    {"use_scale": False},
    {"attention_pattern": "full"},
    *({"activation": name} for name in onnx_graph.ACTIVATIONS),
]


@pytest.mark.parametrize(
    "arguments", [*QUICK, *(pytest.param(x, marks=pytest.mark.slow) for x in SLOW)], ids=str
)
def test_translations_and_scores_are_those_of_the_model(arguments, tokenizer, tmp_path):
    found = export_onnx(new_model(**arguments), tokenizer, tmp_path / "model")
    assert found.identical == found.sentences == 16
    assert found.largest_difference < 1e-4


def test_prefixes_and_all_that_models_of_opennmt_have_are_exported(tmp_path):
    plain = Tokenizer.train(SENTENCES, V, joint=False)
    frames = {"source_prefix": ["b"], "target_prefix": ["▁", "s"], "source_eos": False}
    tokenizer = Tokenizer(plain.source_model, plain.target_model, **frames)
    model = new_model(**{**VARIANTS["all_of_opennmt"], "target_vocabulary_size": V})
    found = export_onnx(model, tokenizer, tmp_path / "model")
    assert found.identical == found.sentences == 16


def test_lora_of_a_half_precision_model_and_two_tokenizer_models_are_exported(tmp_path):
    tokenizer = Tokenizer.train(SENTENCES, V, **LOSSLESS_TARGET)
    model = new_model(dtype="mixed_bfloat16")
    model.enable_lora(2)
    randomize(model)
    found = export_onnx(model, tokenizer, tmp_path / "model")
    assert found.identical == found.sentences == 16
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["target_tokenizer"] == "target.model"


@pytest.mark.parametrize("quantization", ["int8", "int8_weights"])
def test_quantized_model_is_smaller_and_mostly_agrees(quantization, tokenizer, tmp_path):
    model = new_model(d_model=64)
    export_onnx(model, tokenizer, tmp_path / "whole")
    assert export_onnx(model, tokenizer, tmp_path / "quantized", quantization).sentences == 16
    best = [next_tokens(tmp_path / name) for name in ("whole", "quantized")]
    assert 0.8 < np.mean(best[0] == best[1]) <= 1
    assert size_of(tmp_path / "quantized") < 0.8 * size_of(tmp_path / "whole")
