"""Names that are imported when they are first used."""

import importlib.util
import sys
from contextlib import contextmanager

import pytest

from keras_transformer import data, export
from keras_transformer._lazy import ImportHook, lazy_names


def test_a_module_is_imported_when_its_name_is_used():
    sys.modules.pop("this", None)
    get = lazy_names("package", {"d": "this"})
    assert "this" not in sys.modules
    assert get("d")["N"] == "A"  # rot13
    with pytest.raises(AttributeError, match="module 'package' has no attribute 'e'"):
        get("e")


def test_a_hook_waits_for_the_import_of_its_module(monkeypatch):
    entered = []

    @contextmanager
    def context():
        entered.append("this" in sys.modules)
        yield

    monkeypatch.delitem(sys.modules, "this", raising=False)
    hook = ImportHook("this", context)
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    assert importlib.util.find_spec("this").name == "this"
    assert not entered and hook in sys.meta_path
    assert importlib.import_module("this").d["N"] == "A"
    assert entered == [True] and hook not in sys.meta_path


def test_a_hook_of_a_package_waits_for_the_first_import_of_a_module_in_it(monkeypatch):
    entered = []

    @contextmanager
    def context():
        entered.append("xml.dom.pulldom" in sys.modules)
        yield

    for name in ("xml.dom.pulldom", "xml.dom.minidom"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [ImportHook("xml.", context), *sys.meta_path])
    importlib.import_module("xml.dom.pulldom")
    importlib.import_module("xml.dom.minidom")
    assert entered == [True]


@pytest.mark.parametrize("package", [data, export])
def test_every_public_name_is_found(package):
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
