"""Lines of text in and out: what the command line does with a translator or a scorer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.available_chunks import available_chunks
from keras_transformer.data.corpus import Pair, read_lines, read_standard_input
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.scoring import PairScore, Scorer
from keras_transformer.decoding.translator import STREAMED_LINES, Translator
from keras_transformer.errors import UserError


class Line(NamedTuple):
    """A sentence, and what its translation must begin with, contain and not contain."""

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
    """Lines of a file, or of standard input, with those of the files beside it.

    Args:
        file: A sentence a line; None for standard input.
        prefixes: A prefix for each sentence, or nothing.
        required: Words for each sentence, with tabs between them.
        forbidden: The same.

    Raises:
        UserError: While iterating, if a line is not UTF-8, or a file beside has more or fewer lines
            than there are sentences.
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
    n_best: int = 1,
    sample: int | None = None,
    mbr: int | None = None,
    scores: bool = False,
    alignments: bool = False,
    progress: Callable[[int], Any] | bool = False,
    **drawing: Any,
) -> Iterator[str]:
    """Translates lines as they come.

    Args:
        translator: Translates.
        lines: May block while nothing is there.
        n_best: Translations per sentence.
        sample: Draw so many at random instead.
        mbr: Choose the best of so many samples instead.
        scores: Whether the score and a tab stand before each translation.
        alignments: Whether a tab and pairs such as "0-0 1-2" stand behind each.
        progress: As in `Translator.translate`.
        **drawing: Options of `Translator.sample`.

    Yields:
        The text of some lines at a time, with their ends.
    """
    first_index = 0
    for chunk in available_chunks(lines, STREAMED_LINES):
        if sample or mbr:
            draw = translator.sample if sample else translator.translate_mbr
            found = draw(
                [line.sentence for line in chunk],
                num_samples=sample or mbr or 1,
                first_index=first_index,
                progress=progress,
                **drawing,
            )
        else:
            found = _search(translator, chunk, n_best, alignments, progress)
        yield "".join(_text(hypothesis, scores) for best in found for hypothesis in best)
        first_index += len(chunk)


def score_lines(
    scorer: Scorer, pairs: Iterable[Pair], progress: Callable[[int], Any]
) -> Iterator[PairScore]:
    """Scores pairs of source and target lines; no more than some thousand are held in memory.

    Args:
        scorer: Scores.
        pairs: Lines of both sides.
        progress: Called with each number of pairs that are done.

    Yields:
        A score for each pair, in their order.
    """
    for chunk in available_chunks(pairs, STREAMED_LINES):
        sources, targets = zip(*chunk, strict=True)
        yield from scorer.score(sources, targets, progress)


def _search(
    translator: Translator,
    chunk: Sequence[Line],
    n_best: int,
    alignments: bool,
    progress: Callable[[int], Any] | bool,
) -> list[list[Hypothesis]]:
    sentences, prefixes, required, forbidden = zip(*chunk, strict=True)
    return translator.translate_nbest(
        sentences,
        n_best=n_best,
        prefixes=prefixes,
        required=required,
        forbidden=forbidden,
        alignments=alignments,
        progress=progress,
    )


def _text(hypothesis: Hypothesis, scores: bool) -> str:
    fields = [f"{hypothesis.score:.4f}"] if scores else []
    fields.append(hypothesis.text)
    if hypothesis.alignment is not None:
        fields.append(" ".join(f"{source}-{target}" for source, target in hypothesis.alignment))
    return "\t".join(fields) + "\n"
