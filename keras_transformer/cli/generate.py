"""The command `generate`."""

from pathlib import Path

import click
from pydantic import Field

from keras_transformer.cli import parameters
from keras_transformer.cli.parameters import Given, checked
from keras_transformer.decoding.options import SamplingOptions


class _GenerateOptions(parameters.CheckpointOptions):
    length: int = Field(200, ge=1, le=1_000_000)
    """Number of tokens after the prompt. It can exceed what the model reads at a time."""
    samples: int = Field(1, ge=1, le=10_000, title="N")
    """Number of texts. A line "---" is between two."""
    seed: int = Field(0, ge=0, le=2**64 - 1)
    """Random seed of sampling."""


@click.command("generate")
@parameters.run_argument
@click.argument("prompt", default="")
@parameters.options_of(_GenerateOptions)
@parameters.sampling_options
@parameters.backend_option
def generate_command(run: Path, prompt: str, options: _GenerateOptions, sampling: Given) -> None:
    """Write text with the language model of RUN, by sampling.

    The text begins with PROMPT. Without one, the model begins a text of its own.

    \b
    keras-transformer generate runs/shakespeare "ROMEO:"
    keras-transformer generate runs/shakespeare --samples 3 --temperature 0.8 --seed 7
    keras-transformer generate runs/shakespeare "To be" --length 500 --checkpoint best
    """
    from keras_transformer.translation.generator import Generator

    drawn = checked(SamplingOptions, **sampling)
    generator = checked(Generator.from_run, run, options.checkpoint)
    given = [prompt] * options.samples, options.length, drawn, options.seed
    texts = checked(generator.write, *given)
    click.echo("\n---\n".join(texts).encode())
