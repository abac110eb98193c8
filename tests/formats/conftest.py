"""Fixtures of this folder."""

import shutil

import pytest
from support.contract import randomize
from support.parallel_text import LOSSLESS_TARGET, SENTENCES
from support.tiny_run import recipe_for, write_text

from keras_transformer.data import Tokenizer
from keras_transformer.models import Transformer
from keras_transformer.runs.run import Run


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=60)


@pytest.fixture(scope="module")
def new_run(tmp_path_factory):
    """A run with random weights, as training leaves it."""
    folder = tmp_path_factory.mktemp("export")
    write_text(folder)
    run = Run.create(folder / "run", recipe_for(folder))
    pairs = list(run.text.pairs("train"))
    Tokenizer.train(pairs, vocabulary_size=17, **LOSSLESS_TARGET).save(run.tokenizer_dir)
    model = Transformer(17, num_layers=1, d_model=8, num_heads=2, d_ff=4, max_length=24)
    randomize(model)
    model.save(run.model_path)
    return run.directory


@pytest.fixture
def run(new_run, tmp_path, monkeypatch):
    """The run, where exports go to tmp_path."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(new_run, tmp_path / "run")
