"""The command `translate`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from keras_transformer._files import as_line
from keras_transformer._progress import compiling
from keras_transformer.cli import common
from keras_transformer.cli.search_options import (
    Given,
    checked,
    flags,
    sampling_options,
    search_options,
)
from keras_transformer.data.corpus import available_chunks, read_lines, read_standard_input
from keras_transformer.decoding.options import DecodingOptions, SamplingOptions, SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.runs.run import Checkpoint, Engine, Run
from keras_transformer.translation.base_translator import STREAMED_LINES, Overlong
from keras_transformer.translation.hypothesis import Hypothesis
from keras_transformer.translation.open_run import open_translator
from keras_transformer.translation.target_constraints import ConstraintError


@click.command("translate")
@common.run_argument
@common.file_argument
@common.output_option
@common.engine_option
@common.shortlist_option
@common.checkpoint_option
@search_options
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
@sampling_options
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
def command(
    run: Path,
    file: Path | None,
    output: Path | None,
    engine: Engine,
    shortlist: bool,
    checkpoint: Checkpoint | None,
    search: Given,
    overlong: Overlong,
    others: Sequence[Path],
    prefix: Path | None,
    required: Path | None,
    forbidden: Path | None,
    sample: int | None,
    mbr: int | None,
    sampling: Given,
    seed: int | None,
    scores: bool,
    alignments: bool,
    tokens_per_batch: int | None,
) -> None:
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
    draw = _sampling(sample, mbr, seed, sampling, search)
    of_search: Given = {"prefix": prefix, "required": required, "forbidden": forbidden}
    of_search["alignments"] = alignments or None
    given = [name for name, value in of_search.items() if value is not None]
    if draw and (refused := [*given, *(search.keys() - DecodingOptions.model_fields)]):
        raise UserError(f"{flags(refused)} cannot be used with --sample or --mbr")
    if engine == "ctranslate2" and (draw or given):
        refused = given or ["mbr" if mbr else "sample"]
        raise UserError(
            f"{flags(refused)} cannot be used with --engine ctranslate2: use --engine keras"
        )
    common.check_other_file(output, file, prefix, required, forbidden)
    source = _Source(file, prefix, required, forbidden)
    with common.writer(output) as write:
        lines, total = source.lines()
        if source.is_session:
            click.echo(f"Loading {run}.", err=True)
        runs = [Run.open(path) for path in (run, *others)]
        make = SearchOptions if draw else runs[0].recipe.evaluation.search_options
        options = checked(make, **search)
        with common.user_errors():
            translator = open_translator(
                runs,
                options,
                overlong=overlong,
                engine=engine,
                use_shortlist=shortlist,
                checkpoint=checkpoint,
                tokens_per_batch=tokens_per_batch,
            )
        if source.is_session:
            common.greet(runs[0].recipe.data.source_language)
            if engine == "keras" and compiling():
                hint = "The first translation takes longer, because the search is compiled."
                click.echo(hint, err=True)
        with common.progress_bar("translating", total, output) as bar:
            chunks: Iterable[list[_Line]] = ([line] for line in lines)
            if not source.is_session:
                chunks = available_chunks(lines, STREAMED_LINES)
            for found in _translations(translator, chunks, draw, alignments, bar.update):
                write("".join(_text(x, scores) for best in found for x in best))


@dataclass(frozen=True)
class _Draw:
    """How --sample and --mbr draw translations."""

    options: SamplingOptions
    seed: int
    is_mbr: bool


def _sampling(
    sample: int | None, mbr: int | None, seed: int | None, sampling: Given, search: Given
) -> _Draw | None:
    """Returns how to draw translations, or None for beam search."""
    if sample and mbr:
        raise UserError("--sample and --mbr cannot be used together")
    if not (sample or mbr):
        if given := [*sampling, *(["seed"] if seed is not None else [])]:
            raise UserError(f"{flags(given)} can only be used with --sample or --mbr")
        return None
    shared = {name: x for name, x in search.items() if name in DecodingOptions.model_fields}
    options = checked(SamplingOptions, num_samples=sample or mbr, **sampling, **shared)
    return _Draw(options, seed or 0, bool(mbr))


@dataclass(frozen=True)
class _Line:
    """Holds a sentence and the constraints on its translation."""

    sentence: str
    prefix: str
    required: list[str]
    forbidden: list[str]


@dataclass(frozen=True)
class _Source:
    """The files with the sentences and the constraints. Without a file, standard input."""

    file: Path | None
    prefix: Path | None
    required: Path | None
    forbidden: Path | None

    @property
    def is_session(self) -> bool:
        """Whether a user types the sentences."""
        return common.is_session(self.file)

    def lines(self) -> tuple[Iterable[_Line], int | None]:
        """Returns the lines and their number. The number of lines of a stream is not known.

        Raises:
            UserError: If a line is not UTF-8, or the files have different numbers of lines. While
                iterating, if the lines come from a stream.
        """
        if self.file is None or not self.file.is_file():
            return self._read(), None
        lines = list(self._read())
        return lines, len(lines)

    def _read(self) -> Iterator[_Line]:
        paths = (self.prefix, self.required, self.forbidden)
        columns = [read_lines(path) if path else None for path in paths]
        typed = common.prompted_lines() if self.is_session else read_standard_input()
        for sentence in read_lines(self.file) if self.file else typed:
            values = ["" if column is None else next(column, None) for column in columns]
            for path, value in zip(paths, values, strict=True):
                if value is None:
                    raise UserError(f"{path} has fewer lines than there are sentences")
            prefix, *words = (value or "" for value in values)
            yield _Line(sentence, prefix, *(value.split("\t") for value in words))
        for path, column in zip(paths, columns, strict=True):
            if column and next(column, None) is not None:
                raise UserError(f"{path} has more lines than there are sentences")


def _translations(
    translator: Any,
    chunks: Iterable[list[_Line]],
    draw: _Draw | None,
    alignments: bool,
    progress: Callable[[int], Any],
) -> Iterator[list[list[Hypothesis]]]:
    """Yields the hypotheses of the sentences of each chunk.

    Raises:
        UserError: If the search cannot meet the constraints of a sentence.
    """
    first_index = 0
    for chunk in chunks:
        sentences = [line.sentence for line in chunk]
        if draw:
            sample = translator.translate_mbr if draw.is_mbr else translator.sample
            place = {"seed": draw.seed, "first_index": first_index}
            yield sample(sentences, draw.options, progress=progress, **place)
        else:
            try:
                yield translator.translate_nbest(
                    sentences,
                    prefixes=[line.prefix for line in chunk],
                    required=[line.required for line in chunk],
                    forbidden=[line.forbidden for line in chunk],
                    alignments=alignments,
                    progress=progress,
                )
            except ConstraintError as error:
                number = first_index + error.sentence + 1
                raise UserError(f"line {number}: {error.reason}") from None
        first_index += len(chunk)


def _text(hypothesis: Hypothesis, scores: bool) -> str:
    fields = [f"{hypothesis.score:.4f}"] if scores else []
    fields.append(as_line(hypothesis.text))
    if hypothesis.alignment is not None:
        fields.append(" ".join(f"{source}-{target}" for source, target in hypothesis.alignment))
    return "\t".join(fields) + "\n"
