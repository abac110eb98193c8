"""Imports a module of a package when one of its public names is first used (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, names: Mapping[str, str], modules: str = "") -> Callable[[str], Any]:
    """Returns a function that a package can define as its `__getattr__`.

    `names` maps a module in `package` to the names that it defines, and `modules` are public
    modules themselves, all separated by spaces. For editors and type checkers, the package imports
    the same under `TYPE_CHECKING`.
    """
    module_of = {name: module for module, found in names.items() for name in found.split()}

    def get(name: str) -> Any:
        if name in modules.split():
            return importlib.import_module(f".{name}", package)
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{module_of[name]}", package), name)

    return get
