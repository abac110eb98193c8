"""Finds recipes, which are YAML files, and reads them."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from keras_transformer.errors import UserError
from keras_transformer.recipe.run_folders import find_run
from keras_transformer.recipe.schema import all_keys
from keras_transformer.recipe.settings import Recipe, TokenizerSettings

_PACKAGE = Path(__file__).parents[1]
SHIPPED_RECIPES = (_PACKAGE / "_recipes", _PACKAGE.parent / "recipes")  # installed, source tree
# Recipes of the package have about 2 KiB. PyYAML takes seconds to parse a file of 256 KiB.
_MOST_BYTES = 256 * 1024


def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads and validates a recipe.

    Args:
        path_or_name: Path of a YAML file, path of a run folder, or the name of a recipe in
            `./recipes` or in the package, such as "quickstart".
        overrides: Settings that replace settings of the file, such as "training.steps=100". The
            values are parsed as YAML.

    Returns:
        The recipe, with defaults for missing keys. With `training.initial_run`, the defaults of the
        section `tokenizer` are the settings of that run, if it exists.

    Raises:
        UserError: If the file does not exist, is larger than 256 KiB, or is not YAML.
        UserError: If the file contains YAML aliases. If the file or `overrides` contain an unknown
            key or a value out of range.
    """
    path = find_recipe(path_or_name)
    try:
        tree = _parse(_read(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(tree, dict):
        received = "an empty file" if tree is None else f"{tree!r:.60}"
        raise UserError(
            f"{path}: a recipe must map keys to values. `keras-transformer init` makes a recipe "
            f"from text files. Received: {received}"
        )
    for override in overrides:
        _apply(override, tree)
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        problems = "; ".join(_explain(details) for details in error.errors())
        keys = [".".join(map(str, (*details["loc"], ""))) for details in error.errors()]
        given = [x for x in overrides if f"{x.partition('=')[0]}.".startswith(tuple(keys))]
        source = f"{path} with `overrides` {', '.join(given)}" if given else f"{path}"
        raise UserError(f"{source}: {problems}") from None
    return _with_tokenizer_of_initial_run(recipe)


def _with_tokenizer_of_initial_run(recipe: Recipe) -> Recipe:
    given = {key: getattr(recipe.tokenizer, key) for key in recipe.tokenizer.model_fields_set}
    initial_run = recipe.training.initial_run
    if initial_run is None or given.keys() == TokenizerSettings.model_fields.keys():
        return recipe
    try:
        path = find_run(initial_run) / "recipe.yaml"
    except UserError:  # `Run.create` raises it, and what needs no run can use the recipe.
        return recipe
    tokenizer = load_recipe(path).tokenizer.model_copy(update=given)
    return recipe.model_copy(update={"tokenizer": tokenizer})


def find_recipe(path_or_name: str | Path) -> Path:
    """Returns the file of a recipe. See `load_recipe`.

    Raises:
        UserError: If there is no such recipe.
    """
    path, files = Path(path_or_name), recipe_files()
    for candidate in (path, path / "recipe.yaml", files.get(str(path))):
        if candidate and candidate.is_file():
            return candidate
    other = Path(f"{path.parent / path.stem}.yaml")
    known = [*files, str(other)] if other.is_file() else list(files)
    meant = difflib.get_close_matches(str(path), known, n=1)
    hint = f" (did you mean {meant[0]}?)" if meant else ""
    names = ", ".join(files)
    raise UserError(f"no recipe {path}{hint}: give a YAML file, a run folder or one of {names}")


def recipe_files() -> dict[str, Path]:
    """Returns the recipes in `./recipes` and in the package: a dict from names to files."""
    folders = (*reversed(SHIPPED_RECIPES), Path("recipes"))
    files = {file.stem: file for folder in folders for file in folder.glob("*.yaml")}
    return {name: file for name, file in sorted(files.items()) if file.is_file()}


def _read(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"a recipe must have at most {_MOST_BYTES:,} bytes. This file is larger")
    return content.decode("utf-8")


class _Loader(yaml.SafeLoader):
    """Rejects YAML aliases, which let a short file use gigabytes of memory."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="a recipe must not use YAML aliases",
                problem_mark=self.peek_event().start_mark,
            )
        return super().compose_node(parent, index)


def _parse(text: str) -> Any:
    """Parses YAML. Raises a `ValueError` with a one-line message if the text is invalid."""
    try:
        return yaml.load(text, _Loader)
    except Exception as error:  # PyYAML also raises errors of Python's type conversions
        raise ValueError(" ".join(str(error).split())) from None


def _apply(override: str, tree: dict[str, Any]) -> None:
    key, separator, value = override.partition("=")
    *sections, last = key.split(".")
    if not separator or not last:
        raise UserError(f"a setting has the form section.key=value. Received: {override!r}")
    for section in sections:
        if tree.get(section) is None:
            tree[section] = {}
        tree = tree[section]
        if not isinstance(tree, dict):
            raise UserError(f"{section} is not a section. Received: {override!r}")
    try:
        tree[last] = _parse(value)
    except ValueError as error:
        message = f"the value of {key} must be YAML. Received: {override!r} ({error})"
        raise UserError(message) from None


def _explain(details: Any) -> str:
    key = ".".join(str(part) for part in details["loc"])
    if details["type"] == "extra_forbidden":
        nearest = " or ".join(_nearest_keys(key))
        return f"unknown key {key}" + (f"; did you mean {nearest}?" if nearest else "")
    if details["type"] == "missing":
        return f"{key} must be given"
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}: {message}. Received: {key}={details['input']!r:.200}"


def _nearest_keys(unknown: str) -> list[str]:
    """Returns the keys, of any section, with the name that is the most like that of a key."""
    section, _, name = unknown.rpartition(".")
    keys: dict[str, list[str]] = {}
    for key in (key.name for key in all_keys()):
        keys.setdefault(key.rpartition(".")[2], []).append(key)
    found = [key for close in difflib.get_close_matches(name, keys, n=1) for key in keys[close]]
    return [key for key in found if key.rpartition(".")[0] == section] or found
