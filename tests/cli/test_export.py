"""`keras-transformer export`."""

from pathlib import Path

from support.command_line import fails, succeeds

from keras_transformer.export import export_run


def test_options_reach_the_exporter_and_the_comparison_is_shown(run, monkeypatch):
    seen = {}

    def export(opened, **arguments):
        seen.update(arguments, run=opened.directory)
        return export_run.Exported(Path("there"), "equal")

    monkeypatch.setattr(export_run, "export_run", export)
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
    assert "ctranslate2" in message and "beam_size" in message
