"""`keras-transformer export`: from a run folder to each format, or one clear line."""

import re
import resource
import sys

import pytest
from support.command_line import fails, invoke, succeeds

from keras_transformer.errors import UserError
from keras_transformer.formats.engines import open_translator
from keras_transformer.models import ARCHITECTURES, Transformer
from keras_transformer.runs.run import Run
from keras_transformer.training.checkpoint import save_checkpoint
from keras_transformer.translation.open_run import open_model

pytest.importorskip("onnx", reason="onnx is an optional dependency")
pytest.importorskip("onnxruntime", reason="onnxruntime is an optional dependency")
ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")

from keras_transformer.formats.onnx_program import StandaloneTranslator  # noqa: E402
from keras_transformer.formats.saved_model import run_signatures  # noqa: E402


def test_exports_go_to_a_folder_of_the_run_and_are_compared(run, tmp_path):
    equal = "100.0% of 32 translations equal the model's; their scores "
    assert succeeds("export", run, "--format", "onnx").startswith(f"exports/run/onnx: {equal}")
    translator = StandaloneTranslator("exports/run/onnx")
    assert (translator.beam_size, translator.length_penalty) == (4, 0.6)  # the recipe's
    assert succeeds("export", run, "--format", "ctranslate2").startswith(
        f"exports/run/ctranslate2: {equal}"
    )
    assert ctranslate2.contains_model("exports/run/ctranslate2")
    path = run / "recipe.yaml"
    path.write_text(path.read_text().replace("evaluation:", "evaluation:\n  max_length: 2"))
    options = ("--beam-size", 2, "--length-penalty", 1, "--quantization", "int8")
    assert succeeds("export", run, "--format", "onnx", *options).startswith(
        "exports/run/onnx-int8: "
    )
    found = StandaloneTranslator("exports/run/onnx-int8")
    assert (found.beam_size, found.length_penalty, found.max_length) == (2, 1.0, 2)


@pytest.mark.slow
def test_saved_model_is_the_next_version(run):
    for version in (1, 2):
        shown = succeeds("export", run, "--format", "saved_model", "--beam-size", 2)
        assert shown.startswith(f"exports/run/{version}: ")
        assert re.search("needs a server that reads GraphDef version [0-9]+ or newer", shown)
    opened, texts = Run.open(run), ["a b c", "f e"]
    (found,) = run_signatures("exports/run/2", [("serving_default", {"text": texts})])
    options = opened.recipe.evaluation.search_options(beam_size=2)
    assert found["translation"] == open_translator(opened, options).translate(texts)


@pytest.mark.parametrize("format", ["onnx", "web", "ctranslate2"])
def test_formats_for_transformers_refuse_other_models_before_they_load_them(
    run, format, monkeypatch
):
    monkeypatch.setitem(ARCHITECTURES, "own", Transformer)
    recipe = (run / "recipe.yaml").read_text()
    model = recipe[recipe.index("model:") : recipe.index("training:")]
    other = "model: {architecture: own, preset: tiny}\n"
    (run / "recipe.yaml").write_text(recipe.replace(model, other))
    (run / "model.keras").write_text("not read")
    line = fails("export", run, "--format", format)
    assert line.startswith(f"The format {format} supports only the architecture transformer")
    with pytest.raises(UserError, match="The engine ctranslate2 supports only .*=own"):
        open_translator(Run.open(run), engine="ctranslate2")


def test_onnx_refuses_search_options_of_the_recipe_that_it_would_lose(run):
    path = run / "recipe.yaml"
    text = path.read_text().replace("min_length: 1", "min_length: 14")
    text = text.replace("repetition_penalty: 1.0", "repetition_penalty: 2.0")
    path.write_text(text)
    error = fails("export", run, "--format", "onnx")
    ways = "give --min-length 1, give --repetition-penalty 1.0"
    assert f"change those of the recipe: {ways}. " in error
    assert error.endswith("Received: min_length=14, repetition_penalty=2.0")
    defaults = ("--min-length", "1", "--repetition-penalty", "1")
    succeeds("export", run, "--format", "onnx", *defaults)


@pytest.mark.parametrize("format", ["onnx", pytest.param("saved_model", marks=pytest.mark.slow)])
def test_a_checkpoint_is_exported(run, format):
    model = open_model(Run.open(run))
    model.compile("sgd")
    save_checkpoint(run / "checkpoints", model, step=2, keep=1)
    (run / "model.keras").unlink()
    assert "a step (2)" in fails("export", run, "--format", format)
    assert "no checkpoint 3" in fails("export", run, "--format", format, "--checkpoint", 3)
    assert "100.0%" in succeeds("export", run, "--format", format, "--checkpoint", "last")


@pytest.mark.parametrize(
    "format, package, extra",
    [
        ("saved_model", "tensorflow_text", "tensorflow"),
        ("ctranslate2", "ctranslate2", "ctranslate2"),
        ("onnx", "onnxruntime", "onnx"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(run, format, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    error = fails("export", run, "--format", format)
    assert re.search(rf"needs .*{package}.*keras3-transformer\[{extra}\]", error)


def test_errors_are_one_line_and_leave_nothing(run, tmp_path):
    assert "Missing option '--format'" in invoke("export", run).stderr
    error = fails("export", tmp_path, "--format", "onnx")
    assert error.startswith(f"{tmp_path} is no run folder: it holds no recipe.yaml")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        error = fails("export", run, "--format", "onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.startswith("no space left on the disk")
    (run / "model.keras").unlink()
    assert f"keras-transformer train {run} --resume" in fails("export", run, "--format", "onnx")
    assert not list((tmp_path / "exports").rglob("*.*"))
