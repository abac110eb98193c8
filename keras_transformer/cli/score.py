"""The command `score`."""

import math
import sys
from pathlib import Path

import click

from keras_transformer.cli.common import (
    backend_option,
    batch_tokens_option,
    checkpoint_option,
    existing_file,
    progress_bar,
    run_argument,
    writer,
)
from keras_transformer.data.corpus import available_chunks, read_parallel
from keras_transformer.errors import UserError
from keras_transformer.runs.run import Checkpoint, Run
from keras_transformer.translation.base_translator import STREAMED_LINES
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.scoring import Scorer


@click.command("score")
@run_argument
@click.argument("source", type=existing_file)
@click.argument("target", type=existing_file)
@checkpoint_option
@click.option(
    "--summary", is_flag=True, help="Write only the totals, and write them to standard output."
)
@batch_tokens_option(1024)
@backend_option
def command(
    run: Path,
    source: Path,
    target: Path,
    checkpoint: Checkpoint | None,
    summary: bool,
    tokens_per_batch: int | None,
) -> None:
    """Score translations with the model of RUN.

    The file TARGET contains the translations of the sentences in the file SOURCE, line by line. For
    each pair of lines, the command writes the log-probability in nats, a tab and the number of
    target tokens. Both numbers include the end-of-sentence token. The command writes totals to
    standard error: number of pairs, number of tokens, nats per token and perplexity.

    \b
    keras-transformer score runs/quickstart test.en test.de > scores.tsv
    keras-transformer score runs/quickstart test.en test.de --summary
    """
    pairs = list(read_parallel(source, target))
    if not pairs:
        raise UserError(f"{source} and {target} contain no sentence pairs")
    opened = Run.open(run)
    model = open_model(opened, checkpoint, for_inference=True)
    scorer = Scorer(model, opened.tokenizer(), tokens_per_batch)
    log_probability, tokens = 0.0, 0
    with writer(None) as write, progress_bar("scoring", len(pairs)) as bar:
        for chunk in available_chunks(pairs, STREAMED_LINES):
            sources, targets = zip(*chunk, strict=True)
            for score in scorer.score(sources, targets, bar.update):
                if not summary:
                    write(f"{score.log_probability:.4f}\t{score.length}\n")
                log_probability += score.log_probability
                tokens += score.length
    nats = -log_probability / tokens
    totals = {"pairs": len(pairs), "tokens": tokens, "nats per token": f"{nats:.4f}"}
    is_finite = nats < math.log(sys.float_info.max)
    totals["perplexity"] = f"{math.exp(nats) if is_finite else math.inf:.4f}"
    for name, value in totals.items():
        click.echo(f"{name}\t{value}", err=not summary)
