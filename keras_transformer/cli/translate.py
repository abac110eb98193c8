"""The command `translate`."""

from pathlib import Path
from typing import Any

import click

from keras_transformer.cli.common import (
    count_lines,
    existing_file,
    file_argument,
    n_best_option,
    output_option,
    progress_bar,
    run_argument,
    scores_option,
    warning_lines,
    writer,
)
from keras_transformer.cli.search_options import (
    TRANSLATOR_OPTIONS,
    sampling_options,
    search_options,
    translator_options,
)
from keras_transformer.errors import UserError


@click.command("translate")
@run_argument
@file_argument
@output_option
@n_best_option
@search_options
@translator_options
@click.option(
    "--prefix",
    "prefixes",
    type=existing_file,
    help="File with one line per sentence: the beginning of its translation.",
)
@click.option(
    "--required",
    type=existing_file,
    help="File with one line per sentence: words its translation must contain, separated by tabs.",
)
@click.option(
    "--forbidden",
    type=existing_file,
    help="File with one line per sentence: words its translation must not contain, separated by "
    "tabs.",
)
@sampling_options
@scores_option
@click.option(
    "--alignments",
    is_flag=True,
    help='Write a tab and word alignments, such as "0-0 1-2", after each translation.',
)
def command(run: Path, file: Path | None, output: Path | None, **options: Any) -> None:
    """Translate FILE, or standard input, with the model of RUN.

    The input has one sentence per line. Standard input is translated line by line. Each sentence
    gives one line of output, or as many as --n-best or --sample says, best first. The score is the
    log-probability in nats divided by the length penalty; with --mbr it is the expected chrF.
    Alignments are pairs SOURCE-TARGET of word positions, counted from 0. A blank line in the file
    of --prefix, --required or --forbidden means no constraint.

    \b
    echo "twenty-six" | keras-transformer translate runs/quickstart
    keras-transformer translate runs/quickstart in.txt --output out.txt
    keras-transformer translate runs/quickstart in.txt --beam-size 8 --n-best 3 --scores
    keras-transformer translate runs/a in.txt --ensemble runs/b --ensemble runs/c
    keras-transformer translate runs/a in.txt --no-repeat-ngrams 3 --coverage-penalty 0.2
    keras-transformer translate runs/a in.txt --prefix begin.txt --forbidden words.tsv
    keras-transformer translate runs/a in.txt --sample 5 --temperature 0.8 --top-p 0.95 --seed 7
    keras-transformer translate runs/a in.txt --mbr 32
    keras-transformer translate runs/a in.txt --alignments
    """
    _check_decoding_mode(**options)
    files = [options.pop(name) for name in ("prefixes", "required", "forbidden")]
    with writer(output) as write:
        from keras_transformer.cli.text_lines import read_source, translate_lines

        inputs = [file, *(path for path in files if path)]
        total = count_lines(read_source(file, *files), *inputs)
        translator = _new_translator(run, options)
        with progress_bar(total, output) as bar, warning_lines():
            lines = read_source(file, *files)
            for text in translate_lines(translator, lines, progress=bar.update, **options):
                write(text)


def _check_decoding_mode(
    sample: int | None,
    mbr: int | None,
    n_best: int,
    alignments: bool,
    prefixes: Path | None,
    required: Path | None,
    forbidden: Path | None,
    temperature: float,
    top_k: int,
    top_p: float,
    **_: Any,
) -> None:
    if sample and mbr:
        raise UserError("--sample and --mbr exclude each other")
    if (sample or mbr) and (n_best > 1 or alignments or prefixes or required or forbidden):
        raise UserError(
            "--n-best, --alignments, --prefix, --required and --forbidden are options of beam "
            "search; --sample and --mbr do not take them"
        )
    if not (sample or mbr) and (temperature != 1 or top_k or top_p != 1):
        raise UserError("--temperature, --top-k and --top-p are options of --sample and --mbr")


def _new_translator(run: Path, options: dict[str, Any]) -> Any:
    """The `Translator` of a run or an ensemble; removes its own options from `options`."""
    from keras_transformer.decoding.translator import Translator
    from keras_transformer.run import Run

    runs = [Run.open(path) for path in (run, *options.pop("others"))]
    own = {name: options.pop(name) for name in TRANSLATOR_OPTIONS}
    for name in ("beam_size", "length_penalty"):
        if own[name] is None:
            own[name] = getattr(runs[0].recipe.evaluation, name)
    if options["n_best"] > own["beam_size"]:
        raise UserError(
            f"--n-best must be at most the beam size, {own['beam_size']}. "
            f"Received: {options['n_best']}"
        )
    tokenizers = [opened.tokenizer() for opened in runs]
    for opened, tokenizer in zip(runs, tokenizers, strict=True):
        if tokenizer.fingerprint != tokenizers[0].fingerprint:
            raise UserError(f"{opened.directory} has another tokenizer than {run}")
    model: Any
    if len(runs) == 1:
        model = runs[0].model()
    else:
        from keras_transformer.decoding.ensemble import Ensemble

        model = Ensemble([opened.model() for opened in runs])
    try:
        return Translator(model, tokenizers[0], **own)
    except ValueError as error:
        raise UserError(str(error)) from None
