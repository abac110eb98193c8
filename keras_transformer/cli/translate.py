"""The command `translate`."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from keras_transformer._files import as_line
from keras_transformer.cli import common
from keras_transformer.cli import search_options as options_of_search
from keras_transformer.cli.search_options import flags, take_options
from keras_transformer.decoding.options import DecodingOptions, SamplingOptions, SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.translation.engines import open_translator

if TYPE_CHECKING:
    pass


@click.command("translate")
@common.run_argument
@common.file_argument
@common.output_option
@common.engine_option
@common.shortlist_option
@common.checkpoint_option
@options_of_search.search_options
@click.option(
    "--overlong",
    type=click.Choice(["split", "truncate"]),
    default="split",
    help="What to do with lines that have more tokens than the model accepts: split the line and "
    "join the translations, or truncate the line.",
)
@click.option(
    "--ensemble",
    "others",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="RUN",
    help="Add the model of another run to an ensemble, which averages the probabilities of its "
    "models. All runs must have the same tokenizer. --checkpoint applies to all runs. Repeatable.",
)
@click.option(
    "--prefix",
    "prefixes",
    type=common.existing_file,
    help="File with the required beginning of each translation: one line per sentence.",
)
@click.option(
    "--required",
    type=common.existing_file,
    help="File with required words: one line per sentence, tabs between words.",
)
@click.option(
    "--forbidden",
    type=common.existing_file,
    help="File with forbidden words: one line per sentence, tabs between words.",
)
@click.option(
    "--sample",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Sample N translations per sentence instead of using beam search.",
)
@click.option(
    "--mbr",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Minimum Bayes risk decoding: sample N translations, and write the translation "
    "with the highest mean chrF against all N translations.",
)
@options_of_search.sampling_options
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    help="Random seed of sampling. Default: 0.",
)
@common.scores_option
@click.option(
    "--alignments",
    is_flag=True,
    help='Write a tab and word alignments, such as "0-0 1-2", after each translation.',
)
@common.batch_tokens_option(2048)
@common.backend_option
def command(run: Path, file: Path | None, output: Path | None, **options: Any) -> None:
    """Translate FILE, or standard input, with the model of RUN.

    The input has one sentence per line. If a line has several sentences, the translation may lack
    some of them. Standard input is translated line by line. On a terminal, the command asks for
    each sentence. The output has one line per sentence. With --n-best N or --sample N, the output
    has N lines per sentence. The lines of --n-best N are sorted, best first. The score of beam
    search is the log-probability in nats divided by the length penalty, plus the coverage penalty.
    The score is the log-probability with --sample, and the mean chrF with --mbr. An alignment such
    as 2-1 aligns word 2 of the sentence with word 1 of the translation, counted from 0. In the
    files of --prefix, --required and --forbidden, a blank line means no constraint. The defaults of
    the search options come from the `evaluation` section of the recipe. Sampling does not use this
    section.

    \b
    echo "twenty-six" | keras-transformer translate runs/quickstart
    keras-transformer translate runs/quickstart
    keras-transformer translate runs/quickstart in.txt --output out.txt
    keras-transformer translate runs/quickstart in.txt --beam-size 8 --n-best 3 --scores
    keras-transformer translate runs/a in.txt --ensemble runs/b --ensemble runs/c
    keras-transformer translate runs/a in.txt --no-repeat-ngram-size 3 --coverage-penalty 0.2
    keras-transformer translate runs/a in.txt --prefix begin.txt --forbidden words.tsv
    keras-transformer translate runs/a in.txt --sample 5 --temperature 0.8 --top-p 0.95 --seed 7
    keras-transformer translate runs/a in.txt --mbr 32
    keras-transformer translate runs/a in.txt --alignments
    keras-transformer translate runs/a in.txt --shortlist
    keras-transformer translate runs/a in.txt --checkpoint best
    """
    from keras_transformer._progress import compiling
    from keras_transformer.runs.run import Run

    samples = options["sample"] or options["mbr"]
    search = take_options(options, SearchOptions)
    sampling = take_options(options, SamplingOptions)
    _check_decoding_mode(search, sampling, **options)
    _check_engine(**options)
    if samples:
        sampling |= {"num_samples": samples, **search}
        options["sampling"] = options_of_search.checked(SamplingOptions, **sampling)
    files = [options.pop(name) for name in ("prefixes", "required", "forbidden")]
    inputs = [file, *(path for path in files if path)]
    common.check_other_file(output, *inputs)
    common.check_not_of_run(run, output=output)
    with common.writer(output) as write:
        total = common.count_lines(read_source(file, *files), *inputs)
        is_session, engine = common.is_session(file), options["engine"]
        if is_session:
            click.echo(f"Loading {run}.", err=True)
        runs = [Run.open(path) for path in (run, *options.pop("others"))]
        translator = _new_translator(runs, options, search)
        del options["sample"]
        if is_session:
            common.greet(runs[0].recipe.data.source_language)
            if engine == "keras" and compiling():
                hint = "The first translation takes longer, because the search is compiled."
                click.echo(hint, err=True)
        with common.progress_bar("translating", total, output) as bar:
            lines = read_source(file, *files)
            options |= {"progress": bar.update, "one_by_one": is_session}
            for text in translate_lines(translator, lines, **options):
                write(text)


def _check_decoding_mode(
    search: dict[str, Any],
    sampling: dict[str, Any],
    sample: int | None,
    mbr: int | None,
    seed: int | None,
    prefixes: Path | None,
    **others: Any,
) -> None:
    if sample and mbr:
        raise UserError("--sample and --mbr cannot be used together")
    if not (sample or mbr):
        if given := [*sampling, *(["seed"] if seed is not None else [])]:
            raise UserError(f"{flags(given)} can only be used with --sample or --mbr")
        return
    others["prefix"] = prefixes
    given = [x for x in ("prefix", "required", "forbidden", "alignments") if others[x]]
    if given := [*given, *(search.keys() - DecodingOptions.model_fields)]:
        raise UserError(f"{flags(given)} cannot be used with --sample or --mbr")


def _check_engine(engine: str, others: Sequence[Path], **options: Any) -> None:
    names = ("sample", "mbr", "required", "forbidden", "alignments", "shortlist")
    given = [name for name in names if options[name]] + ["ensemble"] * bool(others)
    given += ["checkpoint"] * (options["checkpoint"] is not None)
    if engine != "keras" and given:
        raise UserError(f"{flags(given)} cannot be used with --engine {engine}: use --engine keras")


def _new_translator(runs: list[Any], options: dict[str, Any], search: dict[str, Any]) -> Any:
    """Returns the `Translator` of a run or of an ensemble of several runs.

    Removes the used entries from `options`.
    """
    of_recipe = runs[0].recipe.evaluation.search_options
    make = SearchOptions if "sampling" in options else of_recipe
    search_options = options_of_search.checked(make, **search)
    overlong, engine = options.pop("overlong"), options.pop("engine")
    keys = ("use_shortlist", "checkpoint", "tokens_per_batch")
    options["use_shortlist"] = options.pop("shortlist")
    chosen = {key: options.pop(key) for key in keys}
    try:
        return open_translator(runs, search_options, overlong=overlong, engine=engine, **chosen)
    except ValueError as error:
        raise UserError(str(error)) from None


class _Line(NamedTuple):
    """Holds a sentence and the constraints on its translation."""

    sentence: str
    prefix: str
    required: list[str]
    forbidden: list[str]


def read_source(
    file: Path | None,
    prefixes: Path | None = None,
    required: Path | None = None,
    forbidden: Path | None = None,
) -> Iterator[_Line]:
    """Yields each sentence with its constraints.

    If `file` is None, the sentences come from standard input.

    Raises:
        UserError: While iterating, if a line is not UTF-8, or the files have different numbers of
            lines.
    """
    from keras_transformer.data.corpus import read_lines, read_standard_input

    paths = (prefixes, required, forbidden)
    columns = [read_lines(path) if path else None for path in paths]
    typed = common.prompted_lines() if common.is_session(file) else read_standard_input()
    for sentence in read_lines(file) if file else typed:
        values = ["" if column is None else next(column, None) for column in columns]
        for path, value in zip(paths, values, strict=True):
            if value is None:
                raise UserError(f"{path} has fewer lines than there are sentences")
        prefix, *words = (value or "" for value in values)
        yield _Line(sentence, prefix, *(value.split("\t") for value in words))
    for path, column in zip(paths, columns, strict=True):
        if column and next(column, None) is not None:
            raise UserError(f"{path} has more lines than there are sentences")


def translate_lines(
    translator: Any,
    lines: Iterator[_Line],
    sampling: SamplingOptions | None = None,
    mbr: int | None = None,
    seed: int | None = None,
    scores: bool = False,
    alignments: bool = False,
    progress: Callable[[int], Any] | bool = False,
    one_by_one: bool = False,
) -> Iterator[str]:
    """Translates the lines in chunks, and yields the output text of each chunk.

    With `one_by_one`, a chunk is one line, and the next line is read after the text is used. If
    `mbr` is set, the translation of a sentence is the sample with minimum Bayes risk. For
    `progress`, see `Translator.translate`.

    Raises:
        UserError: If the search cannot meet the constraints of a sentence.
    """
    from keras_transformer.data.corpus import available_chunks
    from keras_transformer.translation.base_translator import STREAMED_LINES

    first_index = 0
    chunks = ([x] for x in lines) if one_by_one else available_chunks(lines, STREAMED_LINES)
    for chunk in chunks:
        if sampling:
            draw = translator.translate_mbr if mbr else translator.sample
            place = {"seed": seed or 0, "first_index": first_index}
            found = draw([line.sentence for line in chunk], sampling, progress=progress, **place)
        else:
            found = _search(translator, chunk, first_index, alignments, progress)
        yield "".join(_text(hypothesis, scores) for best in found for hypothesis in best)
        first_index += len(chunk)


def _search(
    translator: Any, chunk: Sequence[_Line], first_index: int, alignments: bool, progress: Any
) -> Any:
    from keras_transformer.translation.target_constraints import ConstraintError

    sentences, prefixes, required, forbidden = zip(*chunk, strict=True)
    constraints = {"prefixes": prefixes, "required": required, "forbidden": forbidden}
    try:
        return translator.translate_nbest(
            sentences, **constraints, alignments=alignments, progress=progress
        )
    except ConstraintError as error:
        raise UserError(f"line {first_index + error.sentence + 1}: {error.reason}") from None


def _text(hypothesis: Any, scores: bool) -> str:
    fields = [f"{hypothesis.score:.4f}"] if scores else []
    fields.append(as_line(hypothesis.text))
    if hypothesis.alignment is not None:
        fields.append(" ".join(f"{source}-{target}" for source, target in hypothesis.alignment))
    return "\t".join(fields) + "\n"
