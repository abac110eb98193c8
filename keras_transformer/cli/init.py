"""The command `init`."""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keras_transformer._files import output_file
from keras_transformer.cli.common import existing_file
from keras_transformer.errors import UserError

if TYPE_CHECKING:
    from keras_transformer.data.corpus_report import CorpusReport
    from keras_transformer.recipe.new_recipe import NewRecipe, Text


_LONGEST_EXAMPLE = 100  # characters of the sentence in the command that is proposed


class _Language(click.ParamType):
    name = "code"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[A-Za-z]{2,3}([-_]\w{1,31})?", value, re.ASCII):
            self.fail(f"{value!r} is not a language code such as en or pt-BR.", param, ctx)
        return value


def _language_option(side: str) -> Callable[[Any], Any]:
    return click.option(
        f"--{side}-language",
        type=_Language(),
        help=f"ISO 639-1 code of the {side} language. Default: read from the file names.",
    )


@click.command("init")
@click.argument("source", type=existing_file)
@click.argument("target", type=existing_file, required=False)
@_language_option("source")
@_language_option("target")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Recipe to write. Must not exist. Default: a name made of the file names, in the current "
    "folder.",
)
def command(
    source: Path,
    target: Path | None,
    source_language: str | None,
    target_language: str | None,
    output: Path | None,
) -> None:
    """Write a recipe for your own text.

    SOURCE and TARGET have a sentence and its translation on the same lines. Or SOURCE is a TSV
    file: each line has a sentence, a tab and the translation. Files may be gzipped. The recipe
    holds out text for validation and test. Its settings depend on the size of the text.

    \b
    keras-transformer init corpus.en corpus.de
    keras-transformer init pairs.tsv.gz --source-language en --target-language ko --output my.yaml
    """
    from keras_transformer.data.corpus import read_parallel
    from keras_transformer.data.corpus_report import examine
    from keras_transformer.recipe.new_recipe import Text, choose_settings

    if target is None:
        _check_has_pairs(source)
    found = _languages(source, target)
    languages = [source_language or found[0], target_language or found[1]]
    sides = zip(("source", "target"), languages, strict=True)
    if missing := [f"--{side}-language" for side, language in sides if language is None]:
        raise UserError(
            "the file names do not end with a language, as corpus.en does: give the language with "
            f"{' and '.join(missing)}, such as {missing[0]} en"
        )
    if languages[0] == languages[1]:
        raise UserError(
            "source and target language must differ: give other codes with --source-language and "
            f"--target-language, such as en and en-simple. Received: {languages[0]} for both"
        )
    text = Text(source, target, *map(str, languages))
    output = output or Path(f"{_name(text)}.yaml")
    if os.path.lexists(output):
        raise UserError(f"{output} already exists: choose another file with --output")
    kept = (x if x.isalpha() or x.isdecimal() or x in "_.-" else "_" for x in output.stem)
    name = "".join(kept).lstrip(".-") or "recipe"
    with output_file(output) as file:
        report = examine(read_parallel(source, target))
        recipe = choose_settings(report)
        file.write(recipe.to_yaml(name, text))
    click.echo(_table(report, text))
    click.echo(_summary(recipe))
    click.echo(_next_commands(output, name, report))


def _check_has_pairs(path: Path) -> None:
    """Raises `UserError` if a file without a target file has no tab in its first line."""
    from keras_transformer.data.corpus import read_lines

    if "\t" not in next(read_lines(path), "\t"):
        raise UserError(
            f"line 1 of {path} has no tab, so it has no translation. Give the file with the "
            f"translations too: keras-transformer init {shlex.quote(str(path))} TARGET"
        )


def _languages(source: Path, target: Path | None) -> tuple[str | None, str | None]:
    """Reads languages from names such as corpus.en and corpus.de, or en-de.tsv."""
    if target is None:
        pair = re.search(r"(?:^|[._-])([a-z]{2})[-_]([a-z]{2})(?:[._-]|$)", source.name)
        return (pair[1], pair[2]) if pair else (None, None)
    return _language(source), _language(target)


def _language(path: Path) -> str | None:
    """Returns the last suffix of two letters, which is before suffixes such as .txt and .gz."""
    codes = [suffix[1:] for suffix in path.suffixes if re.fullmatch(r"\.[a-z]{2}", suffix)]
    return next((code for code in reversed(codes) if code != "gz"), None)


def _name(text: "Text") -> str:
    stem = text.source.name.lstrip(".").partition(".")[0]
    return stem if text.target is None else "_".join((stem, *text[2:]))


def _table(report: "CorpusReport", text: "Text") -> str:
    source, target = report.source, report.target
    rows: list[tuple[str, str, str]] = [
        ("", f"source ({text.source_language})", f"target ({text.target_language})"),
        ("different sentences", f"{source.different:,}", f"{target.different:,}"),
        ("words: median", f"{source.median:,}", f"{target.median:,}"),
        ("words: 95 %", f"{source.percentile_95:,}", f"{target.percentile_95:,}"),
        ("words: longest", f"{source.longest:,}", f"{target.longest:,}"),
        ("different characters", f"{source.characters:,}", f"{target.characters:,}"),
        ("scripts", _scripts(source.scripts), _scripts(target.scripts)),
    ]
    counts = [
        ("sentence pairs", report.pairs + report.empty),
        ("  with an empty side", report.empty),
        ("  repeated", report.repeated),
        ("  equal on both sides", report.equal),
    ]
    lines = [f"{label:<24}{count:>14,}" for label, count in counts]
    lines += [f"{label:<24}{first:>14}  {second:>14}".rstrip() for label, first, second in rows]
    return "\n".join(lines)


def _scripts(shares: dict[str, float]) -> str:
    return ", ".join(f"{script} {share:.0%}" for script, share in list(shares.items())[:2])


def _summary(recipe: "NewRecipe") -> str:
    scale = recipe.scale
    model = ", ".join(f"{key} {value}" for key, value in scale.model.items())
    batch = scale.tokens_per_batch * scale.accumulation_steps
    return f"""
held out    {recipe.held_out:,} pairs for validation, {recipe.held_out:,} for test
model       {model}, dropout {scale.dropout_rate}, vocabulary {recipe.vocabulary_size:,}
training    at most {recipe.steps:,} steps of {batch:,} target tokens, {recipe.passes:.0f} passes;
            stops earlier when the validation loss no longer falls
"""


def _next_commands(output: Path, name: str, report: "CorpusReport") -> str:
    path = f"./{output}" if str(output).startswith("-") else str(output)
    recipe, run = shlex.quote(path), shlex.quote(f"runs/{name}")
    sentences = (x for x, _ in report.sample if len(x) <= _LONGEST_EXAMPLE and x.isprintable())
    sentence = next((x for x in sentences if x[0] != "-" and not {*"\\'"} & {*x}), "...")
    return f"""Wrote {output}. Next:

keras-transformer train {recipe}
keras-transformer evaluate {run}
echo {shlex.quote(sentence)} | keras-transformer translate {run}"""
