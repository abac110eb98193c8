"""The packages that each export format needs."""

from importlib.util import find_spec

# The extra of this package that installs the packages, and the packages.
_NEEDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "saved_model": ("tensorflow", ("tensorflow", "tensorflow_text")),
    "ctranslate2": ("ctranslate2", ("ctranslate2",)),
    "onnx": ("onnx", ("onnx", "onnxruntime")),
    "run": ("", ()),
}


def missing_packages(format: str) -> list[str]:
    """Returns the packages that the export format needs and that are not installed."""
    _, packages = _NEEDED[format]
    return [name for name in packages if not find_spec(name)]


def check_installed(format: str) -> None:
    """Raises ImportError if a package that the export format needs is not installed."""
    extra, _ = _NEEDED[format]
    if missing := missing_packages(format):
        raise ImportError(
            f"the format {format} needs {' and '.join(missing)}: "
            f"pip install 'keras3-transformer[{extra}]'"
        )
