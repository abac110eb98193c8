"""What a recipe and a child process know of an architecture."""

import inspect
import sys

import pytest
from support.small_models import TARGET_V

from keras_transformer.errors import UserError
from keras_transformer.models import ARCHITECTURES, Transformer, register_architecture
from keras_transformer.models.seq2seq import command_line, program_of, run_program

pytestmark = pytest.mark.once


def test_a_recipe_sets_the_sizes_of_a_model_and_not_what_the_tokenizer_says():
    settings, presets = Transformer.settings(), Transformer.presets
    assert {"d_model", "dropout_rate", "max_length"} <= settings
    assert not settings & {"self", "vocabulary_size", "target_vocabulary_size", "pad_id", "kwargs"}
    assert all(sizes.keys() <= settings for sizes in presets.values())


def test_the_defaults_are_the_base_preset():
    arguments = inspect.signature(Transformer.__init__).parameters
    base = Transformer.presets["base"]
    assert {size: arguments[size].default for size in base} == base


@pytest.mark.parametrize("pad_id", [-1, TARGET_V])
def test_padding_is_in_both_vocabularies(pad_id):
    with pytest.raises(ValueError, match=f"`pad_id` must be an integer from 0.*pad_id={pad_id}"):
        Transformer(vocabulary_size=99, target_vocabulary_size=TARGET_V, pad_id=pad_id)


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
