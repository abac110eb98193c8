"""Names that are imported when they are first used."""

import sys

import pytest

from keras_transformer import data, export
from keras_transformer._lazy import lazy_names


def test_a_module_is_imported_when_its_name_is_used():
    sys.modules.pop("this", None)
    get = lazy_names("package", {"d": "this"})
    assert "this" not in sys.modules
    assert get("d")["N"] == "A"  # rot13
    with pytest.raises(AttributeError, match="module 'package' has no attribute 'e'"):
        get("e")


@pytest.mark.parametrize("package", [data, export])
def test_every_public_name_is_found(package):
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
