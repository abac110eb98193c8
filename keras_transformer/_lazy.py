"""Imports a module of a package when one of its public names is first used (PEP 562)."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a function that a package can define as its `__getattr__`.

    `modules` maps each public name of the package to the full name of the module that defines it.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return get


class ImportHook:
    """Import finder that runs the first import of a module inside a context.

    If the name of the module ends with a dot, it stands for all modules of this package. Insert the
    hook into `sys.meta_path`. It removes itself when the module is imported. A search with
    `importlib.util.find_spec` leaves it, and so does an import that fails.
    """

    def __init__(self, module: str, context: Callable[[], AbstractContextManager[Any]]) -> None:
        self._module, self._context = module, context

    def find_spec(self, name: str, *_: Any) -> Any:
        is_package = self._module.endswith(".")
        if not (name.startswith(self._module) if is_package else name == self._module):
            return None
        place = sys.meta_path.index(self)
        del sys.meta_path[place]
        try:
            spec: Any = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(place, self)
        if spec is not None:
            exec_module = spec.loader.exec_module

            def exec_in_context(module: Any) -> None:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                try:
                    with self._context():
                        exec_module(module)
                except BaseException:
                    sys.meta_path.insert(0, self)
                    raise

            spec.loader.exec_module = exec_in_context
        return spec
