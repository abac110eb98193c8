"""Models of other toolkits become runs that compute the same, or one line says why they cannot."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.command_line import fails, run_python, succeeds
from support.contract import to_numpy
from support.foreign_models import ANY, hugging_face_folder
from support.local_server import answer, local_server

from keras_transformer import (
    Run,
    Scorer,
    SearchOptions,
    Translator,
    UserError,
    import_run,
    load_recipe,
    open_model,
    train,
)
from keras_transformer.data.vocabulary import pieces_of
from keras_transformer.exchange.hugging_face import read_hugging_face
from keras_transformer.exchange.model_files import read_marian_bin, read_npz
from keras_transformer.export import ExportOptions, export_run

BEAM = SearchOptions(beam_size=4, length_penalty=0)


@pytest.fixture(scope="session")
def pretrained(data_dir):
    if not (folder := data_dir / "pretrained").is_dir():
        pytest.skip("KERAS_TRANSFORMER_DATA has no pretrained models")
    return folder


@pytest.fixture
def folder(tmp_path):
    return hugging_face_folder(tmp_path / "opus-mt-en-de")


@pytest.mark.parametrize(
    "name", ["post_relu_joint", "post_swish_joint", "pre_gelu_two", "post_untied"]
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


@pytest.mark.once
def test_a_folder_of_opus_has_a_vocabulary_of_lines_and_two_tokenizers(pretrained, tmp_path):
    marian, folder = pretrained / "marian", tmp_path / "opus"
    folder.mkdir()
    shutil.copy(marian / "post_relu_joint" / "model.npz", folder / "best.npz")
    for name in ("source.spm", "target.spm"):
        shutil.copy(marian / "joint300.spm", folder / name)
    pieces = enumerate(pieces_of((marian / "joint300.spm").read_bytes()))
    lines = [f"{json.dumps(piece, ensure_ascii=False)}: {id}" for id, piece in pieces]
    (folder / "opus.vocab.yml").write_text("\n".join(lines) + "\n", "utf-8")
    settings = "models: [best.npz]\nvocabs: [opus.vocab.yml, opus.vocab.yml]\nbeam-size: 6\n"
    (folder / "decoder.yml").write_text(f"{settings}normalize: 1\n")
    run = import_run(folder, tmp_path / "run")
    plain = import_run(marian / "post_relu_joint", tmp_path / "plain")
    assert run.tokenizer().fingerprint == plain.tokenizer().fingerprint
    assert (run.recipe.evaluation.beam_size, run.recipe.evaluation.length_penalty) == (6, 1)


@pytest.mark.once
def test_both_files_of_marian_have_the_same_weights(pretrained):
    student = pretrained / "marian" / "student_ssru"
    binary, npz = read_marian_bin(student / "model.float32.bin"), read_npz(student / "model.npz")
    assert binary.keys() == npz.keys()
    for name in npz.keys() - {"special:model.yml"}:
        np.testing.assert_array_equal(binary[name], npz[name])


@pytest.mark.parametrize("name", ["v1/aren-transliteration", "v2/aren-transliteration"])
def test_translations_equal_those_of_ctranslate2(name, pretrained, tmp_path):
    witness = (pretrained / "ctranslate2" / "witness_aren_beam4.tsv").read_text("utf-8")
    words, expected, scores = zip(*(x.split("\t") for x in witness.splitlines()), strict=True)
    run = import_run(pretrained / "ctranslate2" / name, tmp_path / "run")
    found = Translator.from_run(run, BEAM).translate_nbest([" ".join(word) for word in words])
    assert [x[0].text.replace(" ", "") for x in found] == [*expected]
    np.testing.assert_allclose([x[0].score for x in found], [*map(float, scores)], atol=1e-4)


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "bits"),
    [("v1/aren-transliteration-i16", 16), ("v2/aren-transliteration-i16", 16)]
    + [("v2/aren-transliteration-i8", 8)],
)
def test_rounded_weights_are_told(name, bits, pretrained, tmp_path):
    run = import_run(pretrained / "ctranslate2" / name, tmp_path / "run")
    (note,) = json.loads(run.origin_path.read_text())["notes"]
    assert f"int{bits}" in note


# SHA-256 of the ids that MarianTokenizer of transformers 5.24 gives to 2,000 sentences. All of its
# translations back to text are the sentences, but for those with unk.
OPUS_IDS = {
    ("en-mg", "source"): "bb43660c0c7547b464e9fa34088542238ae22864af30139307291e2e4fa69c92",
    ("en-mg", "target"): "3a1acee5f4d1650bef3580a2b4e2274a9a50bd4030eb8325dc60f8135f75cc4a",
    ("tc-big-fr-en", "source"): "514a584ce37391cf5fd77f1ec8e5ca08e970902a31f4e4f66264f0a5281983ee",
    ("tc-big-fr-en", "target"): "29fab898d182940365efd078b9baaaed82a842bc51d4fa27dff43ec365314606",
}


@pytest.mark.once
@pytest.mark.parametrize(("name", "side"), OPUS_IDS)
def test_ids_equal_those_of_opus_tokenizers(name, side, pretrained, tmp_path):
    model = opus_tokenizer(pretrained / "opus_tokenizers" / name, tmp_path / name)
    number = ("source", "target").index(side)
    ids, tokenizer = model._new_ids(), model._tokenizer(*model._new_ids())
    texts = opus_texts()
    rows = (tokenizer.encode_source, tokenizer.encode_target)[number](texts)
    old = [ids[number].rows[row].tolist() for row in rows]
    assert hashlib.sha256(json.dumps(old).encode()).hexdigest() == OPUS_IDS[name, side]
    if side == "target":
        decoded = tokenizer.decode_target(rows)
        has_unk = [tokenizer.unk_id in row for row in rows]
        assert all(x == y or z for x, y, z in zip(decoded, texts, has_unk, strict=True))


def opus_tokenizer(source, folder):
    """What is read of a folder that lacks the weights but for the number of pieces."""
    shutil.copytree(source, folder)
    rows = len(json.loads((folder / "vocab.json").read_text("utf-8")))
    weights = {"model.shared.weight": np.zeros((rows, 1), "float32")}
    save_file(weights, folder / "model.safetensors")
    return read_hugging_face(folder)


def opus_texts():
    text = Run.open("tatoeba_en_de").directory / "text"
    files = [text / f"validation.{side}" for side in ("en", "de")]
    return [x for file in files for x in file.read_text("utf-8").splitlines()]


def test_an_imported_run_is_exported_and_trained_on(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeeds("import", folder, "imported")
    run = Run.open("imported")
    assert run.recipe.data.source_language, run.recipe.data.target_language == ("en", "de")
    formats = {"run": True, "hugging_face": True, "ctranslate2": ANY("ctranslate2")}
    for format in [name for name, is_installed in formats.items() if is_installed]:
        search = BEAM if format == "hugging_face" else None
        found = export_run(run, ExportOptions(format=format, search=search))
        assert "100.0%" in found.comparison
    if formats["ctranslate2"]:  # version 6
        again = import_run("exports/imported/ctranslate2", "again")
        texts = ["a dog runs", "the man is in the park", "two men"]
        translations = (Translator.from_run(x, BEAM).translate(texts) for x in (run, again))
        assert next(translations) == next(translations)
    back = import_run("exports/imported/hugging_face", "back")
    for one, other in zip(open_model(run).weights, open_model(back).weights, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
    words = "zero one two three four five six seven eight nine".split()
    texts = [" ".join((a, b, c)) for a in words for b in words for c in words[:3]]
    for language, end in (("en", ""), ("de", " ten")):
        (tmp_path / f"own.{language}").write_text("".join(f"{x}{end}\n" for x in texts))
    succeeds("init", "own.en", "own.de", "--from", "imported", "--output", "own.yaml")
    recipe = load_recipe("own.yaml", ["training.steps=2", "training.checkpoint_every=1"])
    assert recipe.tokenizer.vocabulary_size == run.recipe.tokenizer.vocabulary_size
    tuned = Run.create("tuned", recipe)
    train(tuned)
    assert tuned.tokenizer().fingerprint == run.tokenizer().fingerprint
    assert "names no text" in fails("evaluate", "imported")
    with pytest.raises(UserError, match="give files"):
        load_recipe("imported")


@pytest.mark.once
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


@pytest.mark.once
def test_a_preset_is_imported_once(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    first = Translator.from_preset(folder, BEAM)
    shutil.rmtree(folder / "nothing", ignore_errors=True)
    (made,) = (tmp_path / "home").glob("keras_transformer/imported/*/*/model.keras")
    time = made.stat().st_mtime_ns
    assert Translator.from_preset(folder, BEAM).translate(["a dog"]) == first.translate(["a dog"])
    assert made.stat().st_mtime_ns == time


@pytest.mark.once
def test_a_model_of_the_hub_is_downloaded_once(folder, tmp_path):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is an optional dependency")
    code = (
        "from keras_transformer import UserError\n"
        "from keras_transformer import import_run\n"
        "for run, name in dict(one='opus-mt-en-de', two='opus-mt-en-de', three='none').items():\n"
        "    try: import_run(f'hf://stand-in/{name}', run)\n"
        "    except UserError as error: print(error)\n"
        "    print(run)"
    )
    with local_server() as server:
        server.answers = HubAnswers()
        for file in folder.iterdir():
            server.answers[f"/stand-in/opus-mt-en-de/resolve/main/{file.name}"] = hub_answer(
                file.read_bytes()
            )
        environment = {"HF_ENDPOINT": server.url, "KERAS_HOME": str(tmp_path / "home")}
        lines = run_python(code, cwd=tmp_path, **environment).splitlines()
        paths = [path for path, _ in server.requests if "opus" in path]
    assert lines[:2] == ["one", "two"] and "none" in lines[2] and lines[3] == "three"
    assert (
        sum("model.safetensors" in x for x in paths) == 2
    )  # HEAD and GET and not (tmp_path / "three").exists()
    origin = json.loads((tmp_path / "one" / "origin.json").read_text())
    assert origin["revision"] == "0" * 40 and origin["licence"] == "cc-by-4.0"


class HubAnswers(dict):
    def get(self, path, default):
        return super().get(path, answer(b"", 404, X_Error_Code="EntryNotFound"))


def hub_answer(body):
    headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X_Repo_Commit": "0" * 40}
    return answer(body, **headers)


@pytest.mark.once
def test_nothing_of_other_backends_is_imported(folder, tmp_path):
    code = (
        "import sys; from keras_transformer import import_run\n"
        f"import_run({str(folder)!r}, {str(tmp_path / 'run')!r})\n"
        "print([x for x in ('tensorflow', 'torch') if x in sys.modules])"
    )
    assert run_python(code, KERAS_BACKEND="jax") == "[]"


def change_config(name="config.json", **changes):
    def change(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def remove(name):
    return lambda folder: (folder / name).unlink()


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def rename_weight(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"layers.0.fc1.bias", b"layers.0.fcX.bias"))


def spoil_weight(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + np.float32("nan").tobytes())


def only_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


HUGE = json.dumps({"w": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}).encode()


@pytest.mark.once
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove("config.json"), "is no model that can be imported"),
        (remove("model.safetensors"), "has neither model.safetensors nor pytorch_model.bin"),
        (remove("vocab.json"), "vocab.json is damaged"),
        (change_config(model_type="t5"), "only those of the type marian"),
        (change_config(scale_embedding=False), "scale_embedding must be true"),
        (change_config(activation_function="mish"), "is damaged, or not what its name says"),
        (change_config(d_model=10**9), "must have the sizes 1000000000"),
        (change_config(encoder_layers=10**9), "has no weight model.encoder.layers.2"),
        (
            change_config(encoder_layers=1),
            "weights that a Transformer does not have: model.encoder",
        ),
        (change_config("generation_config.json", eos_token_id=10**6), "must be below"),
        (rename_weight, "does not have: model.decoder.layers.0.fcX.bias"),
        (spoil_weight, "not finite"),
        (truncate, "not fully covered"),
        (write("model.safetensors", b"\xff" * 8), "header too large"),
        (
            write("model.safetensors", len(HUGE).to_bytes(8, "little") + HUGE),
            "model.safetensors is damaged",
        ),
        (write("config.json", b"[" * 10_000), "nested too deeply"),
        (write("source.spm", b"nothing"), "not a complete SentencePiece model"),
        (only_pickle, "is no file of weights only" if ANY("torch") else "is a pickle"),
    ],
)
def test_what_cannot_be_imported_is_one_line_and_nothing_written(change, message, folder, tmp_path):
    change(folder)
    assert message in fails("import", folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.once
def test_students_of_marian_are_refused(pretrained, tmp_path):
    student = pretrained / "marian" / "student_ssru"
    assert "self-attention. Received: rnn" in fails("import", student, tmp_path / "run")
