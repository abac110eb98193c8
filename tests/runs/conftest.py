"""A run without text, for the tests of all its files."""

import pytest

from keras_transformer.recipe.files import load_recipe
from keras_transformer.runs.run import Run

FILES = """
name: files
data:
  train: {source: train.en, target: train.de}
  validation: {source: val.tsv}
  test: {source: test.en, target: test.de}
  directory: DIRECTORY
"""


@pytest.fixture
def recipe(tmp_path):
    """A recipe whose files lie in tmp_path/data, some of them gzipped."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train.en", "train.de.gz", "val.tsv", "test.en", "test.de"):
        (data / name).write_bytes(b"")
    path = tmp_path / "files.yaml"
    path.write_text(FILES.replace("DIRECTORY", str(data)))
    return load_recipe(path)


@pytest.fixture
def run(tmp_path, recipe):
    return Run.create(tmp_path / "run", recipe)
