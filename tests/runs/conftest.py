"""A run without text, for the tests of all its files."""

import pytest

from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run


@pytest.fixture
def recipe(tmp_path):
    """A recipe whose files lie in tmp_path/data, some of them gzipped."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train.en", "train.de.gz", "val.tsv", "test.en", "test.de"):
        (folder / name).write_bytes(b"")
    data = {x: {"source": f"{x}.en", "target": f"{x}.de"} for x in ("train", "test")}
    data |= {"validation": {"source": "val.tsv"}, "directory": folder}
    return Recipe.model_validate({"name": "files", "data": data})


@pytest.fixture
def run(tmp_path, recipe):
    return Run.create(tmp_path / "run", recipe)
