"""What a message and a child process know of an architecture."""

import sys

import pytest

from keras_transformer.architectures import (
    ARCHITECTURES,
    command_line,
    program_of,
    register_architecture,
    run_program,
)
from keras_transformer.errors import UserError
from keras_transformer.models import MaskedLanguageModel, Seq2Seq, Transformer


@pytest.fixture
def registered():
    """Forgets the architectures that a test registers."""
    before = dict(ARCHITECTURES)
    yield
    ARCHITECTURES.clear()
    ARCHITECTURES.update(before)


def test_another_process_runs_the_program_that_registers(registered, tmp_path, monkeypatch):
    program = tmp_path / "a_program_of_a_test.py"
    program.write_text(
        """from keras_transformer.models import Transformer, register_architecture

@register_architecture("own", presets={"base": {"num_layers": 1}})
class Own(Transformer):
    pass
"""
    )
    monkeypatch.setattr(sys, "path", sys.path[:])
    run_program(str(program))
    assert ARCHITECTURES["own"].architecture == "own"
    assert ARCHITECTURES["own"].presets == {"base": {"num_layers": 1}}
    assert ARCHITECTURES["own"].settings() == Transformer.settings()
    assert program_of("own") == [str(program)]
    assert command_line("own").startswith("python ")
    assert program_of("transformer") == []
    assert command_line("transformer") == "keras-transformer"
    run_program()


def test_a_class_without_a_file_is_refused(registered):
    own = type("Own", (Transformer,), {"__module__": "a_notebook"})
    register_architecture("own", presets={"base": {}})(own)
    with pytest.raises(UserError, match="must import the class of the architecture own from a fi"):
        program_of("own")


@pytest.mark.parametrize("wrong", [MaskedLanguageModel, Seq2Seq, str, lambda **_: None])
def test_a_class_that_recipes_cannot_train_is_refused_when_it_is_registered(registered, wrong):
    with pytest.raises(TypeError, match="a subclass of Seq2Seq that defines `init_cache` and `st"):
        register_architecture("own", presets={"base": {}})(wrong)
    assert "own" not in ARCHITECTURES
