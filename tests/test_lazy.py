"""Names that are imported on first use."""

import ast
import importlib
from pathlib import Path

import pytest

import keras_transformer


@pytest.mark.once
@pytest.mark.parametrize("package", ["", "training"])
def test_editors_and_type_checkers_see_what_is_imported_on_first_use(package):
    """The names under `TYPE_CHECKING` and those of `lazy_names` are the same."""
    module = importlib.import_module(f"keras_transformer.{package}".rstrip("."))
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(module.__all__) <= imported | set(vars(module))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    for node in block.body:
        for alias in node.names:
            assert getattr(module, alias.name) is not None


@pytest.mark.once
@pytest.mark.parametrize("name", ["Transfromer", "SpeechTransformer"])
def test_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"'keras_transformer' has no attribute '{name}'"):
        getattr(keras_transformer, name)
