"""Makes command-line options from the fields of the option classes in `decoding/options.py`.

If the user omits an option, the value of the option is None here. The recipe or the option class
then provides the value.
"""

from collections.abc import Callable, Collection
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from keras_transformer.cli.common import FiniteRange
from keras_transformer.decoding.options import DecodingOptions, SamplingOptions, SearchOptions
from keras_transformer.errors import UserError


def options_of(kind: type[BaseModel], without: Collection[str] = ()) -> Callable[..., Any]:
    """Returns a decorator that adds a command-line option for each field of an option class.

    For search options, the help text says that the recipe can set the default.
    """
    of_recipe = "that of the recipe, else " if issubclass(kind, SearchOptions) else ""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, field in reversed(kind.model_fields.items()):
            if name not in without:
                command = _option(name, field, of_recipe)(command)
        return command

    return decorate


def _option(name: str, field: FieldInfo, of_recipe: str) -> Callable[..., Any]:
    help_text = field.description or ""
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
    range_type = FiniteRange if annotation is float else click.IntRange
    return range_type(min=minimum, max=maximum, min_open="gt" in bounds)


search_options = options_of(SearchOptions)
# No `n_best`: `evaluate` scores one translation per sentence; with exports, each request sets it.
best_search_options = options_of(SearchOptions, {"n_best"})
# `num_samples` is the value of --sample or --mbr.
sampling_options = options_of(SamplingOptions, {*DecodingOptions.model_fields, "num_samples"})


def take_options(arguments: dict[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """Removes the fields of `kind` from `arguments`, and returns the fields that are not None."""
    taken = {name: arguments.pop(name) for name in kind.model_fields if name in arguments}
    return {name: value for name, value in taken.items() if value is not None}


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
