"""The command `client`."""

import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import click
from pydantic import Field

from keras_transformer._files import as_line
from keras_transformer.cli import common
from keras_transformer.errors import UserError

# The most of an int32, as in the signature of the exported model.
_MOST = 2**31 - 1


class ClientOptions(common.TextOptions):
    """The options of `client`."""

    address: str | None = None
    """HOST:PORT of the server, or for REST also its URL. Default: localhost:8501 for REST,
    localhost:8500 for gRPC."""
    protocol: Literal["rest", "grpc"] = "rest"
    """Protocol of the requests."""
    model_version: int | None = Field(None, ge=0)
    """Version of the model. Default: the newest."""
    batch_size: int = Field(32, ge=1)
    """Maximum number of sentences per request."""
    n_best: int = Field(1, ge=1)
    """Number of translations per sentence, at most the beam size."""
    beam_size: int | None = Field(None, ge=1, le=_MOST)
    """Default: the exported value."""
    length_penalty: float | None = Field(None, ge=0)
    """Default: the exported value."""
    max_length: int | None = Field(None, ge=1, le=_MOST)
    """Maximum length of a translation in tokens, at least the exported minimum length. Default: the
    exported value."""
    timeout: float = Field(60.0, gt=0)
    """Longest wait for a connection, and for an answer, in seconds."""
    retries: int = Field(5, ge=0)
    """Maximum number of retries of a request if the server is unreachable, overloaded or loading
    the model."""


@click.command("client")
@click.argument("model")
@common.file_argument
@common.options_of(ClientOptions)
def client_command(model: str, file: Path | None, options: ClientOptions) -> None:
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
    n_best, beam_size = options.n_best, options.beam_size
    if beam_size is not None and n_best > beam_size:
        raise UserError(f"--n-best must be at most the beam size, {beam_size}. Received: {n_best}")
    search = options.model_dump(include={"beam_size", "length_penalty", "max_length"})
    server = options.model_dump(include={"address", "protocol", "timeout", "retries"})
    with common.writer(options.output) as write:
        from keras_transformer.serving import ServedTranslation, connect

        def line(found: ServedTranslation) -> str:
            score = f"{found.score:.4f}\t" if options.scores else ""
            return f"{score}{as_line(found.text)}\n"

        lines, total = common.counted(common.input_lines(file), file)
        parts: Iterable[Iterable[str]] = [lines]
        if common.is_session(file):
            parts = ([line] for line in lines)
        nothing = ServedTranslation("", -math.inf)
        translator = connect(model, version=options.model_version, **server)
        with common.progress_bar("translating", total, options.output) as bar:
            answers = (translator.stream(x, options.batch_size, n_best, **search) for x in parts)
            for found in itertools.chain.from_iterable(answers):
                rows = [[*best, *[nothing] * (n_best - len(best))] for best in found]
                write("".join(line(translation) for row in rows for translation in row))
                bar.update(len(found))
