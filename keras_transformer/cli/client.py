"""The command `client`."""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from keras_transformer._files import as_line
from keras_transformer.cli import common
from keras_transformer.cli.common import (
    file_argument,
    n_best_option,
    output_option,
    scores_option,
)
from keras_transformer.errors import UserError

_int32 = click.IntRange(min=1, max=2**31 - 1)  # as in the signature of the exported model


@click.command("client")
@click.argument("model")
@file_argument
@output_option
@click.option(
    "--address",
    help="HOST:PORT of the server, or for REST also its URL. Default: localhost:8501 for REST, "
    "localhost:8500 for gRPC.",
)
@click.option("--protocol", type=click.Choice(["rest", "grpc"]), default="rest")
@click.option(
    "--model-version",
    "version",
    type=click.IntRange(min=0),
    help="Version of the model. Default: the newest.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=32,
    help="Maximum number of sentences per request.",
)
@n_best_option
@click.option("--beam-size", type=_int32, help="Default: the exported value.")
@click.option("--length-penalty", type=click.FloatRange(min=0), help="Default: the exported value.")
@click.option(
    "--max-length",
    type=_int32,
    help="Maximum length of a translation in tokens, at least the exported minimum length. "
    "Default: the exported value.",
)
@scores_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    help="Longest wait for a connection, and for an answer, in seconds.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=5,
    help="Maximum number of retries of a request if the server is unreachable, overloaded or "
    "loading the model.",
)
def command(
    model: str,
    file: Path | None,
    output: Path | None,
    batch_size: int,
    n_best: int,
    beam_size: int | None,
    length_penalty: float | None,
    max_length: int | None,
    scores: bool,
    **server: Any,
) -> None:
    """Translate with MODEL on a TensorFlow Serving server.

    MODEL is the name of the model on the server. The input, FILE or standard input, has one
    sentence per line. Standard input is translated line by line. The output has N lines for each
    sentence, where N is --n-best. A line is empty if there are fewer translations. The score is the
    log-probability in nats divided by the length penalty, plus the coverage penalty. For gRPC, run:
    pip install 'keras3-transformer[serving]'.

    \b
    echo "twenty-six" | keras-transformer client quickstart
    keras-transformer client quickstart in.txt --output out.txt --batch-size 16
    keras-transformer client quickstart in.txt --address http://translate.example:8501
    keras-transformer client quickstart in.txt --protocol grpc --address localhost:8500
    keras-transformer client quickstart in.txt --beam-size 8 --n-best 3 --scores
    keras-transformer client quickstart in.txt --model-version 2 --timeout 5 --retries 0
    """
    search = {"beam_size": beam_size, "length_penalty": length_penalty, "max_length": max_length}
    if beam_size is not None and n_best > beam_size:
        raise UserError(f"--n-best must be at most the beam size, {beam_size}. Received: {n_best}")
    with common.writer(output) as write:
        from keras_transformer.data.corpus import read_lines
        from keras_transformer.serving import ServedTranslation, connect

        def line(found: ServedTranslation) -> str:
            score = f"{found.score:.4f}\t" if scores else ""
            return f"{score}{as_line(found.text)}\n"

        nothing = ServedTranslation("", -math.inf)
        lines = list(read_lines(file)) if file and file.is_file() else None
        total = None if lines is None else len(lines)
        translator = connect(model, **server)
        with common.progress_bar("translating", total, output) as bar:
            answers = (
                translator.stream(x, batch_size, n_best, **search)
                for x in ([lines] if lines else _parts(file))
            )
            for found in itertools.chain.from_iterable(answers):
                rows = [[*best, *[nothing] * (n_best - len(best))] for best in found]
                write("".join(line(translation) for row in rows for translation in row))
                bar.update(len(found))


def _parts(file: Path | None) -> Iterator[Iterable[str]]:
    """Yields all lines of the input. Yields each line that a user types as a part of its own."""
    from keras_transformer.data.corpus import read_lines, read_standard_input

    if common.is_session(file):
        common.greet()
        yield from ([line] for line in common.prompted_lines())
    else:
        yield read_lines(file) if file else read_standard_input()
