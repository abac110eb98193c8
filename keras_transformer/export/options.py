"""Defines the formats of exports, with the packages and the types of weights of each format."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.runs.run import Checkpoint

Format = Literal["saved_model", "ctranslate2", "onnx", "run"]
# The types of weights of the formats run and onnx.
RunWeights = Literal["float32", "float16"]
OnnxWeights = Literal["float32", "int8"]

_CTRANSLATE2_INTEGERS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16")
# The types of weights of each format.
QUANTIZATIONS: dict[str, tuple[str, ...]] = {
    "saved_model": ("float32",),
    "ctranslate2": ("float32", *_CTRANSLATE2_INTEGERS, "float16", "bfloat16"),
    "onnx": get_args(OnnxWeights),
    "run": get_args(RunWeights),
}
# The extra of this package that installs the packages of each format, and the packages.
_NEEDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "saved_model": ("tensorflow", ("tensorflow", "tensorflow_text")),
    "ctranslate2": ("ctranslate2", ("ctranslate2",)),
    "onnx": ("onnx", ("onnx", "onnxruntime")),
    "run": ("", ()),
}


class ExportOptions(BaseModel):
    """The options of `export_run`.

    Example:

    >>> ExportOptions(format="onnx", quantization="int8", search=SearchOptions(beam_size=5))

    Args:
        format: `"saved_model"`, `"ctranslate2"`, `"onnx"` or `"run"`. See `export_saved_model`,
            `export_ctranslate2`, `export_onnx` and `export_shared_run`.
        output: A new or empty folder. For a SavedModel, the folder that contains all versions of
            the model. Defaults to None, which means `exports/<run>` for a SavedModel. For other
            formats, None means a folder in it, such as `exports/quickstart/onnx-int8`.
        quantization: Type of the weights. A SavedModel has float32 only. Defaults to `"float32"`.
        shortlist: Whether a SavedModel translates with `open_shortlist(run)`. Defaults to False.
        checkpoint: The checkpoint to export, see `open_model`. Defaults to None, which means the
            finished model.
        search: The search options of a SavedModel, except `n_best`, which each request sets, or of
            an ONNX export, which has only `beam_size`, `length_penalty` and `max_length`. The
            other formats have no search options. Defaults to None, which means the search options
            of the recipe.

    Raises:
        ValueError: If the format does not support an option.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Format
    output: Path | None = None
    quantization: str = "float32"
    shortlist: bool = False
    checkpoint: Checkpoint | None = None
    search: SearchOptions | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_weights(self.format, self.quantization)
        for given, what, formats in (
            (self.shortlist, "a shortlist", ("saved_model",)),
            (self.search is not None, "search options", ("saved_model", "onnx")),
        ):
            if given and self.format not in formats:
                raise ValueError(
                    f"the format {self.format} does not support {what}. "
                    f"Formats that do: {', '.join(formats)}"
                )
        return self


def check_weights(format: Format, quantization: str) -> None:
    """Raises ValueError if a format does not support a type of weights."""
    if quantization not in QUANTIZATIONS[format]:
        raise ValueError(
            f"for the format {format}, `quantization` must be one of "
            f"{', '.join(QUANTIZATIONS[format])}. Received: quantization={quantization!r}"
        )


def check_installed(format: Format) -> None:
    """Raises ImportError if a package that the export format needs is not installed."""
    extra, packages = _NEEDED[format]
    if missing := [name for name in packages if not find_spec(name)]:
        raise ImportError(
            f"the format {format} needs {' and '.join(missing)}: "
            f"pip install 'keras3-transformer[{extra}]'"
        )
