"""Runs that reports are made of."""

import shutil

import pytest
from support.reported_run import HYPOTHESES, SOURCES, make_run

from keras_transformer import Run


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("visualization")).directory


@pytest.fixture
def run(made, tmp_path):
    return Run.open(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def other(made, tmp_path):
    """The same model with a hypothesis that is too long for it, and other logs."""
    found = Run.open(shutil.copytree(made, tmp_path / "other"))
    worse = [*HYPOTHESES[:4], "x " * 300, *HYPOTHESES[5:]]
    found.scores.keep_hypotheses("test", SOURCES, worse, found.scores.scored_model(None))
    return found
