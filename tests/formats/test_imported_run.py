"""Models of other toolkits become runs that compute the same, or one line says why they cannot."""

import hashlib
import itertools
import json
import os
from importlib.util import find_spec

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file
from support.cases import once
from support.command_line import fails, run_python, succeeds
from support.contract import assert_same_arrays
from support.foreign_models import hugging_face_folder, marian_files
from support.local_server import answer, local_server

from keras_transformer import (
    Run,
    Scorer,
    SearchOptions,
    Tokenizer,
    Translator,
    UserError,
    import_run,
    load_recipe,
    open_model,
    train,
)
from keras_transformer.formats import ExportOptions, export_run, open_preset
from keras_transformer.formats.export_options import FORMATS
from keras_transformer.formats.model_files import read_marian_bin, read_npz, read_safetensors
from keras_transformer.runs.checkpoints import logged_scalars

BEAM = SearchOptions(beam_size=4, length_penalty=0)


@pytest.fixture(scope="session")
def pretrained(data_dir):
    if not (folder := data_dir / "pretrained").is_dir():
        pytest.skip("KERAS_TRANSFORMER_DATA has no pretrained models")
    return folder


@pytest.fixture
def folder(tmp_path):
    return hugging_face_folder(tmp_path / "opus-mt-en-de")


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize(
    "name",
    ["pre_gelu_two", "student_ssru", *once("post_swish_joint", "post_relu_joint", "post_untied")],
)
def test_scores_equal_marians(name, pretrained, tmp_path):
    marian = pretrained / "marian"
    pairs = [(marian / f"pairs.{x}").read_text().splitlines() for x in ("en", "de")]
    expected = json.loads((marian / name / "witness.json").read_text())["log_probabilities"]
    run = import_run(marian / name / "model.npz", tmp_path / "run")
    model, tokenizer = open_model(run), run.tokenizer()
    scores = [x.log_probability for x in Scorer(model, tokenizer).score(*pairs)]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-3)
    other = type(model).from_config(
        {**model.get_config(), "position_encoding": "sinusoidal_half_split"}
    )
    other.set_weights(model.get_weights())
    wrong = [x.log_probability for x in Scorer(other, tokenizer).score(*pairs)]
    assert max(abs(np.subtract(wrong, expected))) > 0.1


def test_a_folder_of_opus_has_a_vocabulary_of_lines_and_two_tokenizers(tmp_path):
    run = import_run(marian_files(tmp_path / "opus", "yaml"), tmp_path / "run")
    plain = import_run(marian_files(tmp_path / "marian"), tmp_path / "plain")
    assert run.tokenizer().fingerprint == plain.tokenizer().fingerprint
    assert (run.recipe.evaluation.beam_size, run.recipe.evaluation.length_penalty) == (6, 1)


def test_both_files_of_marian_have_the_same_weights(pretrained):
    student = pretrained / "marian" / "student_ssru"
    binary, npz = read_marian_bin(student / "model.float32.bin"), read_npz(student / "model.npz")
    assert binary.keys() == npz.keys()
    eight_bits = read_marian_bin(student / "model.intgemm8.bin")
    for name in npz.keys() - {"special:model.yml"}:
        np.testing.assert_array_equal(binary[name], npz[name])
        most = np.abs(npz[name]).max() / 127
        np.testing.assert_allclose(eight_bits[name], npz[name], rtol=0, atol=0.51 * most)


@pytest.mark.parametrize("name", ["v1/aren-transliteration", "v2/aren-transliteration"])
def test_translations_equal_those_of_ctranslate2(name, pretrained, tmp_path):
    witness = (pretrained / "ctranslate2" / "witness_aren_beam4.tsv").read_text("utf-8")
    words, expected, scores = zip(*(x.split("\t") for x in witness.splitlines()), strict=True)
    run = import_run(pretrained / "ctranslate2" / name, tmp_path / "run")
    found = Translator.from_run(run, BEAM).translate_nbest([" ".join(word) for word in words])
    assert [x[0].text.replace(" ", "") for x in found] == [*expected]
    np.testing.assert_allclose([x[0].score for x in found], [*map(float, scores)], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("v1/aren-transliteration-i16", 16), ("v2/aren-transliteration-i8", 8)],
)
def test_rounded_weights_are_told(name, bits, pretrained, tmp_path):
    run = import_run(pretrained / "ctranslate2" / name, tmp_path / "run")
    (note,) = json.loads(run.origin_path.read_text())["notes"]
    assert f"int{bits}" in note


@pytest.fixture
def imported(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "licence of the model is cc-by-4.0" in succeeds("import", folder, "imported")
    return Run.open("imported")


@pytest.mark.slow
def test_an_imported_run_is_exported_and_comes_back(imported):
    formats = ("run", "hugging_face", "ctranslate2", "onnx")
    installed = [format for format in formats if all(map(find_spec, FORMATS[format].packages))]
    for format in installed:
        search = BEAM if format in ("hugging_face", "onnx") else None
        found = export_run(imported, ExportOptions(format=format, search=search))
        assert "100.0%" in found.comparison
    if "ctranslate2" in installed:  # version 6
        again = import_run("exports/imported/ctranslate2", "again")
        texts = ["a dog runs", "the man is in the park", "two men"]
        translations = (Translator.from_run(x, BEAM).translate(texts) for x in (imported, again))
        assert next(translations) == next(translations)
    assert_same_weights(imported, import_run("exports/imported/hugging_face", "back"))
    assert "names no text" in fails("evaluate", "imported")
    with pytest.raises(UserError, match="give files"):
        load_recipe("imported")


def assert_same_weights(run, other):
    assert_same_arrays(open_model(run).weights, open_model(other).weights)


@pytest.mark.slow
def test_training_begins_with_the_imported_loss_and_tokenizer(imported, tmp_path):
    words = "zero one two three four five six seven eight nine".split()
    texts = [" ".join((a, b, c)) for a in words for b in words for c in words[:3]]
    for language, end in (("en", ""), ("de", " ten")):
        (tmp_path / f"own.{language}").write_text("".join(f"{x}{end}\n" for x in texts))
    succeeds("init", "own.en", "own.de", "--from", "imported", "--output", "own.yaml")
    settings = ["model.dropout_rate=0", "evaluation.average_last=1", "training.warmup_steps=1"]
    settings += ["training.early_stopping_patience=null", "training.length_multiple=32"]
    settings += ["training.steps=1", "training.checkpoint_every=1"]
    settings += ["training.peak_learning_rate=1e-12"]
    train(first := Run.create("first", load_recipe("own.yaml", settings)))
    assert first.tokenizer().fingerprint == imported.tokenizer().fingerprint
    pairs = (x.read_text().splitlines() for x in first.text.files("validation"))
    scores = Scorer(open_model(imported), imported.tokenizer()).score(*pairs)
    loss = -sum(x.log_probability for x in scores) / sum(x.length for x in scores)
    ours = logged_scalars(first.directory / "logs", "validation/loss")["validation/loss"][1]
    assert abs(ours - loss) < 1e-6  # about two steps of float32


def test_adapters_are_merged_in_the_export(folder, tmp_path):
    run = import_run(folder, tmp_path / "run")
    model = open_model(run)
    model.decoder.enable_lora(2)
    for layer in model.decoder._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    model.save(run.model_path)
    search = BEAM.replace(length_penalty_form="power")
    options = ExportOptions(format="hugging_face", search=search, output=tmp_path / "x")
    assert "100.0%" in export_run(run, options).comparison


def test_a_prefix_begins_every_source(folder, tmp_path):
    succeeds("import", folder, tmp_path / "run", "--source-prefix", "▁a", "--target-language", "pt")
    run = Run.open(tmp_path / "run")
    tokenizer = run.tokenizer()
    first, *others = tokenizer.frame_source(tokenizer.encode_source(["dog"])[0])
    assert tokenizer.source_pieces[first] == "▁a" and others[-1] == tokenizer.eos_id
    assert run.recipe.data.target_language == "pt"
    assert "prefix must be pieces" in fails(
        "import", folder, tmp_path / "other", "--source-prefix", ">>por<<"
    )


def test_a_preset_is_a_model_of_another_toolkit_or_a_run(folder, imported):
    preset = open_preset(folder)
    assert preset.options == Translator.from_run(imported).options
    assert preset.translate(["a"]) == open_preset("imported").translate(["a"])


def test_a_model_of_the_hub_is_downloaded_once_and_no_other_backend_imported(folder, tmp_path):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is an optional dependency")
    code = (
        "import sys; from keras_transformer import UserError, import_run\n"
        "for name, run in zip(['right', 'right', 'none', 'denied'], '1234'):\n"
        "    try: import_run(f'hf://stand-in/{name}', run)\n"
        "    except UserError as error: print(error)\n"
        "    print(run)\n"
        "print([x for x in ('tensorflow', 'torch') if x in sys.modules])"
    )
    with local_server() as server:
        server.answers = HubAnswers()
        for name, file in itertools.product(("right", "denied"), folder.iterdir()):
            path = f"/stand-in/{name}/resolve/main/{file.name}"
            server.answers[path] = hub_answer(file.read_bytes())
        # It is missing, although the hub's code for that is missing, too.
        server.answers["/stand-in/right/resolve/main/target_vocab.json"] = answer(b"", 404)
        server.answers["/stand-in/denied/resolve/main/generation_config.json"] = answer(b"", 403)
        environment = {"HF_ENDPOINT": server.url, "KERAS_HOME": str(tmp_path / "home")}
        environment["KERAS_BACKEND"] = "jax"
        lines = run_python(code, cwd=tmp_path, **environment).splitlines()
        paths = [path for path, _ in server.requests if "right" in path]
    assert lines[:2] == ["1", "2"] and "stand-in/none" in lines[2] and lines[-1] == "[]"
    assert "does not tell whether it has generation_config.json" in lines[4]
    assert sum("model.safetensors" in x for x in paths) == 2  # HEAD and GET
    of_nllb = ("sentencepiece.bpe.model", "tokenizer.json")
    assert all(any(x.endswith(f"/{name}") for x in paths) for name in of_nllb)
    assert not [run for run in "34" if (tmp_path / run).exists()]
    origin = json.loads((tmp_path / "1" / "origin.json").read_text())
    assert origin["revision"] == "0" * 40 and origin["licence"] == "cc-by-4.0"


class HubAnswers(dict):
    def get(self, path, default):
        return super().get(path, answer(b"", 404, X_Error_Code="EntryNotFound"))


def hub_answer(body):
    headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X_Repo_Commit": "0" * 40}
    return answer(body, **headers)


def change_config(name="config.json", **changes):
    def change(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def remove(name):
    return lambda folder: (folder / name).unlink()


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def rename_bias(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"layers.0.fc1.bias", b"layers.0.fcX.bias"))


def thin(folder):
    """Sizes of a model of gigabytes, of which the file has one kernel."""
    path, width = folder / "model.safetensors", 120_000
    weights = {name: np.array(x) for name, x in read_safetensors(path).items()}
    for name in [x for x in weights if "fc1.weight" in x]:
        weights[name] = np.zeros((1, width), "f4")
    save_file(weights, path)
    change_config(d_model=width, d_ff=1, encoder_ffn_dim=1)(folder)


def make_pipe(folder):
    (folder / "vocab.json").unlink()
    os.mkfifo(folder / "vocab.json")


def other_pieces(folder):
    texts = [f"{x}qx {x}zy {x}{x}" for x in "uvwxyz"]
    model = Tokenizer.train(texts, 30).source_model
    (folder / "source.spm").write_bytes(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove("config.json"), "a folder needs config.json"),
        (remove("model.safetensors"), "there is neither model.safetensors nor pytorch_model.bin"),
        (remove("vocab.json"), "vocab.json cannot be imported: FileNotFoundError"),
        (change_config(model_type="t5"), "Received: t5, which has RMS norms"),
        (change_config(scale_embedding=False), "it must scale embeddings"),
        (
            change_config(activation_function="mish"),
            "cannot be imported: missing or not supported: 'mish'",
        ),
        (change_config(d_model=10**9), "those of settings {'d_model': 1000000000"),
        (
            change_config(encoder_attention_heads=1),
            "the same heads. Received: scale_embedding=True, heads (1, 3)",
        ),
        (
            change_config("generation_config.json", eos_token_id=10**6),
            "must be integers from 0 to 59. Received: values from 0 to 1000000",
        ),
        (rename_bias, "does not have the weights ['model.decoder.layers.0.fcX.bias'"),
        (
            write("config.json", b"[" * 10_000),
            "config.json cannot be imported: the JSON is nested too deeply",
        ),
        (write("source.spm", b"nothing"), "cannot be imported: DecodeError"),
        (other_pieces, "the vocabulary must have most of the pieces"),
        (change_config("tokenizer_config.json", target_lang="deu+eng+fra"), "--target-language"),
        (
            change_config("tokenizer_config.json", source_lang="fi_nb_no_nn_ru_sv_en"),
            "is not a language code",
        ),
        (thin, "the model is larger than the file of its weights"),
        (make_pipe, "vocab.json must be a regular file"),
        (write("vocab.json", b" " * 2**25), "at most 16,777,216 bytes"),
    ],
)
def test_what_cannot_be_imported_is_one_line_and_nothing_written(change, message, folder, tmp_path):
    change(folder)
    assert message in fails("import", folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("card", "config", "licence"),
    [
        ('---\nlicense: "cc-by-nc-4.0"\n---', {"license": "mit"}, "cc-by-nc-4.0"),
        ("---\nlanguage: en\n---", {"license": "cc-by-nc-4.0"}, "cc-by-nc-4.0"),
        ("license is a word here", {}, None),
    ],
)
def test_the_licence_is_that_of_the_card_or_of_the_configuration(
    card, config, licence, folder, tmp_path
):
    (folder / "README.md").write_text(card)
    change_config(**config)(folder)
    shown = succeeds("import", folder, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "origin.json").read_text())["licence"] == licence
    assert ("The licence" in shown) == bool(licence)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_shards_are_one_model(is_damaged, folder, tmp_path):
    expected = import_run(folder, tmp_path / "whole")
    weights = {x: np.array(y) for x, y in read_safetensors(folder / "model.safetensors").items()}
    names = {x: f"model-{number % 2}.safetensors" for number, x in enumerate(weights)}
    for file in {*names.values()}:
        kept = {x: y for x, y in weights.items() if names[x] == file}
        save_file({**kept, **(weights if is_damaged else {})}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    if is_damaged:
        assert "twice" in fails("import", folder, tmp_path / "run")
    else:
        assert_same_weights(expected, import_run(folder, tmp_path / "run"))
