"""The commands `translate` and `generate`."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from click.types import FuncParamType
from pydantic import Field

from keras_transformer._files import as_line, check_other_file, resumable_file, sha256_of
from keras_transformer.cli import parameters, terminal
from keras_transformer.cli.parameters import ExistingFile, Given, checked, flags
from keras_transformer.data.text_files import available_chunks, read_lines
from keras_transformer.decoding.options import DecodingOptions, SamplingOptions, SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.formats.engines import open_translator
from keras_transformer.runs.run import opened_runs
from keras_transformer.translation.base_translator import STREAMED_LINES, CopyUnknown, Overlong
from keras_transformer.translation.markup import Segment
from keras_transformer.translation.target_constraints import ConstraintError

# What is asked of the hypotheses, beside their texts.
_OF_HYPOTHESES = ("alignments", "word_scores", "scores")
# A sentence, and the prefix, the required and the forbidden words of its translation.
_Line = tuple[str, str, list[str], list[str]]


class _TranslateOptions(parameters.TranslatorOptions):
    output: Path | None = None
    """Output file. The file is written only if the command succeeds. Default: standard output."""
    scores: bool = False
    """Write the score and a tab before each translation."""
    overlong: Overlong = "split"
    """What to do with lines that have more tokens than the model accepts: split the line and join
    the translations, or truncate the line."""
    copy_unknown: CopyUnknown = "lines"
    """Copy lines without a known word, with a warning. never: translate them (if RUN has learned
    the forms of words, with --as-written). characters: also copy single unknown characters, in
    place of the word that gives them more than half of its attention."""
    ensemble: tuple[Path, ...] = Field((), title="RUN")
    """Add the model of another run to an ensemble, which averages the probabilities of its models.
    All runs must have the same tokenizer. --checkpoint applies to all runs. Repeatable."""
    prefix: ExistingFile = None
    """File with the required beginning of each translation: one line per sentence."""
    required: ExistingFile = None
    """File with required words: one line per sentence, tabs between words."""
    forbidden: ExistingFile = None
    """File with forbidden words: one line per sentence, tabs between words."""
    alignments: bool = False
    """Write a tab and word alignments, such as "0-0 1-2", after each translation."""
    word_scores: bool = False
    """Write a tab and the mean log-probability (nats) of the tokens of each word after each
    translation."""
    format: (
        Literal["text", "html", "markdown", "srt", "vtt", "json", "yaml", "po", "xliff"] | None
    ) = None
    """Format of FILE, if its suffix does not tell. text means lines. Files of the others are
    translated as a whole, with placeholders, numbers and code as they are."""
    protect: bool = False
    """Keep placeholders such as {name} and %s, URLs, e-mail addresses, identifiers, numbers and
    emoji as they are. If RUN has learned the forms of words, all but emoji, and numbers that the
    translation would change, stay anyway."""
    glossary: ExistingFile = None
    """File with a term, a tab and its translation on each line. Terms are whole words in any case,
    and each form of a word is a term. A third column =case finds a term only as it is written."""
    as_written: bool = False
    """Translate lines in one case, titles, items such as "1. One", lines without a final mark, of
    several sentences or with placeholders, URLs, numbers, or words and marks that RUN has not
    learned as they are written. Otherwise, the model reads them as sentences, and these stay, if
    RUN has learned the forms of words."""
    source_language: str | None = Field(None, title="CODE")
    """Source language of a multilingual model, such as fr of M2M100 and fra_Latn of NLLB. Default:
    that of RUN."""
    target_language: str | None = Field(None, title="CODE")
    """Target language of a multilingual model. OPUS-MT's are tags without marks, such as por."""
    sample: int | None = Field(None, ge=1, le=10_000, title="N")
    """Sample N translations per sentence instead of using beam search."""
    mbr: int | None = Field(None, ge=1, le=10_000, title="N")
    """Minimum Bayes risk decoding: sample N translations, and write the translation with the
    highest mean chrF against all N translations."""
    seed: int | None = Field(None, ge=0, le=2**64 - 1)
    """Random seed of sampling. Default: 0."""
    resume: bool = False
    """Keep the translations that are finished if the command is stopped, and continue with them if
    it runs again. For FILE and --output."""
    shard: Annotated[Any, FuncParamType(parameters.shard)] = Field(None, title="NUMBER/COUNT")
    """Translate only a part of FILE, such as 2/4: the second of 4. The outputs of all parts, one
    after the other, are the output for the whole file. A part begins at a multiple of 1,024
    lines."""


@click.command("translate")
@parameters.run_argument
@click.argument("file", type=parameters.existing_file, required=False)
@parameters.options_of(_TranslateOptions)
@parameters.search_options
@parameters.sampling_options
@parameters.backend_option
def translate_command(
    run: Path, file: Path | None, options: _TranslateOptions, search: Given, sampling: Given
) -> None:
    """Translate FILE, or standard input, with the model of RUN.

    HTML, Markdown, subtitles (SRT, WebVTT), JSON, YAML, PO and XLIFF are known by the suffix of
    FILE. All but the text stays as it is. Of PO and XLIFF, only messages without a translation are
    translated.

    Other input is translated line by line. A line of several sentences is translated sentence by
    sentence if the lines of RUN's training text are sentences; otherwise, the translation may lack
    some of them. On a terminal, the command asks for each line. The output has one line per line of
    input. With --n-best N or --sample N, it has N lines for each. The lines of --n-best N are
    sorted, best first. The score of beam search is the log-probability in nats divided by the
    length penalty, plus the coverage penalty. The score is the log-probability with --sample, and
    the mean chrF with --mbr. An alignment such as 2-1 aligns word 2 of the sentence with word 1 of
    the translation, counted from 0. In the files of --prefix, --required and --forbidden, a blank
    line means no constraint. The defaults of the search options come from the `evaluation` section
    of the recipe. Sampling does not use this section.

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
    keras-transformer translate runs/a in.txt --protect --glossary terms.tsv
    keras-transformer translate runs/a page.html --output page.de.html --glossary terms.tsv
    keras-transformer translate runs/a page.xml --format html --output page.de.xml
    keras-transformer translate runs/nllb in.txt --target-language fra_Latn
    keras-transformer translate runs/a in.txt --shortlist
    keras-transformer translate runs/a in.txt --checkpoint best
    keras-transformer translate runs/a in.txt --output out.txt --resume
    keras-transformer translate runs/a in.txt --output out.2.txt --shard 2/4
    """
    document, count = _document_format(options, file), options.sample or options.mbr
    _refuse(options, {*options.model_fields_set, *sampling, *search}, file, document)
    constraints = (options.prefix, options.required, options.forbidden)
    check_other_file(options.output, file, *constraints)
    drawn = checked(SamplingOptions, num_samples=count, **sampling, **search) if count else None
    runs = opened_runs([run, *options.ensemble])
    recipe = runs[0].recipe
    found = checked(SearchOptions if drawn else recipe.evaluation.search_options, **search)
    if document and file:
        return _translate_document(runs, file, document, options, found)
    with _output(options, file, runs, drawn or found) as (write, finished):
        sentences = terminal.input_lines(file, recipe.data.source_language)
        chunks, first, total = _chunks(_lines(sentences, *constraints), file, options.shard)
        if is_session := terminal.is_session(file):
            click.echo(f"Loading {run}.", err=True)
        translator = _opened(runs, options, found)
        if is_session and translator.waiting:
            hint = "The first translation takes longer, because the search is compiled."
            click.echo(hint, err=True)
        settings: Given = {}
        if options.protect or options.glossary:
            settings = {"glossary": _glossary(options), "word_scores": options.word_scores}
        elif found.n_best > 1 or options.model_fields_set & {*_OF_HYPOTHESES}:
            settings = options.model_dump(include={"alignments", "word_scores"})
        if drawn:
            sample = translator.translate_mbr if options.mbr else translator.sample
            settings = {"sample": sample, "options": drawn, "seed": options.seed or 0}
        applied: Counter[tuple[str, str]] = Counter()
        first += (done := finished * STREAMED_LINES)
        shown = (total, translator.waiting, options.output, done)
        with terminal.progress_bar("translating", *shown) as bar:
            for chunk in itertools.islice(chunks, finished, None):
                results = _hypotheses(translator, chunk, first, progress=bar.update, **settings)
                write("".join(_text(x, options.scores) for best in results for x in best))
                if options.glossary:
                    applied.update(x for best in results for found in best for x in found.terms)
                first += len(chunk)
        if options.glossary:
            _tell_terms(applied)


def _document_format(options: _TranslateOptions, file: Path | None) -> str | None:
    """Returns the format of a document, or None for lines."""
    from keras_transformer.documents import format_of

    format = options.format or (format_of(file) if file else None)
    return None if format == "text" else format


def _refuse(
    options: _TranslateOptions, given: set[str], file: Path | None, document: str | None
) -> None:
    """Raises `UserError` for given options that have no effect with the others or the file."""
    words, draws = {"prefix", "required", "forbidden"}, {"sample", "mbr"}
    of_lines = words | draws | {"alignments", "scores", "n_best"}
    of_keras = words | draws | {"copy_unknown characters"}
    of_beams = SearchOptions.model_fields.keys() - DecodingOptions.model_fields
    of_draws = SamplingOptions.model_fields.keys() - DecodingOptions.model_fields
    drawn, alone = given & draws, given & of_lines
    if options.copy_unknown == "characters":
        given = given | {"copy_unknown characters"}
    needs, excludes = "can only be used with", "cannot be used with"
    keras = f"--engine {options.engine}: use --engine keras"
    text = f"documents ({document}): use --format text"
    # Whether each rule applies, the options that it refuses, and why.
    rules = (
        (not drawn, of_draws | {"seed"}, f"{needs} --sample or --mbr"),
        (drawn, words | of_beams | {"alignments", "word_scores"}, f"{excludes} --sample or --mbr"),
        (alone, {"protect", "glossary"}, f"{excludes} {flags(alone)}"),
        (options.engine != "keras", of_keras, f"{excludes} {keras}"),
        (not (file and file.is_file()), {"resume", "shard"}, f"{needs} FILE"),
        (options.output is None, {"resume"}, f"{needs} --output"),
        (document, of_lines | {"word_scores", "shard", "resume"}, f"{excludes} {text}"),
    )
    if len(drawn) == 2:
        raise UserError("--sample and --mbr cannot be used together")
    for applies, about, why in rules:
        if applies and (refused := given & about):
            raise UserError(f"{flags(refused)} {why}")
    if document and file is None:
        raise UserError(f"standard input {excludes} {text}")


def _translate_document(
    runs: list[Any], file: Path, format: str, options: _TranslateOptions, search: Any
) -> None:
    from keras_transformer.documents import read_document

    data, glossary = runs[0].recipe.data, _glossary(options)
    source = options.source_language or data.source_language
    document = read_document(
        file, format, (source, options.target_language or data.target_language)
    )
    with terminal.bytes_writer(options.output) as write:
        translator = _opened(runs, options, search)
        shown = (len(document.segments), translator.waiting, options.output)
        with terminal.progress_bar("translating", *shown) as bar:
            content, segments = document.translate(translator, glossary, bar.update)
        write(content)
    if glossary:
        _tell_terms(Counter(term for segment in segments for term in segment.terms))


def _opened(runs: list[Any], options: _TranslateOptions, search: Any) -> Any:
    names = {"overlong", "copy_unknown", "as_written", "source_language", "target_language"}
    chosen = options.model_dump(include=names)
    return checked(open_translator, runs, **options.arguments(), **chosen, options=search)


def _glossary(options: _TranslateOptions) -> Any:
    from keras_transformer.translation.glossary import Glossary

    return Glossary.read(options.glossary) if options.glossary else None


def _tell_terms(applied: Counter[tuple[str, str]]) -> None:
    shown = ", ".join(f"{x} → {y} ({count})" for (x, y), count in applied.most_common())
    click.echo(f"Terms of the glossary: {shown or 'none'}", err=True)


@contextmanager
def _output(
    options: _TranslateOptions, file: Path | None, runs: list[Any], search: DecodingOptions
) -> Iterator[tuple[Callable[[str], Any], int]]:
    """Yields a function that writes text, and the number of chunks that are already written."""
    if not (options.resume and options.output):
        with terminal.writer(options.output) as write:
            yield write, 0
        return
    inputs = (file, options.prefix, options.required, options.forbidden, options.glossary)
    forms = [run.word_forms_path for run in runs if run.word_forms_path.exists()]
    texts = [sha256_of(path) for path in (*inputs, *forms) if path]
    models = [run.hashes(options.checkpoint) for run in runs]
    given = options.model_dump(exclude={"output"})
    made_from = (given, search, texts, models, os.environ.get("KERAS_BACKEND"))
    lines = options.sample or (search.n_best if isinstance(search, SearchOptions) else 1)
    with resumable_file(options.output, lines * STREAMED_LINES, made_from) as opened:
        yield opened


def _chunks(
    lines: Iterable[_Line], file: Path | None, shard: tuple[int, int] | None
) -> tuple[Iterable[list[_Line]], int, int | None]:
    """Returns lists of lines to translate together, the index of the first line, and their number.

    The chunks of a file do not depend on time or `shard`, so the translations are always the same.
    """
    if terminal.is_session(file):
        return ([x] for x in lines), 0, None
    if not (file and file.is_file()):  # The number of lines of a stream is not known.
        return available_chunks(lines, STREAMED_LINES), 0, None
    found, (number, count) = list(lines), shard or (1, 1)
    starts = range(0, len(found), STREAMED_LINES)
    starts = starts[len(starts) * (number - 1) // count : len(starts) * number // count]
    chunks = [found[start : start + STREAMED_LINES] for start in starts]
    return chunks, starts.start, sum(map(len, chunks))


def _lines(sentences: Iterable[str], *constraints: Path | None) -> Iterator[_Line]:
    """Yields the sentences with the lines of the files of --prefix, --required and --forbidden."""
    given = [path for path in constraints if path]
    for sentence, *found in itertools.zip_longest(sentences, *map(read_lines, given)):
        values = dict(zip(given, found, strict=True))
        if wrong := [path for path, x in values.items() if (x is None) != (sentence is None)]:
            many = "more" if sentence is None else "fewer"
            raise UserError(f"{wrong[0]} has {many} lines than there are sentences")
        prefix, required, forbidden = (values[path] if path else "" for path in constraints)
        yield sentence, prefix, required.split("\t"), forbidden.split("\t")


def _hypotheses(
    translator: Any, chunk: list[_Line], first: int, **settings: Any
) -> list[list[Any]]:
    """Returns the hypotheses of some sentences, of which the first has the number `first`."""
    sentences, prefixes, required, forbidden = map(list, zip(*chunk, strict=True))
    if sample := settings.pop("sample", None):
        return sample(sentences, first_index=first, **settings)
    if "glossary" in settings:
        return [[x] for x in translator.translate_segments([*map(Segment, sentences)], **settings)]
    has_hypotheses = "alignments" in settings
    settings |= {"prefixes": prefixes, "required": required, "forbidden": forbidden}
    try:
        if has_hypotheses:
            return translator.translate_nbest(sentences, **settings)
        return [[Segment(x)] for x in translator.translate(sentences, **settings)]
    except ConstraintError as error:
        raise UserError(f"line {first + error.sentence + 1}: {error.reason}") from None


def _text(found: Any, scores: bool) -> str:
    fields = [f"{found.score:.4f}"] if scores else []
    fields.append(as_line(found.text))
    if (alignment := getattr(found, "alignment", None)) is not None:
        fields.append(" ".join(f"{source}-{target}" for source, target in alignment))
    if (word_scores := getattr(found, "word_scores", None)) is not None:
        fields.append(" ".join(f"{x if isinstance(x, float) else x[1]:.2f}" for x in word_scores))
    return "\t".join(fields) + "\n"


class _GenerateOptions(parameters.CheckpointOptions):
    length: int = Field(200, ge=1, le=1_000_000)
    """Number of tokens after the prompt. It can exceed what the model reads at a time."""
    samples: int = Field(1, ge=1, le=10_000, title="N")
    """Number of texts. A line "---" is between two."""
    seed: int = Field(0, ge=0, le=2**64 - 1)
    """Random seed of sampling."""


@click.command("generate")
@parameters.run_argument
@click.argument("prompt", default="")
@parameters.options_of(_GenerateOptions)
@parameters.sampling_options
@parameters.backend_option
def generate_command(run: Path, prompt: str, options: _GenerateOptions, sampling: Given) -> None:
    """Write text with the language model of RUN, by sampling.

    The text begins with PROMPT. Without one, the model begins a text of its own.

    \b
    keras-transformer generate runs/shakespeare "ROMEO:"
    keras-transformer generate runs/shakespeare --samples 3 --temperature 0.8 --seed 7
    keras-transformer generate runs/shakespeare "To be" --length 500 --checkpoint best
    """
    from keras_transformer.translation.generator import Generator

    drawn = checked(SamplingOptions, **sampling)
    generator = checked(Generator.from_run, run, options.checkpoint)
    given = [prompt] * options.samples, options.length, drawn, options.seed
    texts = checked(generator.write, *given)
    click.echo("\n---\n".join(texts).encode())
