"""`keras-transformer export`."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import fails, succeeds

from keras_transformer.cli import export as command
from keras_transformer.export.run_export import QUANTIZATIONS, Exported


def test_options_reach_the_exporter_and_the_comparison_is_shown(run, monkeypatch):
    seen = {}

    def record(opened, **arguments):
        seen.update(arguments, run=opened.directory)
        return Exported(Path("there"), "equal")

    monkeypatch.setattr(command, "export_run", record)
    shown = succeeds("export", run, "--format", "onnx", "--output", "there", "--beam-size", 3)
    assert shown == "there: equal\n"
    assert seen == {
        "run": run,
        "format": "onnx",
        "output": Path("there"),
        "quantization": None,
        "shortlist": False,
        "checkpoint": None,
        "beam_size": 3,
    }


def test_an_option_of_another_format_is_refused(run):
    message = fails("export", run, "--format", "ctranslate2", "--beam-size", 3)
    assert message == (
        "the format ctranslate2 does not support --beam-size. Besides --output and --checkpoint, "
        "it supports only --quantization"
    )


def test_the_types_of_weights_are_those_of_the_exporters():
    specs = pytest.importorskip("ctranslate2.specs", reason="ctranslate2 is an optional dependency")

    assert set(QUANTIZATIONS["ctranslate2"]) == set(specs.model_spec.ACCEPTED_MODEL_TYPES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("onnx --quantization int3", "float32, int8. Received: --quantization 'int3'"),
        ("run --quantization int8", "float32, float16. Received: --quantization 'int8'"),
        ("saved_model --quantization int8", "does not support --quantization"),
        ("saved_model --beam-size 17", "at most 16. Received: --beam-size 17"),
        ("onnx --coverage-penalty 1", "Received: --coverage-penalty 1.0"),
        ("onnx --output .", ". is not empty"),
        ("onnx --checkpoint 3", "Steps of the checkpoints: 2, 4"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_loaded(run, options, message):
    code = """
import sys
from keras_transformer.cli import main
try:
    main(sys.argv[1:])
finally:
    assert "keras" not in sys.modules
"""
    command = [sys.executable, "-c", code, "export", run, "--format", *options.split()]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == 2 and message in child.stderr, child.stderr[-2000:]
    assert "Exporting" not in child.stderr
