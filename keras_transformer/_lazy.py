"""Imports a module of a package when one of its public names is first used (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a function that a package can define as its `__getattr__`.

    `modules` maps the name of a module in `package` to the names that it defines, separated by
    spaces. For editors and type checkers, the package imports the same names under `TYPE_CHECKING`.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    return get
