"""Finds recipes, which are YAML files, and run folders, by path or by name. Reads recipes."""

import difflib
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from keras_transformer._files import atomic_write, keras_home, read_bytes
from keras_transformer.errors import UserError
from keras_transformer.recipe.sections import FORMS, OF_RUN
from keras_transformer.recipe.settings import Recipe, all_keys

_PACKAGE = Path(__file__).parents[1]
# Installed, and in the source tree.
SHIPPED_RECIPES = (_PACKAGE / "_recipes", _PACKAGE.parent / "recipes")
_SHIPPED_RUNS = (_PACKAGE / "_saved_models", _PACKAGE.parent / "saved_models")
# Recipes of the package have about 2 KiB and 3 levels. PyYAML takes seconds to parse 256 KiB, and
# minutes if it has thousands of levels.
_MOST_YAML, _MOST_YAML_LEVELS = 256 * 1024, 100


def load_recipe(
    path_or_name: str | Path, overrides: Sequence[str] = (), *, is_of_run: bool = False
) -> Recipe:
    """Reads and validates a recipe.

    Args:
        path_or_name: Path of a YAML file, path of a run folder, or the name of a recipe in
            `./recipes` or in the package, such as "quickstart".
        overrides: Settings that replace settings of the file, such as "training.steps=100". The
            values are parsed as YAML.
        is_of_run: Whether the recipe is that of a run. Its section `model` is then not checked,
            which needs no Keras, and no other run is opened. Defaults to False.

    Returns:
        The recipe, with defaults for missing keys. With `training.initial_run` or
        `training.teacher`, the defaults of the section `tokenizer` are those of that run, if it
        exists.

    Raises:
        UserError: If the file does not exist, is larger than 256 KiB, is not YAML or contains YAML
            aliases. If the file or `overrides` contain an unknown key or a value out of range.
    """
    path = find_recipe(path_or_name)
    try:
        tree = parse_yaml(read_bytes(path).decode())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(
            f"{path}: a recipe must map keys to values. `keras-transformer init` makes a recipe "
            f"from text files. Received: {tree!r:.60}"
        )
    for override in overrides:
        _apply(override, tree)
    if not is_of_run:  # The recipe of a run has all settings.
        _take_tokenizer_of_other_run(tree)
    return validated(tree, " with ".join([str(path), *overrides]), is_of_run)


def validated(tree: dict[str, Any], source: str | Path, is_of_run: bool) -> Recipe:
    """Returns the recipe with the settings of `tree`. Raises `UserError` that names the source."""
    try:
        return Recipe.model_validate(tree, context=OF_RUN if is_of_run else None)
    except ValidationError as error:
        problems = "; ".join(_explain(details) for details in error.errors())
        raise UserError(f"{source}: {problems}") from None


def _take_tokenizer_of_other_run(tree: dict[str, Any]) -> None:
    training, given = tree.get("training"), tree.get("tokenizer", {})
    if not (isinstance(training, dict) and isinstance(given, dict)):
        return
    other = training.get("initial_run") or training.get("teacher")
    if not isinstance(other, str):
        return
    # `Run.create` raises the error, and what needs no run can use the recipe.
    with suppress(UserError):
        tokenizer = load_recipe(find_run(other), is_of_run=True).tokenizer
        tree["tokenizer"] = {**tokenizer.model_dump(), **given}


def find_recipe(path_or_name: str | Path) -> Path:
    """Returns the file of a recipe. See `load_recipe`."""
    path, files = Path(path_or_name), recipe_files()
    for candidate in (path, path / "recipe.yaml", files.get(str(path))):
        if candidate and candidate.is_file():
            return candidate
    hint, names = _hint(path, (*files, *map(str, path.parent.glob("*.yaml")))), ", ".join(files)
    raise UserError(f"no recipe {path}{hint}: give a YAML file, a run folder or one of {names}")


def _hint(path: Path, known: Iterable[str]) -> str:
    meant = difflib.get_close_matches(str(path), [*known], n=1)
    return f" (did you mean {meant[0]}?)" if meant else ""


def recipe_files() -> dict[str, Path]:
    """Returns the recipes in `./recipes` and in the package: a dict from names to files."""
    folders = (*reversed(SHIPPED_RECIPES), Path("recipes"))
    files = {file.stem: file for folder in folders for file in folder.glob("*.yaml")}
    return {name: file for name, file in sorted(files.items()) if file.is_file()}


def parse_yaml(text: str) -> Any:
    """Parses YAML. Raises a `ValueError` with a one-line message if it is invalid or too large."""
    depth = 0
    try:
        for event in yaml.parse(text):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            # With aliases, a short file can use gigabytes of memory.
            is_alias = isinstance(event, yaml.AliasEvent)
            if is_alias or depth > _MOST_YAML_LEVELS or len(text) > _MOST_YAML:
                most = f"{_MOST_YAML:,} characters and {_MOST_YAML_LEVELS} levels"
                raise ValueError(f"YAML must have no aliases, and at most {most}")
        return yaml.safe_load(text)
    except Exception as error:  # PyYAML also raises errors of Python's type conversions
        raise ValueError(" ".join(str(error).split())) from None


def _apply(override: str, tree: Any) -> None:
    key, separator, value = override.partition("=")
    *sections, last = key.split(".")
    if not separator or not last:
        raise UserError(f"a setting has the form section.key=value. Received: {override!r}")
    for section in sections:
        if isinstance(tree, dict) and tree.get(section) is None:
            tree[section] = {}
        if isinstance(tree, list):  # Its parts have numbers: data.train.1.weight=2
            tree = {str(number): part for number, part in enumerate(tree)}
        tree = tree.get(section) if isinstance(tree, dict) else None
    if not isinstance(tree, dict):
        rule = "is not a section, or the number of one in a list"
        raise UserError(f"{'.'.join(sections)} {rule}. Received: {override!r}")
    try:
        tree[last] = parse_yaml(value)
    except ValueError as error:
        raise UserError(f"{key} must be YAML. Received: {override!r} ({error})") from None


def _explain(details: ErrorDetails) -> str:
    key = ".".join(str(part) for part in details["loc"] if part not in FORMS)
    if details["type"] == "extra_forbidden":
        names, last = [each.name for each in all_keys()], key.rpartition(".")[2]
        elsewhere = {name.rpartition(".")[2]: name for name in names}
        close = difflib.get_close_matches(key, names, n=1)
        close = close or [elsewhere[x] for x in difflib.get_close_matches(last, elsewhere, n=1)]
        return f"unknown key {key}" + (f"; did you mean {close[0]}?" if close else "")
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] in ("missing", "value_error"):
        return f"{key}: {message}" if key else message
    return f"{key}: {message}. Received: {key}={details['input']!r:.200}"


def find_run(directory: str | Path) -> Path:
    """Returns the folder of a run: `directory`, if it is a run folder.

    If it is the name of a run in the package, the result is a copy of that run in
    `keras_transformer/runs` in `KERAS_HOME`, by default in `~/.keras`. So scores and conversions
    can be written beside the model.
    """
    directory = Path(directory)
    if (directory / "recipe.yaml").is_file():
        return directory
    shipped = shipped_runs()
    if str(directory) in shipped:
        return _copy(shipped[str(directory)])
    runs = (x for folder in (directory.parent, Path("runs")) for x in folder.glob("*/recipe.yaml"))
    reason = f"it does not exist{_hint(directory, (str(path.parent) for path in runs))}"
    if directory.exists():
        reason = "it holds no recipe.yaml" if directory.is_dir() else "it is a file"
    elif " " in str(directory):
        reason = "it looks like a sentence. Write sentences to standard input or into a file"
    raise UserError(
        f"{directory} is no run folder: {reason}. The package has {', '.join(shipped) or 'no runs'}"
    )


def shipped_runs() -> dict[str, Path]:
    """Returns the folders of the package's runs by name."""
    recipes = (x for folder in _SHIPPED_RUNS for x in sorted(folder.glob("*/recipe.yaml")))
    return {recipe.parent.name: recipe.parent for recipe in recipes}


def name_of(run: Path) -> str:
    """Returns what names a run in a command: the path of its folder, or the name in the package."""
    return run.name if run.parent.parent == _copies() else str(run)


def _copies() -> Path:
    return keras_home() / "keras_transformer" / "runs"


def _copy(shipped: Path) -> Path:
    """Copies a run once, to a folder whose name depends on the files of the run."""
    files = sorted(x for x in shipped.rglob("[!.]*") if x.is_file())
    content = b"".join(file.read_bytes() for file in files)
    copy = _copies() / hashlib.sha256(content).hexdigest()[:16] / shipped.name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(copy.parent / ".lock"):
            if not copy.exists():  # Another process may have copied it.
                with atomic_write(copy) as partial:
                    shutil.copytree(shipped, partial, ignore=shutil.ignore_patterns(".*"))
    return copy
