"""Makes command-line options from the fields of the option classes in `decoding/options.py`."""

import functools
from collections.abc import Callable, Collection
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from keras_transformer.decoding.options import DecodingOptions, SamplingOptions, SearchOptions
from keras_transformer.errors import UserError

Given = dict[str, Any]


def options_of(
    kind: type[BaseModel], name: str, without: Collection[str] = ()
) -> Callable[..., Any]:
    """Returns a decorator that adds a command-line option for each field of an option class.

    The command gets the options that the user gave in a dict, its argument `name`. The recipe or
    the option class provides the others. For search options, the help text says so.
    """
    fields = {x: field for x, field in kind.model_fields.items() if x not in without}
    of_recipe = "that of the recipe, else " if issubclass(kind, SearchOptions) else ""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def grouped(**arguments: Any) -> Any:
            values = {x: arguments.pop(x) for x in fields}
            arguments[name] = {x: value for x, value in values.items() if value is not None}
            return command(**arguments)

        for field_name, field in reversed(fields.items()):
            grouped = _option(field_name, field, of_recipe)(grouped)
        return grouped

    return decorate


def _option(name: str, field: FieldInfo, of_recipe: str) -> Callable[..., Any]:
    help_text = " ".join((field.description or "").split())
    if field.default is not None:
        help_text += f" Default: {field.default}."
    help_text = help_text.replace("Default: ", f"Default: {of_recipe}")
    return click.option(f"--{name.replace('_', '-')}", type=_type(field), help=help_text)


def _type(field: FieldInfo) -> click.ParamType:
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    bounds = {
        key: getattr(x, key)
        for x in field.metadata
        for key in ("ge", "gt", "le")
        if hasattr(x, key)
    }
    minimum, maximum = bounds.get("ge", bounds.get("gt")), bounds.get("le")
    range_type = click.FloatRange if annotation is float else click.IntRange
    return range_type(min=minimum, max=maximum, min_open="gt" in bounds)


search_options = options_of(SearchOptions, "search")
# No `n_best`: `evaluate` scores one translation per sentence; with exports, each request sets it.
best_search_options = options_of(SearchOptions, "search", {"n_best"})
# `num_samples` is the value of --sample or --mbr. --max-length and others are search options.
sampling_options = options_of(
    SamplingOptions, "sampling", {*DecodingOptions.model_fields, "num_samples"}
)


def checked(make: Callable[..., Any], **options: Any) -> Any:
    """Returns `make(**options)`, or raises a one-line `UserError` if the options are invalid."""
    try:
        return make(**options)
    except ValidationError as error:
        messages = (x["msg"].removeprefix("Value error, ") for x in error.errors())
        raise UserError("; ".join(messages)) from None


def flags(names: Collection[str]) -> str:
    """Returns the names of options as on the command line, such as "--top-k, --top-p"."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))
