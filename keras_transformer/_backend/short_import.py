"""Shortens the import of Keras by modules that a command does not use."""

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from keras_transformer._lazy import ImportHook

# Modules of Keras that import another library when they are imported, though they may never use it.
_IMPORTS_JAX = "keras.src.callbacks.orbax_checkpoint"
_IMPORT_DYNAMO = ("keras.src.backend.torch.image", "keras.src.backend.torch.random")


def shorten_import_of_keras() -> None:
    """Makes a later import of Keras skip JAX on other backends, and PyTorch's compiler Dynamo.

    On PyTorch, the import then takes two thirds of the time. Keras marks two functions with
    `torch._dynamo.disable`. With the shorter import, the mark takes effect when Dynamo is
    imported. Nothing is compiled before that. Does nothing if Keras is already imported.
    """
    if "keras" not in sys.modules:
        sys.meta_path.insert(0, ImportHook(_IMPORTS_JAX, lambda: _replaced("jax", None)))
        for module in _IMPORT_DYNAMO:
            sys.meta_path.insert(0, ImportHook(module, lambda: _replaced(_Dynamo.name, _Dynamo())))


@contextmanager
def _replaced(name: str, module: Any) -> Iterator[None]:
    """Replaces a module that is not yet imported. With None, the import raises `ImportError`."""
    modules: dict[str, Any] = sys.modules
    if name in modules:
        yield
        return
    modules[name] = module
    try:
        yield
    finally:
        del modules[name]


class _Dynamo(ModuleType):
    """Has the function `disable` of `torch._dynamo`, but does not import Dynamo."""

    name = "torch._dynamo"

    def __init__(self) -> None:
        super().__init__(self.name)

    def disable(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.cache
            def disabled() -> Callable[..., Any]:
                return importlib.import_module(self.name).disable()(function)

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                may_compile = self.name in sys.modules
                return (disabled() if may_compile else function)(*args, **kwargs)

            return call

        return decorate
