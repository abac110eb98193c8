"""The command `serve`."""

import math
import warnings
from pathlib import Path
from typing import Any, Literal

import click
from pydantic import Field

from keras_transformer.cli import parameters
from keras_transformer.cli.parameters import ExistingFile, Given, checked
from keras_transformer.data.text_files import read_lines
from keras_transformer.errors import UserError, imported
from keras_transformer.formats.engines import open_translator
from keras_transformer.runs.run import Run
from keras_transformer.serving.batcher import ServerOptions
from keras_transformer.translation.glossary import Glossary


class ServeOptions(ServerOptions, parameters.TranslatorOptions):
    """The options of `serve`, but for those of search."""

    engine: Literal["keras", "ctranslate2"] | None = None  # type: ignore[assignment]
    """What translates. ctranslate2 is faster on CPUs. The first time, it converts the model of a
    RUN. Default: ctranslate2 if it is installed and can translate with the model and the options,
    else keras."""
    host: str = "127.0.0.1"
    """Address to listen at. 0.0.0.0 lets other machines send requests."""
    port: int = Field(5000, ge=0, le=65535)
    """Port to listen at. 0 means any free port."""
    glossary: tuple[str, ...] = Field((), title="NAME=FILE")
    """Let requests name a glossary: a file with a term, a tab and its translation on each line.
    Repeatable."""
    api_keys: ExistingFile = None
    """File with the keys of clients, one on each line. Requests without a key are refused."""


@click.command("serve")
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN]...", type=parameters.any_path)
@parameters.options_of(ServeOptions)
@parameters.search_options
@parameters.backend_option
def serve_command(runs: tuple[Path, ...], options: ServeOptions, search: Given) -> None:
    """Serve the models of one or more RUNs, one for each pair of languages, over HTTP.

    The server has the API of LibreTranslate. Sentences of requests at the same time are translated
    together. The server listens as soon as it is ready. A page to type into is at
    http://127.0.0.1:5000. SIGTERM ends the server when the requests in flight are answered. Texts
    and keys are not logged. With --n-best N, requests get up to N - 1 alternatives. Needs:
    pip install 'keras3-transformer[server]'.

    \b
    keras-transformer serve tatoeba_en_de
    keras-transformer serve runs/en_de runs/de_en --host 0.0.0.0 --port 8080
    keras-transformer serve runs/en_de --engine keras --backend jax --max-batch 32
    keras-transformer serve runs/en_de --glossary cars=cars.tsv --api-keys keys.txt
    """
    server, uvicorn = (
        imported(module, "server", "the server needs the package")
        for module in ("keras_transformer.serving.server", "uvicorn")
    )
    glossaries = dict(map(_glossary, options.glossary))
    lines = read_lines(options.api_keys) if options.api_keys else ()
    keys = [*filter(None, map(str.strip, lines))]
    if options.api_keys and not keys:
        raise UserError(f"{options.api_keys} must have a key on a line. Received: no key")
    opened: dict[tuple[str, str], Run] = {}
    for run in map(Run.open, runs):
        pair = run.recipe.data.source_language, run.recipe.data.target_language
        if opened.setdefault(pair, run) is not run:
            rule = "each run must have another pair of languages"
            raise UserError(f"{rule}. Received: {run.directory} with {' to '.join(pair)} again")
    translators = {pair: _opened(run, options, search) for pair, run in opened.items()}
    for (source, target), translator in translators.items():
        click.echo(f"Preparing {source} to {target}.", err=True)
        # A line can have many sentences, but a batch never more than characters.
        translator.prepare(options.char_limit)
    app = server.create_app(translators, options, glossaries, keys)
    warnings.simplefilter("ignore")  # Some have the text of a request.
    uvicorn.run(
        app,
        host=options.host,
        port=options.port,
        access_log=False,  # It would have the queries.
        server_header=False,
        timeout_graceful_shutdown=math.ceil(options.timeout),
    )


def _glossary(given: str) -> tuple[str, Glossary]:
    name, equals, path = given.partition("=")
    if not (name and equals):
        raise UserError(f"--glossary must be NAME=FILE. Received: {given}")
    return name, Glossary.read(path)


def _opened(run: Run, options: ServeOptions, search: Given) -> Any:
    found = checked(run.recipe.evaluation.search_options, **search)
    arguments = options.arguments()
    if options.engine is None:
        try:
            return checked(open_translator, run, found, **arguments | {"engine": "ctranslate2"})
        except UserError as error:
            click.echo(f"{run.directory} is served by the engine keras: {error}", err=True)
            arguments["engine"] = "keras"
    return checked(open_translator, run, found, **arguments)
