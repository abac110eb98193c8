"""The formats of `export_run`, and its options, which are those of the command line."""

from pathlib import Path
from typing import Literal, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.runs.run import Checkpoint

OnnxWeights = Literal["float32", "int8", "int8_weights"]
WebWeights = Literal["int8_weights", "float32"]
RunWeights = Literal["float32", "float16"]


class _Format(NamedTuple):
    """The types of weights and the search options of a format, and the packages that it needs.

    The first type of weights is the default. The first package names the extra with all of them.
    """

    quantizations: tuple[str, ...] = ("float32",)
    search: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


_OF_CTRANSLATE2 = (
    *("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16"),
    *("int16", "float16", "bfloat16"),
)
_OF_ONNX = {
    "search": ("beam_size", "length_penalty", "length_penalty_form", "max_length"),
    "packages": ("onnx", "onnxruntime"),
}
FORMATS = {
    "saved_model": _Format(
        search=tuple(SearchOptions.model_fields), packages=("tensorflow", "tensorflow_text")
    ),
    "ctranslate2": _Format(_OF_CTRANSLATE2, packages=("ctranslate2",)),
    "onnx": _Format(get_args(OnnxWeights), **_OF_ONNX),
    "web": _Format(get_args(WebWeights), **_OF_ONNX),
    "hugging_face": _Format(search=("beam_size", "length_penalty", "length_penalty_form")),
    "run": _Format(get_args(RunWeights)),
}


def check_quantization(format: str, quantization: str) -> None:
    """Raises ValueError if a format does not support a type of weights."""
    if quantization not in (supported := FORMATS[format].quantizations):
        raise ValueError(
            f"for the format {format}, `quantization` must be one of {', '.join(supported)}. "
            f"Received: quantization={quantization!r}"
        )


class ExportOptions(BaseModel):
    """The options of `export_run`.

    The options of the command line are generated from these fields. For the formats, see
    `export_saved_model`, `export_ctranslate2`, `export_onnx`, `export_web`, `export_hugging_face`
    and `export_shared_run`.

    Example:

    >>> ExportOptions(format="onnx", quantization="int8", search=SearchOptions(beam_size=5))

    Raises:
        ValueError: If the format does not support an option.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    format: Literal["saved_model", "ctranslate2", "onnx", "web", "hugging_face", "run"]
    """Format to write."""
    output: Path | None = None
    """New or empty folder to write. The format saved_model writes a folder for each version in it,
    such as FOLDER/1. Default for saved_model: exports/NAME, where NAME is the name of the run
    folder. Default otherwise: exports/NAME/FORMAT, or exports/NAME/FORMAT-TYPE if the quantization
    TYPE is not the default."""
    quantization: str | None = Field(None, title="TYPE")
    """Data type of the weights. saved_model: float32. ctranslate2: float32, int8, int8_float32,
    int8_float16, int8_bfloat16, int16, float16, bfloat16. onnx: float32, int8, int8_weights. web:
    int8_weights, float32. hugging_face: float32. run: float32, float16. Default: the first one of
    the format."""
    shortlist: bool = False
    """Whether a SavedModel translates with `open_shortlist(run)`."""
    checkpoint: Checkpoint | None = None
    """The checkpoint to export, see `open_model`. Default: the finished model."""
    search: SearchOptions | None = None
    """The default search options of the export, as far as the format has them. Default: those of
    the recipe."""
    onnxruntime_web: Path | None = None
    """Folder of the npm package onnxruntime-web, for the format web. Default: npm fetches it."""

    @property
    def weights(self) -> str:
        """The type of the weights."""
        return self.quantization or FORMATS[self.format].quantizations[0]

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_quantization(self.format, self.weights)
        own = {
            "a shortlist": (self.shortlist, ["saved_model"]),
            "onnxruntime_web": (self.onnxruntime_web, ["web"]),
            "search options": (self.search, [name for name, x in FORMATS.items() if x.search]),
        }
        for name, (given, formats) in own.items():
            if given and self.format not in formats:
                rule = f"{name}: only for {', '.join(formats)}"
                raise ValueError(f"{rule}. Received: format={self.format!r}")
        return self
