"""Search options on the command line."""

import pytest
from support.command_line import fails, invoke

from keras_transformer.decoding.options import SamplingOptions, SearchOptions


def test_every_option_of_search_is_on_the_command_line_with_its_description():
    shown = " ".join(invoke("translate", "--help").stdout.split())
    for kind in (SearchOptions, SamplingOptions):
        for name, field in kind.model_fields.items():
            flag = "--sample" if name == "num_samples" else f"--{name.replace('_', '-')}"
            assert f" {flag} " in shown
            described = " ".join(field.description.split())
            if name in SearchOptions.model_fields:
                described = described.replace("Default: ", "Default: that of the recipe, else ")
            assert name == "num_samples" or described in shown


@pytest.mark.parametrize("command", ["translate", "evaluate", "export"])
def test_help_says_that_the_recipe_sets_defaults(command):
    shown = " ".join(invoke(command, "--help").stdout.split())
    assert "1 is greedy search. Default: that of the recipe, else 4." in shown
    assert "with eos. Default: that of the recipe, else source length plus 50" in shown
    assert "1 means all tokens. Default: 1.0." in shown or command != "translate"
    assert "as in sacrebleu. Default: that of the recipe, else 13a." in shown or (
        command != "evaluate"
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--n-best", 3, "--beam-size", 2), "`n_best` must be at most `beam_size`"),
        (("--top-k", 3), "--top-k can only be used with --sample or --mbr"),
        (("--seed", 3), "--seed can only be used with --sample or --mbr"),
        (("--seed", 0), "--seed can only be used with --sample or --mbr"),
        (("--min-length", 6, "--max-length", 5), "`min_length` must be at most `max_length`"),
        (("--sample", 2, "--beam-size", 2), "--beam-size cannot be used with"),
        (("--mbr", 2, "--alignments"), "--alignments cannot be used with"),
        (("--mbr", 2, "--sample", 2), "cannot be used together"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, arguments, message):
    assert message in fails("translate", run, *arguments)


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
