"""What the benchmark runs and reports; how long anything takes is no test's affair."""

import json
import subprocess
import sys
from pathlib import Path

import _cold_exports as exports
import numpy as np
import pytest
from cold_start import Measured, Process, Way, report, take_turns
from support.contract import randomize, to_numpy
from support.parallel_text import SENTENCES

from keras_transformer.data import Tokenizer
from keras_transformer.models import Transformer

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
FILE = Path("two.txt")
PEER = Way("ctranslate2", ())
OURS = Way("translate", (), "jax", caches=True)
IMPORTS = Way("import keras", (), "jax", reads=False)


def measured(*seconds, output=("a", "b"), first=()):
    first, second = ([Process(s, list(output)) for s in each] for each in (first, seconds))
    return Measured(first, second)


def test_only_the_second_process_finds_what_the_first_has_left(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.yaml").write_text("name: a\n")
    code = """
import os, sys
for place in (os.environ["XDG_CACHE_HOME"], os.environ["KERAS_HOME"], sys.argv[1]):
    print(os.path.exists(place + "/mark"))
    open(place + "/mark", "w").close()
print(sorted(os.listdir(sys.argv[1])))
"""
    way = Way("way", (sys.executable, "-c", code, "RUN"), caches=True, reads=False)
    ((_, found),) = take_turns([way], [], run, rounds=2).items()
    same_folder = ["False", "True"]  # XDG_CACHE_HOME and KERAS_HOME are one folder
    files = ["['mark', 'recipe.yaml']"]
    assert [p.output for p in found.first] == [[*same_folder, "False", *files]] * 2
    assert [p.output for p in found.second] == [["True"] * 3 + files] * 2
    assert not (run / "mark").exists()


def test_figures_are_of_medians_and_of_the_same_lines():
    found = {
        (IMPORTS, None): measured(2.0, 2.0, output=()),
        (OURS, FILE): measured(3.0, 5.0, 100.0, first=(7.0, 9.0, 8.0), output=("a", "c")),
        (PEER, FILE): measured(0.5),
    }
    of_imports, ours, peer = report(found, [2])
    assert of_imports["lines"] is None and of_imports["times_ctranslate2"] is None
    assert ours == {
        "way": "translate",
        "backend": "jax",
        "lines": 2,
        "first_s": 8.0,
        "second_s": 5.0,
        "times_imports": 2.5,
        "times_ctranslate2": 10.0,
        "same": 0.5,
        "note": None,
    }
    assert (peer["first_s"], peer["times_imports"], peer["same"]) == (None, None, 1.0)


def test_a_translation_with_other_lines_has_no_figures():
    found = measured(1.0, first=(1.0,))
    found.second[0].output.pop()
    (row,) = report({(OURS, FILE): found}, [2])
    assert (row["note"], row["second_s"]) == ("1 lines for 2", None)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=60)


def new_model(**arguments):
    sizes = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": 300}
    model = Transformer(60, **sizes, **arguments)
    randomize(model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_hugging_face_has_our_logits(norm_first, tokenizer, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is an optional dependency")
    transformers = pytest.importorskip("transformers", reason="it is an optional dependency")
    model = new_model(norm_first=norm_first)
    exports.save_hugging_face(model, tokenizer, tmp_path / "peer")
    peer = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "peer").eval()
    source, target = np.array([[5, 9, 7, 3], [8, 3, 0, 0]]), np.array([[2, 8, 11], [2, 6, 5]])
    with torch.inference_mode():
        found = peer(
            input_ids=torch.from_numpy(source),
            attention_mask=torch.from_numpy(source != 0),
            decoder_input_ids=torch.from_numpy(target),
        ).logits.numpy()
    expected = to_numpy(model({"source_ids": source, "target_ids": target}))
    assert (found[..., [0, 2]] < -9e3).all()  # padding and bos
    found[..., [0, 2]] = expected[..., [0, 2]]
    np.testing.assert_allclose(found, expected, atol=1e-3)


PACKAGES = {
    "ctranslate2": ["ctranslate2"],
    "hugging_face": ["torch", "transformers"],
    "marian": ["pymarian"],
}


@pytest.mark.slow
@pytest.mark.parametrize("peer", PACKAGES)
def test_the_peers_programs_write_a_line_for_each(peer, tokenizer, tmp_path):
    for package in PACKAGES[peer]:
        pytest.importorskip(package, reason=f"{package} is an optional dependency")
    exports.SAVE[peer](new_model(), tokenizer, tmp_path / peer)
    file = tmp_path / "three.txt"
    file.write_text("a dog runs\na\nthree men and a dog\n")
    program = BENCH / f"_cold_{peer}.py"
    done = subprocess.run(
        [sys.executable, program, tmp_path / peer, file], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.split("\n")) == 4


ENCODER, DECODER = exports.MARIAN_ENCODER, exports.MARIAN_DECODER


def marian_export(tokenizer, folder, **arguments):
    """A model, what Marian's file has of it, and the options in the file."""
    model = new_model(**arguments)
    exports.save_marian(model, tokenizer, folder)
    with np.load(folder / "model.npz") as file:
        arrays = dict(file)
    return model, arrays, json.loads(arrays.pop("special:model.yml").tobytes().rstrip(b"\0"))


@pytest.mark.parametrize("norm_first", [False, True])
def test_marian_has_all_our_weights(norm_first, tokenizer, tmp_path):
    model, arrays, options = marian_export(tokenizer, tmp_path / "peer", norm_first=norm_first)
    positions = 2 * model.max_length * model.d_model
    bias = model.vocabulary_size
    assert sum(a.size for a in arrays.values()) == model.count_params() + positions + bias
    assert all(array.dtype == np.float32 for array in arrays.values())
    layer = f"{DECODER}->layers->at(1)->as<marian::nn::TransformerDecoderLayerWithCrossAttention>()"
    cross = arrays[f"{layer}->crossAttentionBlock->crossAttention->kProj->weight"]
    expected = model.decoder.layers[1].cross_attention.key_projection.kernel
    np.testing.assert_array_equal(cross, to_numpy(expected))
    assert (f"{ENCODER}->postprocessor->norm->bias" in arrays) == norm_first
    assert options["transformer-preprocess"] == "n" * norm_first
    assert options["transformer-postprocess"] == ("da" if norm_first else "dan")
    assert (tmp_path / "peer" / "vocabulary.spm").read_bytes() == tokenizer.source_model


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_marian_has_our_log_probabilities(norm_first, tokenizer, tmp_path):
    pytest.importorskip("pymarian", reason="pymarian is an optional dependency")
    model, _, _ = marian_export(tokenizer, tmp_path / "peer", norm_first=norm_first)
    texts = list(zip(*SENTENCES[:3], strict=True))
    files = [tmp_path / "source", tmp_path / "target"]
    for file, text in zip(files, texts, strict=True):
        file.write_text("".join(f"{line}\n" for line in text), "utf-8")
    vocabulary = tmp_path / "peer" / "vocabulary.spm"
    command = ["score", "--model", tmp_path / "peer" / "model.npz", "--mini-batch", "1", "--quiet"]
    command += ["--cpu-threads", "1", "--vocabs", vocabulary, vocabulary, "--train-sets", *files]
    code = "import sys, _pymarian; _pymarian.main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True
    )
    sources, targets = (map(tokenizer.frame_source, tokenizer.encode_source(t)) for t in texts)
    expected = list(
        log_probabilities(model, sources, targets, [tokenizer.pad_id, tokenizer.bos_id])
    )
    np.testing.assert_allclose([float(n) for n in done.stdout.split()], expected, rtol=1e-3)


def log_probabilities(model, sources, targets, forbidden):
    """Of targets, given sources, if some tokens are forbidden."""
    for source, target in zip(sources, targets, strict=True):
        inputs = {"source_ids": np.array([source]), "target_ids": np.array([[2, *target[:-1]]])}
        logits = to_numpy(model(inputs))[0]
        logits[:, forbidden] = -np.inf
        total = np.log(np.exp(logits).sum(axis=-1))
        yield (logits[range(len(target)), target] - total).sum()


@pytest.mark.parametrize(
    "arguments",
    [{"activation": "gelu"}, {"position_encoding": "rotary"}, {"normalization": "batch"}],
)
def test_what_marian_lacks_is_refused(arguments, tokenizer, tmp_path):
    with pytest.raises((RuntimeError, ValueError)):
        exports.save_marian(new_model(**arguments), tokenizer, tmp_path / "peer")
    assert not (tmp_path / "peer").exists()


@pytest.mark.parametrize("norm_first", [False, True])
def test_sorted_features_compute_the_same(norm_first):
    model = new_model(norm_first=norm_first)
    inputs = {"source_ids": np.array([[5, 9, 7, 3]]), "target_ids": np.array([[2, 8, 11]])}
    expected, found = (to_numpy(m(inputs)) for m in (model, exports.half_split(model)))
    np.testing.assert_allclose(found, expected, atol=1e-4)
