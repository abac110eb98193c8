"""The search options of `translate`, `evaluate` and `export`, each declared here only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Combines several option decorators into one."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# For translate, evaluate and export.
search_options = _options(
    click.option(
        "--beam-size",
        type=click.IntRange(min=1),
        help="Number of beams; 1 is greedy search. Default: the recipe's evaluation.beam_size.",
    ),
    click.option(
        "--length-penalty",
        type=click.FloatRange(min=0),
        help="Exponent alpha of the length penalty. Default: the recipe's "
        "evaluation.length_penalty.",
    ),
)

# For translate alone.
translator_options = _options(
    click.option(
        "--length-penalty-form",
        type=click.Choice(["wu", "power"]),
        default="wu",
        show_default=True,
        help="Length penalty for n tokens: wu is ((5 + n) / 6) ** alpha, power is n ** alpha.",
    ),
    click.option(
        "--coverage-penalty",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        help="Weight of the coverage penalty (Wu et al. 2016).",
    ),
    click.option(
        "--min-length",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Minimum length of a translation in tokens, end of sentence included.",
    ),
    click.option(
        "--max-length",
        type=click.IntRange(min=1),
        help="Maximum length of a translation in tokens, end of sentence included. Default: the "
        "length of the source plus 50.",
    ),
    click.option(
        "--repetition-penalty",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        show_default=True,
        help="Factor on the log-probability of tokens already in the translation; above 1 "
        "discourages repetition.",
    ),
    click.option(
        "--no-repeat-ngrams",
        "no_repeat_ngram_size",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="SIZE",
        help="Block repeated n-grams of this size; 0 is off.",
    ),
    click.option(
        "--overlong",
        type=click.Choice(["split", "cut"]),
        default="split",
        show_default=True,
        help="Lines with more tokens than the model's maximum: translate them in parts (split) or "
        "truncate them (cut).",
    ),
    click.option(
        "--ensemble",
        "others",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="RUN",
        help="Another run of the ensemble: the models' probabilities are averaged. The tokenizers "
        "must be equal. Repeatable.",
    ),
)

# For translate alone.
sampling_options = _options(
    click.option(
        "--sample",
        type=click.IntRange(min=1),
        metavar="N",
        help="Sample N translations per sentence instead of beam search.",
    ),
    click.option(
        "--mbr",
        type=click.IntRange(min=1),
        metavar="N",
        help="Minimum Bayes risk decoding: sample N translations and write the one with the "
        "highest expected chrF.",
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        show_default=True,
        help="Softmax temperature of sampling.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Sample from the k most probable tokens; 0 is all.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="Nucleus sampling: sample from the most probable tokens that together have "
        "probability p.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**64 - 1),
        default=0,
        show_default=True,
        help="Random seed of sampling.",
    ),
)

# The options above that are arguments of `Translator`.
TRANSLATOR_OPTIONS = (
    "beam_size",
    "length_penalty",
    "length_penalty_form",
    "coverage_penalty",
    "min_length",
    "max_length",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "overlong",
)
