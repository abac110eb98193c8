"""Each export format names the package that it lacks, and the extra that installs it."""

import sys

import pytest

from keras_transformer.export.packages import check_installed


@pytest.mark.parametrize(
    "format, package, extra",
    [
        ("saved_model", "tensorflow_text", "tensorflow"),
        ("ctranslate2", "ctranslate2", "ctranslate2"),
        ("onnx", "onnxruntime", "onnx"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(format, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs .*{package}.*keras3-transformer\[{extra}\]"):
        check_installed(format)


def test_a_small_run_needs_no_package():
    check_installed("run")
