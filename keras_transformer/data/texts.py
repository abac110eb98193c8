"""Reads the texts on which a language model trains."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from keras_transformer.data.text_files import read_lines

Documents = Literal["lines", "paragraphs", "files"]


def read_texts(path: Path, documents: Documents, part: slice | None = None) -> Iterator[tuple[str]]:
    """Yields the texts of a file for a language model, each as a tuple of one string.

    `documents` says what a document is: a line, a paragraph (lines up to an empty one) or the file,
    whose texts are its lines. A text that ends with a line end goes on in the next one. With
    `part`, these are only some of the texts, such as the last 100 for `slice(-100, None)`.
    """
    texts = read_lines(path)
    if documents == "paragraphs":
        groups = itertools.groupby(texts, lambda line: bool(line.strip()))
        texts = ("\n".join(group) for has_text, group in groups if has_text)
    if part:
        count = sum(1 for _ in read_texts(path, documents))
        texts = itertools.islice(texts, *part.indices(count)[:2])
    if documents != "files":
        yield from zip(texts)
        return
    for text, following in itertools.pairwise(itertools.chain(texts, [None])):
        yield (f"{text}" if following is None else f"{text}\n",)
