"""The command `init`."""

import os
import re
import shlex
from contextlib import suppress
from pathlib import Path

import click
from pydantic import Field

from keras_transformer._files import output_file
from keras_transformer.cli import parameters
from keras_transformer.cli.terminal import render
from keras_transformer.data.corpus_report import MAX_LENGTH_RATIO, examine
from keras_transformer.data.filters import language_test
from keras_transformer.data.languages import LanguageCode, language_of
from keras_transformer.data.parallel_text import columns_and_rows, read_parallel
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import name_of
from keras_transformer.recipe.new_recipe import Text, choose_settings
from keras_transformer.runs.run import opened_runs


class _InitOptions(parameters.Options):
    source_language: LanguageCode | None = Field(None, title="CODE")
    """Code (BCP 47 or ISO 639) of the source language. Default: read from the file names."""
    target_language: LanguageCode | None = Field(None, title="CODE")
    """Code (BCP 47 or ISO 639) of the target language. Default: read from the file names."""
    from_: Path | None = Field(None, title="RUN")
    """Fine-tune this run: the recipe has its model, and training starts with its weights."""
    output: Path | None = None
    """Recipe to write. Must not exist. Default: a name made of the file names, in the current
    folder."""


@click.command("init")
@click.argument("source", type=parameters.existing_file)
@click.argument("target", type=parameters.existing_file, required=False)
@parameters.options_of(_InitOptions)
def init_command(source: Path, target: Path | None, options: _InitOptions) -> None:
    """Write a recipe for your own text.

    SOURCE and TARGET have a sentence and its translation on the same lines. Or SOURCE has both
    sides: TSV, CSV, JSON lines, Parquet, TMX, XLIFF or PO. Files may be compressed (gz, xz, bz2,
    zst). The recipe holds out text for validation and test. Its settings depend on the size of the
    text.

    \b
    keras-transformer init corpus.en corpus.de
    keras-transformer init memory.tmx --source-language en --target-language de
    keras-transformer init corpus.en corpus.de --from runs/opus_en_de
    keras-transformer init pairs.tsv.gz --source-language en --target-language ko --output my.yaml
    """
    languages = _languages(source, target, options)
    text = Text(source, target, *languages)
    output = options.output
    if output is None:
        stem = source.name.lstrip(".").partition(".")[0]
        output = Path(f"{stem if target is None else '_'.join((stem, *languages))}.yaml")
    if os.path.lexists(output):
        raise UserError(f"{output} already exists: choose another file with --output")
    kept = (x if x.isalpha() or x.isdecimal() or x in "_.-" else "_" for x in output.stem)
    name = "".join(kept).lstrip(".-") or "recipe"
    with output_file(output) as file:
        is_wrong_language = None
        with suppress(UserError):  # The detector is not installed, or knows neither language.
            is_wrong_language = language_test(languages)
        pairs = read_parallel(source, target, languages)
        report = examine(pairs, is_wrong_language=is_wrong_language)
        run, initial = None, None
        if options.from_:
            (run,) = opened_runs(options.from_)
            initial = name_of(run.directory), run.recipe
        recipe = choose_settings(report, run.tokenizer() if run else None)
        file.write(recipe.to_yaml(name, text, initial))
    sentences = (x for x, _ in report.sample if len(x) <= 100 and x.isprintable())
    sentence = next((x for x in sentences if x[0] != "-" and not {*"\\'"} & {*x}), "...")
    path = f"./{output}" if str(output).startswith("-") else str(output)
    words = {"recipe": path, "run": f"runs/{name}", "sentence": sentence}
    quoted = {key: shlex.quote(word) for key, word in words.items()}
    values = {"report": report, "recipe": recipe, "text": text, "output": str(output)}
    values |= {"initial": options.from_, "ratio": MAX_LENGTH_RATIO}
    click.echo(render("init.txt", **values, quoted=quoted))


def _languages(source: Path, target: Path | None, options: _InitOptions) -> tuple[str, str]:
    """Returns the languages of options, or of names such as corpus.en, en-de.tsv, or of columns."""
    if target is None:
        found = _language_pair(source.name)
    else:
        suffixes = ([language_of(x[1:]) for x in path.suffixes] for path in (source, target))
        found = [next(filter(None, reversed(codes)), None) for codes in suffixes]
    first, second = options.source_language or found[0], options.target_language or found[1]
    if target is None:
        columns, _ = columns_and_rows(source, (first, second))
        first, second = first or language_of(columns[0]), second or language_of(columns[1])
    if first and second:
        return first, second
    sides = (("--source-language", first), ("--target-language", second))
    missing = [option for option, language in sides if not language]
    raise UserError(
        "the file names do not end with a language, as corpus.en does: give the language with "
        f"{' and '.join(missing)}, such as {missing[0]} en"
    )


def _language_pair(name: str) -> list[str | None]:
    """Returns the last two languages beside each other in a name, such as en-de and pt_BR-en."""
    code = r"[a-z]{2}(?:[-_](?:[A-Z]{2}|[A-Z][a-z]{3}))?|[a-z]{3}[-_][A-Z][a-z]{3}"
    pairs = re.findall(rf"(?<![^\W_])(?=({code})[-_]({code})(?![^\W_]))", name)
    codes = [[language_of(x) for x in pair] for pair in pairs]
    return next(filter(all, reversed(codes)), [None, None])
