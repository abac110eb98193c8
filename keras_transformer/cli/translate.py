"""The command `translate`."""

from pathlib import Path
from typing import Any

import click

from keras_transformer.cli.common import (
    count_lines,
    existing_file,
    file_argument,
    output_option,
    progress_bar,
    run_argument,
    scores_option,
    warning_lines,
    writer,
)
from keras_transformer.cli.search_options import (
    checked,
    flags,
    sampling_options,
    search_options,
    take_options,
)
from keras_transformer.decoding.options import DecodingOptions, SamplingOptions, SearchOptions
from keras_transformer.errors import UserError


@click.command("translate")
@run_argument
@file_argument
@output_option
@search_options
@click.option(
    "--overlong",
    type=click.Choice(["split", "truncate"]),
    default="split",
    show_default=True,
    help="Lines with more tokens than the model's maximum: translate them in parts, or truncate.",
)
@click.option(
    "--ensemble",
    "others",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="RUN",
    help="Another run of the ensemble: the models' probabilities are averaged. The tokenizers "
    "must be equal. Repeatable.",
)
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
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Sample N translations per sentence instead of beam search.",
)
@click.option(
    "--mbr",
    type=click.IntRange(min=1),
    metavar="N",
    help="Minimum Bayes risk decoding: sample N translations and write the one with the highest "
    "expected chrF.",
)
@sampling_options
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Random seed of sampling.",
)
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
    of --prefix, --required or --forbidden means no constraint. The defaults of the search are those
    of the recipe's section `evaluation`.

    \b
    echo "twenty-six" | keras-transformer translate runs/quickstart
    keras-transformer translate runs/quickstart in.txt --output out.txt
    keras-transformer translate runs/quickstart in.txt --beam-size 8 --n-best 3 --scores
    keras-transformer translate runs/a in.txt --ensemble runs/b --ensemble runs/c
    keras-transformer translate runs/a in.txt --no-repeat-ngram-size 3 --coverage-penalty 0.2
    keras-transformer translate runs/a in.txt --prefix begin.txt --forbidden words.tsv
    keras-transformer translate runs/a in.txt --sample 5 --temperature 0.8 --top-p 0.95 --seed 7
    keras-transformer translate runs/a in.txt --mbr 32
    keras-transformer translate runs/a in.txt --alignments
    """
    samples = options["sample"] or options["mbr"]
    search = take_options(options, SearchOptions)
    sampling = take_options(options, SamplingOptions)
    _check_decoding_mode(search, sampling, **options)
    files = [options.pop(name) for name in ("prefixes", "required", "forbidden")]
    with writer(output) as write:
        from keras_transformer.cli.text_lines import read_source, translate_lines

        inputs = [file, *(path for path in files if path)]
        total = count_lines(read_source(file, *files), *inputs)
        translator = _new_translator(run, options, {} if samples else search)
        if samples:
            shared = {name: search[name] for name in DecodingOptions.model_fields if name in search}
            options["sampling"] = SamplingOptions(num_samples=samples, **shared, **sampling)
        del options["sample"]
        with progress_bar(total, output) as bar, warning_lines():
            lines = read_source(file, *files)
            for text in translate_lines(translator, lines, progress=bar.update, **options):
                write(text)


def _check_decoding_mode(
    search: dict[str, Any],
    sampling: dict[str, Any],
    sample: int | None,
    mbr: int | None,
    seed: int,
    alignments: bool,
    prefixes: Path | None,
    required: Path | None,
    forbidden: Path | None,
    **_: Any,
) -> None:
    if sample and mbr:
        raise UserError("--sample and --mbr exclude each other")
    if not (sample or mbr):
        if sampling or seed:
            names = [*sampling, *(["seed"] if seed else [])]
            raise UserError(f"only --sample and --mbr take {flags(names)}")
        return
    files = {"prefix": prefixes, "required": required, "forbidden": forbidden}
    given = [*(search.keys() - DecodingOptions.model_fields), *(x for x in files if files[x])]
    given += ["alignments"] if alignments else []
    if given:
        raise UserError(f"only beam search takes {flags(given)}, --sample and --mbr do not")


def _new_translator(run: Path, options: dict[str, Any], search: dict[str, Any]) -> Any:
    """The `Translator` of a run or an ensemble; removes its own options from `options`."""
    from keras_transformer.decoding.translator import Translator
    from keras_transformer.run import Run

    runs = [Run.open(path) for path in (run, *options.pop("others"))]
    search_options = checked(runs[0].recipe.evaluation.search_options, **search)
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
        return Translator(model, tokenizers[0], search_options, options.pop("overlong"))
    except ValueError as error:
        raise UserError(str(error)) from None
