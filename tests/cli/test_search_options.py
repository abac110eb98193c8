"""Search options on the command line."""

import inspect

import pytest
from support.command_line import invoke

from keras_transformer.cli.search_options import TRANSLATOR_OPTIONS
from keras_transformer.decoding.translator import Translator


def test_the_options_are_arguments_of_the_translator():
    assert set(TRANSLATOR_OPTIONS) <= set(inspect.signature(Translator).parameters)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--beam-size", 0),
        ("--length-penalty", -0.1),
        ("--temperature", 0),
        ("--top-p", 1.1),
        ("--seed", 2**64),
        ("--seed", -1),
    ],
)
def test_values_out_of_range_are_refused(option, value):
    result = invoke("translate", "run", option, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr
