"""The packages that each export format needs."""

from importlib.util import find_spec

# The extra of this package that installs the packages, and the packages.
_NEEDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "saved_model": ("tensorflow", ("tensorflow", "tensorflow_text")),
    "ctranslate2": ("ctranslate2", ("ctranslate2",)),
    "onnx": ("onnx", ("onnx", "onnxruntime")),
    "run": ("", ()),
}


def check_installed(format: str) -> None:
    """Raises ImportError if a package that the export format needs is not installed."""
    extra, packages = _NEEDED[format]
    missing = [name for name in packages if not find_spec(name)]
    if missing:
        raise ImportError(
            f"the format {format} needs {' and '.join(missing)}: "
            f"pip install 'keras3-transformer[{extra}]'"
        )
