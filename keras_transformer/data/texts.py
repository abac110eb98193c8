"""Reads the texts on which a language model trains."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from keras_transformer.data.text_files import read_lines

Documents = Literal["lines", "paragraphs", "files"]


@dataclass
class Texts:
    """The texts of a file for a language model, each as a tuple of one string.

    `documents` says what a document is: a line, a paragraph (lines up to an empty one) or the file,
    whose texts are its lines. A text that ends with a line end goes on in the next one. With
    `part`, these are only some of the texts, such as the last 100 for `slice(-100, None)`.
    """

    path: Path
    documents: Documents
    part: slice | None = None

    def __iter__(self) -> Iterator[tuple[str]]:
        texts = read_lines(self.path)
        if self.documents == "paragraphs":
            groups = itertools.groupby(texts, lambda line: bool(line.strip()))
            texts = ("\n".join(group) for has_text, group in groups if has_text)
        if self.part:
            count = sum(1 for _ in replace(self, part=None))
            texts = itertools.islice(texts, *self.part.indices(count)[:2])
        if self.documents != "files":
            yield from zip(texts)
            return
        for text, following in itertools.pairwise(itertools.chain(texts, [None])):
            yield (f"{text}" if following is None else f"{text}\n",)
