"""Text files in, text lines out, for the commands `translate` and `score`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.cli.common import as_line
from keras_transformer.data.available_chunks import available_chunks
from keras_transformer.data.corpus import Pair, read_lines, read_standard_input
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.options import SamplingOptions
from keras_transformer.decoding.scoring import PairScore, Scorer
from keras_transformer.decoding.translator import STREAMED_LINES, Translator
from keras_transformer.errors import UserError


class Line(NamedTuple):
    """A sentence and the constraints on its translation."""

    sentence: str
    prefix: str
    required: list[str]
    forbidden: list[str]


def read_source(
    file: Path | None,
    prefixes: Path | None = None,
    required: Path | None = None,
    forbidden: Path | None = None,
) -> Iterator[Line]:
    """Reads sentences and, line by line with them, the constraints on their translations.

    Args:
        file: One sentence per line; None for standard input.
        prefixes: One line per sentence: the beginning of its translation, or a blank line.
        required: One line per sentence: words separated by tabs, or a blank line.
        forbidden: The same.

    Raises:
        UserError: While iterating, if a line is not UTF-8, or the files have different numbers of
            lines.
    """
    paths = (prefixes, required, forbidden)
    columns = [read_lines(path) if path else None for path in paths]
    for sentence in read_lines(file) if file else read_standard_input():
        values = ["" if column is None else next(column, None) for column in columns]
        for path, value in zip(paths, values, strict=True):
            if value is None:
                raise UserError(f"{path} has fewer lines than there are sentences")
        prefix, *words = (value or "" for value in values)
        yield Line(sentence, prefix, *(value.split("\t") for value in words))
    for path, column in zip(paths, columns, strict=True):
        if column and next(column, None) is not None:
            raise UserError(f"{path} has more lines than there are sentences")


def translate_lines(
    translator: Translator,
    lines: Iterator[Line],
    sampling: SamplingOptions | None = None,
    mbr: int | None = None,
    seed: int = 0,
    scores: bool = False,
    alignments: bool = False,
    progress: Callable[[int], Any] | bool = False,
) -> Iterator[str]:
    """Translates lines in chunks of those that are available.

    Args:
        translator: The `Translator`.
        lines: May block while no line is available.
        sampling: Options of sampling instead of beam search. Defaults to None.
        mbr: Whether to write only the sample with minimum Bayes risk; None or 0 means no.
        seed: Random seed of sampling. Defaults to 0.
        scores: Whether to write the score and a tab before each translation.
        alignments: Whether to write a tab and pairs such as "0-0 1-2" after each translation.
        progress: As in `Translator.translate`.

    Yields:
        Output text of one chunk: for each sentence as many lines as the options say.

    Raises:
        UserError: If the constraints of a sentence cannot be met by the search.
    """
    first_index = 0
    for chunk in available_chunks(lines, STREAMED_LINES):
        if sampling:
            draw = translator.translate_mbr if mbr else translator.sample
            found = draw(
                [line.sentence for line in chunk],
                sampling,
                seed=seed,
                first_index=first_index,
                progress=progress,
            )
        else:
            found = _search(translator, chunk, alignments, progress)
        yield "".join(_text(hypothesis, scores) for best in found for hypothesis in best)
        first_index += len(chunk)


def score_lines(
    scorer: Scorer, pairs: Iterable[Pair], progress: Callable[[int], Any]
) -> Iterator[PairScore]:
    """Scores pairs of source and target lines; at most a few thousand pairs are in memory.

    Args:
        scorer: The `Scorer`.
        pairs: Source and target lines.
        progress: Called with the number of newly scored pairs.

    Yields:
        The score of each pair, in the same order.
    """
    for chunk in available_chunks(pairs, STREAMED_LINES):
        sources, targets = zip(*chunk, strict=True)
        yield from scorer.score(sources, targets, progress)


def _search(
    translator: Translator,
    chunk: Sequence[Line],
    alignments: bool,
    progress: Callable[[int], Any] | bool,
) -> list[list[Hypothesis]]:
    sentences, prefixes, required, forbidden = zip(*chunk, strict=True)
    try:
        return translator.translate_nbest(
            sentences,
            prefixes=prefixes,
            required=required,
            forbidden=forbidden,
            alignments=alignments,
            progress=progress,
        )
    except ValueError as error:
        if any(prefixes) or any(map(any, required)) or any(map(any, forbidden)):
            raise UserError(str(error)) from None  # a constraint of a line that does not fit it
        raise


def _text(hypothesis: Hypothesis, scores: bool) -> str:
    fields = [f"{hypothesis.score:.4f}"] if scores else []
    fields.append(as_line(hypothesis.text))
    if hypothesis.alignment is not None:
        fields.append(" ".join(f"{source}-{target}" for source, target in hypothesis.alignment))
    return "\t".join(fields) + "\n"
