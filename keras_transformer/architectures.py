"""The classes that recipes can name, and the programs that register them. Needs no Keras."""

import importlib
import inspect
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from keras_transformer.errors import UserError

if TYPE_CHECKING:
    from keras_transformer.models.token_predictor import TokenPredictor

Class = TypeVar("Class", bound="type[TokenPredictor]")

# The classes by the value of `model.architecture`. `keras_transformer.models` registers its own.
ARCHITECTURES: dict[str, type["TokenPredictor"]] = {}


def register_architecture(
    name: str, *, presets: dict[str, dict[str, Any]]
) -> Callable[[Class], Class]:
    """Decorates a `Seq2Seq` class that recipes can name as `model.architecture`.

    The section `model` of a recipe can set each constructor argument of the class except
    `vocabulary_size`, `target_vocabulary_size`, `pad_id` and `dtype`, which the constructor must
    have too, because training sets them. `recipes/before_transformers.py` is an example.

    Example:

    >>> @register_architecture("my_model", presets={"base": {"d_model": 512}})
    ... @keras.saving.register_keras_serializable(package="my_package")
    ... class MyModel(Seq2Seq): ...

    `name` is the value of `model.architecture`. `presets` are constructor arguments by the value of
    `model.preset`, of which "base" is the default.

    Raises:
        TypeError: If the class is not a `Seq2Seq`, or does not define `init_cache` and `step`.
    """

    def register(model_class: Class) -> Class:
        if not all(hasattr(model_class, x) for x in ("settings", "init_cache", "step")):
            raise TypeError(
                "An architecture of recipes must be a subclass of Seq2Seq that defines "
                f"`init_cache` and `step`. Received: {model_class}"
            )
        model_class.architecture, model_class.presets = name, presets
        ARCHITECTURES[name] = model_class
        return model_class

    return register


def program_of(architecture: str) -> list[str]:
    """Returns `[file]` for an architecture that `file` registers, or `[]` for one of this package.

    A child process calls `run_program(*program_of(architecture))`. Raises `UserError` if the class
    is in no file, such as a class of a notebook.
    """
    model_class = ARCHITECTURES.get(architecture)
    if model_class is None or model_class.__module__.startswith(f"{__package__}."):
        return []
    try:
        return [str(Path(inspect.getfile(model_class)).resolve())]
    except (OSError, TypeError):
        raise UserError(
            "this command starts a process of its own, which must import the class of the "
            f"architecture {architecture} from a file. Received: {model_class}, of no file"
        ) from None


def command_line(architecture: str) -> str:
    """Returns the command that knows an architecture, such as "keras-transformer", for messages."""
    try:
        program = program_of(architecture)
    except UserError:
        program = []
    words = ["python", os.path.relpath(program[0])] if program else ["keras-transformer"]
    return shlex.join(words)


def run_program(file: str | None = None) -> None:
    """Runs the program of `program_of`, if any, as a module, so that it registers its classes."""
    if file is not None:
        sys.path.insert(0, str(Path(file).parent))
        importlib.import_module(Path(file).stem)
