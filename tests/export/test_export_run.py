"""`keras-transformer export`: from a run folder to each format, or one clear line."""

import re
import resource
import shutil
import sys

import pytest
from click.testing import CliRunner
from support.contract import randomize
from support.tiny_run import recipe_for, write_text

from keras_transformer.cli import main
from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.models import Transformer
from keras_transformer.runs.run import Run
from keras_transformer.training.checkpoint import save_checkpoint
from keras_transformer.translation.engines import open_translator
from keras_transformer.translation.open_run import open_model

pytest.importorskip("onnx", reason="onnx is an optional dependency")
pytest.importorskip("onnxruntime", reason="onnxruntime is an optional dependency")
ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")

from keras_transformer.export import OnnxTranslator  # noqa: E402
from keras_transformer.export import ctranslate2 as exporter  # noqa: E402


@pytest.fixture(scope="module")
def new_run(tmp_path_factory):
    """A run with random weights, as training leaves it."""
    folder = tmp_path_factory.mktemp("export")
    write_text(folder)
    run = Run.create(folder / "run", recipe_for(folder))
    pairs = list(run.text.pairs("train"))
    Tokenizer.train(pairs, vocabulary_size=17).save(run.tokenizer_dir)
    model = Transformer(17, num_layers=1, d_model=8, num_heads=2, d_ff=4, max_length=24)
    randomize(model)
    model.save(run.model_path)
    return run.directory


@pytest.fixture
def run(new_run, tmp_path):
    return shutil.copytree(new_run, tmp_path / "run")


def invoke(*arguments):
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


def succeeds(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*arguments):
    """The one line that it says."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    *_, line = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


def test_onnx_is_written_into_the_run(run):
    assert succeeds(run, "--format", "onnx").startswith(
        f"{run / 'onnx'}: 100.0% of 32 translations equal the model's; their scores "
    )
    translator = OnnxTranslator(run / "onnx")
    assert (translator.beam_size, translator.length_penalty) == (4, 0.6)  # the recipe's
    assert len(translator.translate(["a b", "c"])) == 2


@pytest.mark.parametrize("format", ["onnx", "ctranslate2"])
def test_formats_for_transformers_refuse_other_models_before_they_load_them(run, format):
    recipe = (run / "recipe.yaml").read_text()
    model = recipe[recipe.index("model:") : recipe.index("training:")]
    other = "model: {architecture: recurrent, preset: tiny}\n"
    (run / "recipe.yaml").write_text(recipe.replace(model, other))
    (run / "model.keras").write_text("not read")
    line = fails(run, "--format", format)
    assert line.startswith(f"The format {format} supports only the architecture transformer")
    with pytest.raises(UserError, match="The engine ctranslate2 supports only .*=recurrent"):
        open_translator(Run.open(run), engine="ctranslate2")


def test_onnx_takes_type_place_and_search(run, tmp_path):
    options = ("--beam-size", 2, "--length-penalty", 1, "--quantization", "int8")
    shown = succeeds(run, "--format", "onnx", *options, "--output", tmp_path / "here")
    assert shown.startswith(f"{tmp_path / 'here'}: ")
    translator = OnnxTranslator(tmp_path / "here")
    assert (translator.beam_size, translator.length_penalty) == (2, 1.0)
    assert not (run / "onnx").exists()


def test_onnx_takes_the_maximum_length_of_the_recipe(run):
    path = run / "recipe.yaml"
    path.write_text(path.read_text().replace("evaluation:", "evaluation:\n  max_length: 2"))
    succeeds(run, "--format", "onnx")
    translator = OnnxTranslator(run / "onnx")
    assert translator.translate(["a b c d e"]) == open_translator(Run.open(run)).translate(
        ["a b c d e"]
    )
    assert translator.max_length == 2


def test_onnx_refuses_search_options_of_the_recipe_that_it_would_lose(run):
    path = run / "recipe.yaml"
    text = path.read_text().replace("min_length: 1", "min_length: 14")
    text = text.replace("length_penalty_form: wu", "length_penalty_form: power")
    path.write_text(text)
    error = fails(run, "--format", "onnx")
    defaults = "--min-length 1 --length-penalty-form wu"
    assert f"replace those of the recipe: {defaults}. " in error
    assert error.endswith("Received: --min-length 14, --length-penalty-form power")
    assert not (run / "onnx").exists()
    succeeds(run, "--format", "onnx", *defaults.split())
    assert "Received: --coverage-penalty 1.0" in fails(
        *(run, "--format", "onnx", *defaults.split(), "--coverage-penalty", 1)
    )


def test_ctranslate2_is_compared_on_the_validation_text(run):
    shown = succeeds(run, "--format", "ctranslate2")
    assert shown.startswith(f"{run / 'ctranslate2'}: 100.0% of 32 translations equal the model's; ")
    assert ctranslate2.contains_model(str(run / "ctranslate2"))


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["int8", "float16", "bfloat16"])
def test_ctranslate2_in_fewer_bits_says_how_many_translations_stay(run, quantization):
    if quantization == "bfloat16":
        pytest.importorskip("torch", reason="CTranslate2 needs PyTorch to write bfloat16")
    shown = succeeds(run, "--format", "ctranslate2", "--quantization", quantization)
    assert shown.startswith(f"{run / 'ctranslate2'}-{quantization}: ")
    assert "% of 32 translations equal the model's; " in shown


@pytest.mark.slow
def test_ctranslate2_export_that_translates_otherwise_is_not_kept(run, monkeypatch):
    monkeypatch.setattr(exporter, "_encodings", lambda model: 1 - exporter.position_table(model))
    error = fails(run, "--format", "ctranslate2")
    assert error.startswith("the CTranslate2 model translates ")
    assert not (run / "ctranslate2").exists()
    assert not list(run.glob(".partial*"))


@pytest.mark.slow
def test_saved_model_is_the_next_version(run, tmp_path):
    models = tmp_path / "models"
    for version in (1, 2):
        shown = succeeds(run, "--format", "saved_model", "--output", models, "--beam-size", 2)
        assert shown.startswith(f"{models / str(version)}: ")
        assert re.search("needs a server that reads GraphDef version [0-9]+ or newer", shown)
        assert (models / str(version) / "saved_model.pb").is_file()


@pytest.mark.slow
def test_errors_of_the_process_that_writes_the_saved_model_are_one_line(run, tmp_path):
    saved_model = (run, "--format", "saved_model", "--output")
    message = fails(*saved_model, tmp_path / "models", "--beam-size", 17)
    assert message.endswith("must be at most 16. Received: --beam-size 17")
    (tmp_path / "file").touch()
    assert "Not a directory" in fails(*saved_model, tmp_path / "file" / "models")
    assert not (tmp_path / "models").exists()


def test_a_saved_model_is_not_written_into_a_run(run):
    before = sorted(run.rglob("*"))
    error = fails(run, "--format", "saved_model", "--output", run)
    assert error.startswith(f"{run} is a run folder: name another folder")
    assert sorted(run.rglob("*")) == before


def test_run_whose_text_is_gone_is_compared_on_random_sentences(run):
    path = run / "recipe.yaml"
    path.write_text(path.read_text().replace("text.en", "gone.en"))
    assert "100.0%" in succeeds(run, "--format", "onnx")


@pytest.mark.parametrize("format", ["onnx", "ctranslate2"])
def test_a_checkpoint_is_exported(run, format):
    model = open_model(Run.open(run))
    model.compile("sgd", "mse")
    save_checkpoint(run / "checkpoints", model, step=2, keep=1)
    (run / "model.keras").unlink()
    assert "a step (2)" in fails(run, "--format", format)
    assert "no checkpoint 3" in fails(run, "--format", format, "--checkpoint", 3)
    assert str(run / format) in succeeds(run, "--format", format, "--checkpoint", "last")


def test_errors_are_one_line(run, tmp_path, monkeypatch):
    error = fails(tmp_path, "--format", "onnx")
    assert error.startswith(f"{tmp_path} is no run folder: it holds no recipe.yaml")
    assert "'int3'" in fails(run, "--format", "onnx", "--quantization", "int3")
    assert "'int3'" in fails(run, "--format", "ctranslate2", "--quantization", "int3")
    assert fails(run, "--format", "onnx", "--output", run).startswith(f"{run} is not empty")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        assert "pip install 'keras3-transformer[onnx]'" in fails(run, "--format", "onnx")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorflow_text", None)
        error = fails(run, "--format", "saved_model", "--output", run / "saved_model")
        assert error.endswith("pip install 'keras3-transformer[tensorflow]'")
    (run / "model.keras").unlink()
    assert f"Train it first: keras-transformer train {run} --resume" in fails(
        run, "--format", "onnx"
    )
    assert not (run / "onnx").exists() and not (run / "saved_model").exists()


def test_full_disk_leaves_nothing(run):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        error = fails(run, "--format", "onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.startswith("no space left on the disk")
    assert not (run / "onnx").exists()


def test_help_shows_an_example_of_each_format():
    shown = succeeds("--help")
    for format in ("saved_model", "ctranslate2", "onnx"):
        assert f"--format {format}" in shown
