"""The command `init`."""

import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import click
from pydantic import Field

from keras_transformer._files import output_file
from keras_transformer.cli import common
from keras_transformer.cli.common import AnyPath, render
from keras_transformer.errors import UserError


def _language(code: str) -> str:
    if not re.fullmatch(r"[A-Za-z]{2,3}([-_]\w{1,8}){0,4}", code, re.ASCII):
        raise click.BadParameter(f"{code!r} is not a language code such as en or pt-BR.")
    return code


_LANGUAGE = click.types.FuncParamType(_language)


class InitOptions(common.Options):
    """The options of `init`."""

    source_language: Annotated[str | None, _LANGUAGE] = Field(None, title="CODE")
    """Code (BCP 47 or ISO 639) of the source language. Default: read from the file names."""
    target_language: Annotated[str | None, _LANGUAGE] = Field(None, title="CODE")
    """Code (BCP 47 or ISO 639) of the target language. Default: read from the file names."""
    output: AnyPath = None
    """Recipe to write. Must not exist. Default: a name made of the file names, in the current
    folder."""


@click.command("init")
@click.argument("source", type=common.existing_file)
@click.argument("target", type=common.existing_file, required=False)
@common.options_of(InitOptions)
def init_command(source: Path, target: Path | None, options: InitOptions) -> None:
    """Write a recipe for your own text.

    SOURCE and TARGET have a sentence and its translation on the same lines. Or SOURCE is a TSV
    file: each line has a sentence, a tab and the translation. Files may be gzipped. The recipe
    holds out text for validation and test. Its settings depend on the size of the text.

    \b
    keras-transformer init corpus.en corpus.de
    keras-transformer init pairs.tsv.gz --source-language en --target-language ko --output my.yaml
    """
    from keras_transformer.data.corpus import read_lines, read_parallel
    from keras_transformer.data.corpus_report import examine
    from keras_transformer.recipe.new_recipe import Text, choose_settings

    if target is None and "\t" not in next(read_lines(source), "\t"):
        raise UserError(
            f"line 1 of {source} has no tab, so it has no translation. Give the file with the "
            f"translations too: keras-transformer init {shlex.quote(str(source))} TARGET"
        )
    text = Text(source, target, *_languages(source, target, options))
    output = options.output
    if output is None:
        stem = source.name.lstrip(".").partition(".")[0]
        output = Path(f"{stem if target is None else '_'.join((stem, *text[2:]))}.yaml")
    if os.path.lexists(output):
        raise UserError(f"{output} already exists: choose another file with --output")
    kept = (x if x.isalpha() or x.isdecimal() or x in "_.-" else "_" for x in output.stem)
    name = "".join(kept).lstrip(".-") or "recipe"
    with output_file(output) as file:
        report = examine(read_parallel(source, target))
        recipe = choose_settings(report)
        file.write(recipe.to_yaml(name, text))
    sentences = (x for x, _ in report.sample if len(x) <= 100 and x.isprintable())
    sentence = next((x for x in sentences if x[0] != "-" and not {*"\\'"} & {*x}), "...")
    path = f"./{output}" if str(output).startswith("-") else str(output)
    words = {"recipe": path, "run": f"runs/{name}", "sentence": sentence}
    quoted = {key: shlex.quote(word) for key, word in words.items()}
    values = {"report": report, "recipe": recipe, "text": text, "output": str(output)}
    click.echo(render("init.txt", **values, quoted=quoted))


def _languages(source: Path, target: Path | None, options: InitOptions) -> list[str]:
    """Returns the languages given, or read from names such as corpus.en and en-de.tsv."""
    if target is None:
        pair = re.search(r"(?:^|[._-])([a-z]{2})[-_]([a-z]{2})(?:[._-]|$)", source.name)
        found = [*pair.groups()] if pair else [None, None]
    else:
        found = [_language_of(source), _language_of(target)]
    languages = [options.source_language or found[0], options.target_language or found[1]]
    sides = zip(("source", "target"), languages, strict=True)
    if missing := [f"--{side}-language" for side, language in sides if language is None]:
        raise UserError(
            "the file names do not end with a language, as corpus.en does: give the language with "
            f"{' and '.join(missing)}, such as {missing[0]} en"
        )
    return [str(language) for language in languages]


def _language_of(path: Path) -> str | None:
    """Returns the last suffix of two letters, which is before suffixes such as .txt and .gz."""
    codes = [suffix[1:] for suffix in path.suffixes if re.fullmatch(r"\.[a-z]{2}", suffix)]
    return next((code for code in reversed(codes) if code != "gz"), None)
