"""`keras-transformer export`."""

import pytest
from support.command_line import fails, succeeds
from support.contract import assert_same_arrays

from keras_transformer.runs.run import Run
from keras_transformer.translation.open_run import open_model


def test_a_run_is_exported_in_half_precision(run, tmp_path):
    options = ("--format", "run", "--quantization", "float16", "--output", tmp_path / "shared")
    shown = succeeds("export", run, *options)
    assert shown.startswith(f"{tmp_path / 'shared'}: ")
    first, second = open_model(Run.open(run)), open_model(Run.open(tmp_path / "shared"))
    assert_same_arrays(second.get_weights(), first.get_weights(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "ctranslate2 --beam-size 3",
            "search options: only for saved_model, onnx, web, hugging_face",
        ),
        ("run --quantization int8", "must be one of float32, float16. Received: "),
        ("saved_model --quantization int8", "must be one of float32. Received"),
        ("onnx --shortlist", "a shortlist: only for saved_model"),
        ("onnx --coverage-penalty 1", "coverage_penalty"),
        ("onnx --output .", ". is not empty"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_model_is_loaded(
    run, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("keras_transformer.runs.loading.load_model", pytest.fail)
    assert message in fails("export", run, "--format", *options.split())
