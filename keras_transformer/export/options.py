"""Defines the formats of exports, with the packages and the types of weights of each format."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.runs.run import Checkpoint

Format = Literal["saved_model", "ctranslate2", "onnx", "run"]
# The types of weights of the formats run and onnx.
RunWeights = Literal["float32", "float16"]
OnnxWeights = Literal["float32", "int8"]

_CTRANSLATE2_INTEGERS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16")


class Support(NamedTuple):
    """What a format supports, and which packages it needs."""

    quantizations: tuple[str, ...]  # types of weights
    search: tuple[str, ...] = ()  # search options
    has_shortlist: bool = False
    only_transformer: bool = False  # whether it lacks the other architectures
    extra: str = ""  # the extra of this package that installs `packages`
    packages: tuple[str, ...] = ()


FORMATS: dict[str, Support] = {
    "saved_model": Support(
        quantizations=("float32",),
        search=tuple(SearchOptions.model_fields),
        has_shortlist=True,
        extra="tensorflow",
        packages=("tensorflow", "tensorflow_text"),
    ),
    "ctranslate2": Support(
        quantizations=("float32", *_CTRANSLATE2_INTEGERS, "float16", "bfloat16"),
        only_transformer=True,
        extra="ctranslate2",
        packages=("ctranslate2",),
    ),
    "onnx": Support(
        quantizations=get_args(OnnxWeights),
        search=("beam_size", "length_penalty", "max_length"),
        only_transformer=True,
        extra="onnx",
        packages=("onnx", "onnxruntime"),
    ),
    "run": Support(quantizations=get_args(RunWeights)),
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
        for given, what, attribute in (
            (self.shortlist, "a shortlist", "has_shortlist"),
            (self.search is not None, "search options", "search"),
        ):
            formats = [name for name, support in FORMATS.items() if getattr(support, attribute)]
            if given and self.format not in formats:
                raise ValueError(
                    f"the format {self.format} does not support {what}. "
                    f"Formats that do: {', '.join(formats)}"
                )
        return self


def check_weights(format: Format, quantization: str) -> None:
    """Raises ValueError if a format does not support a type of weights."""
    if quantization not in (supported := FORMATS[format].quantizations):
        raise ValueError(
            f"for the format {format}, `quantization` must be one of {', '.join(supported)}. "
            f"Received: quantization={quantization!r}"
        )


def check_installed(format: Format) -> None:
    """Raises ImportError if a package that the export format needs is not installed."""
    support = FORMATS[format]
    if missing := [name for name in support.packages if not find_spec(name)]:
        raise ImportError(
            f"the format {format} needs {' and '.join(missing)}: "
            f"pip install 'keras3-transformer[{support.extra}]'"
        )
