"""Arguments and options that commands share."""

import functools
from collections.abc import Callable, Collection
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem
from click.types import FuncParamType
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from keras_transformer._backend import BACKENDS
from keras_transformer.decoding.options import DecodingOptions, SamplingOptions, SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import recipe_files, shipped_runs

Given = dict[str, Any]


class Options(BaseModel):
    """Base class of the options of a command.

    Each field is an option with the field's name, type and docstring. A tuple is an option that can
    be repeated. The title is the placeholder of the value.
    """

    model_config = ConfigDict(frozen=True, protected_namespaces=(), use_attribute_docstrings=True)


def options_of(
    kind: type[BaseModel], name: str = "options", without: Collection[str] = ()
) -> Callable[..., Any]:
    """Returns a decorator that adds a command-line option for each field of an option class.

    The command gets the options as its argument `name`, an object of the class. Of search options,
    it gets those that the user gave, in a dict: the recipe provides the others, as the help says.
    """
    is_own = issubclass(kind, Options)
    fields = {x: field for x, field in kind.model_fields.items() if x not in without}
    of_recipe = "that of the recipe, else " if issubclass(kind, SearchOptions) else ""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def grouped(**arguments: Any) -> Any:
            values = {x: arguments.pop(x) for x in fields}
            given = {x: value for x, value in values.items() if value is not None}
            arguments[name] = checked(kind, **given) if is_own else given
            return command(**arguments)

        for field_name, field in reversed(fields.items()):
            text = " ".join((field.description or "").split())
            settings: dict[str, Any] = {}
            if is_own:
                settings |= {"metavar": field.title, "is_flag": field.annotation is bool}
                settings |= {"multiple": get_origin(field.annotation) is tuple}
                optional = {"default": field.default or None}  # To Click, None is a default, too.
                settings |= {"required": True} if field.is_required() else optional
            elif field.default is not None:
                text += f" Default: {field.default}."
            text = text.replace("Default: ", f"Default: {of_recipe}")
            flag = f"--{field_name.strip('_').replace('_', '-')}"
            grouped = click.option(flag, field_name, type=_type(field), help=text, **settings)(
                grouped
            )
        return grouped

    return decorate


def _type(field: FieldInfo) -> click.ParamType:
    for metadata in field.metadata:
        if isinstance(metadata, click.ParamType):
            return metadata
    kinds = [field.annotation, *get_args(field.annotation)]
    for kind in kinds:
        if get_origin(kind) is Literal:
            return click.Choice(get_args(kind))
    if Path in kinds:
        return any_path
    if not {int, float} & {*kinds}:
        return click.BOOL if bool in kinds else click.STRING
    limits = [asdict(x) for x in field.metadata if is_dataclass(x) and not isinstance(x, type)]
    bounds = {name: bound for limit in limits for name, bound in limit.items()}
    minimum, maximum = bounds.get("ge", bounds.get("gt")), bounds.get("le")
    range_type = click.FloatRange if float in kinds else click.IntRange
    return range_type(min=minimum, max=maximum, min_open="gt" in bounds)


def flags(names: Collection[str]) -> str:
    """Returns the names of options as on the command line, such as "--top-k, --top-p"."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _complete(names: Callable[[], Collection[str]]) -> Callable[..., Any]:
    """Returns a function that completes files, and the names that a function returns."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
        found = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return [CompletionItem(incomplete, type="file"), *found]  # bash needs this order

    return complete


def shard(value: str) -> tuple[int, int]:
    """Parses the number of a shard and the number of all shards, such as "2/4"."""
    number, _, count = value.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise click.BadParameter(f"{value!r} is no shard, such as 2/4: the second of 4.")
    return int(number), int(count)


def _checkpoint(value: str) -> int | str:
    try:
        return value if value in ("best", "last") else int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not best, last or a step.") from None


existing_file = click.Path(path_type=Path, exists=True, dir_okay=False)
any_path = click.Path(path_type=Path)
ExistingFile = Annotated[Path | None, existing_file]
complete_recipe = _complete(recipe_files)
complete_run = _complete(shipped_runs)
run_argument = click.argument("run", metavar="RUN", type=any_path, shell_complete=complete_run)
recipe_argument = click.argument("recipe", shell_complete=complete_recipe)
backend_option = click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    expose_value=False,  # `keras_transformer_cli` has read it.
    help="Backend of Keras. Default: the environment variable KERAS_BACKEND.",
)


class RecipeOptions(Options):
    """How to change a recipe."""

    set: tuple[str, ...] = Field((), title="KEY=VALUE")
    """Override a setting of the recipe, such as training.steps=500. Repeatable."""


class CheckpointOptions(Options):
    """Which model of a run to use."""

    checkpoint: Annotated[Any, FuncParamType(_checkpoint)] = Field(None, title="best|last|STEP")
    """Use the model of a checkpoint instead of the finished model: the checkpoint with the lowest
    validation loss, the newest checkpoint, or the checkpoint of a step."""


class ShortlistOptions(CheckpointOptions):
    """Which model of a run to use, and how it searches."""

    shortlist: bool = False
    """Translate with the most frequent tokens and the most probable translations of each token of
    the sentence, which is faster. Learned from the training text of RUN the first time."""


class TranslatorOptions(ShortlistOptions):
    """What translates."""

    engine: Literal["keras", "ctranslate2"] = "keras"
    """What translates. ctranslate2 is faster on CPUs and has fewer options. The first time, it
    converts the model of RUN."""
    batch_tokens: int | None = Field(None, ge=1, le=2**31 - 1, title="N")
    """Maximum number of source tokens in a batch, with padding. Smaller batches need less memory.
    Default: 2048."""

    def arguments(self) -> dict[str, Any]:
        """Returns arguments of `open_translator`."""
        named = {"engine": self.engine, "checkpoint": self.checkpoint}
        return {**named, "use_shortlist": self.shortlist, "tokens_per_batch": self.batch_tokens}


search_options = options_of(SearchOptions, "search")
# No `n_best`: `evaluate` scores one translation per sentence; with exports, each request sets it.
best_search_options = options_of(SearchOptions, "search", {"n_best"})
# `num_samples` is the value of --sample or --mbr. --max-length and others are search options.
sampling_options = options_of(
    SamplingOptions, "sampling", {*DecodingOptions.model_fields, "num_samples"}
)


def checked(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Returns `make(...)`. A `ValueError`, which refuses an option, becomes a `UserError`."""
    try:
        return make(*arguments, **options)
    except ValidationError as error:
        messages = (x["msg"].removeprefix("Value error, ") for x in error.errors())
        raise UserError("; ".join(messages)) from None
    except ValueError as error:
        raise UserError(str(error)) from None
