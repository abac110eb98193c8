"""The formats of exports, and the options of `export_run`."""

from pathlib import Path
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.runs.run import Checkpoint

Format = Literal["saved_model", "ctranslate2", "onnx", "hugging_face", "run"]
RunWeights = Literal["float32", "float16"]
OnnxWeights = Literal["float32", "int8"]

# The types of weights of each format, the search options, and the packages that it needs.
QUANTIZATIONS: dict[str, tuple[str, ...]] = {
    "saved_model": ("float32",),
    "ctranslate2": (
        *("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16"),
        *("int16", "float16", "bfloat16"),
    ),
    "onnx": get_args(OnnxWeights),
    "hugging_face": ("float32",),
    "run": get_args(RunWeights),
}
SEARCH_OPTIONS = {
    "saved_model": tuple(SearchOptions.model_fields),
    "onnx": ("beam_size", "length_penalty", "max_length"),
    "hugging_face": ("beam_size", "length_penalty", "length_penalty_form"),
}
PACKAGES = {
    "saved_model": ("tensorflow", "tensorflow_text"),
    "ctranslate2": ("ctranslate2",),
    "onnx": ("onnx", "onnxruntime"),
}


class ExportOptions(BaseModel):
    """The options of `export_run`.

    Example:

    >>> ExportOptions(format="onnx", quantization="int8", search=SearchOptions(beam_size=5))

    Args:
        format: `"saved_model"`, `"ctranslate2"`, `"onnx"`, `"hugging_face"` or `"run"`. See
            `export_saved_model`, `export_ctranslate2`, `export_onnx`, `export_hugging_face` and
            `export_shared_run`.
        output: A new or empty folder. For a SavedModel, the folder that contains all versions of
            the model. Defaults to None, which means `exports/<run>` for a SavedModel. For other
            formats, None means a folder in it, such as `exports/quickstart/onnx-int8`.
        quantization: Type of the weights. A SavedModel has float32 only. Defaults to `"float32"`.
        shortlist: Whether a SavedModel translates with `open_shortlist(run)`. Defaults to False.
        checkpoint: The checkpoint to export, see `open_model`. Defaults to None, which means the
            finished model.
        search: The search options of a SavedModel, except `n_best`, which each request sets. ONNX
            has only `beam_size`, `length_penalty` and `max_length`, Hugging Face only `beam_size`
            and `length_penalty`, of the form `"power"`. The other formats have no search options.
            Defaults to None, which means the search options of the recipe.

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
        if self.shortlist and self.format != "saved_model":
            raise ValueError(f"only saved_model supports a shortlist. Received: {self.format}")
        if self.search is not None and self.format not in SEARCH_OPTIONS:
            raise ValueError(
                f"only {', '.join(SEARCH_OPTIONS)} support search options. "
                f"Received: format={self.format!r}"
            )
        return self


def check_weights(format: Format, quantization: str) -> None:
    """Raises ValueError if a format does not support a type of weights."""
    if quantization not in (supported := QUANTIZATIONS[format]):
        raise ValueError(
            f"for the format {format}, `quantization` must be one of {', '.join(supported)}. "
            f"Received: quantization={quantization!r}"
        )
