"""Reads the texts on which a language model trains."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from keras_transformer.data.text_files import CorpusError, read_lines

Documents = Literal["lines", "paragraphs", "files"]


@dataclass
class Texts:
    """The texts of a file for a language model, each as a tuple of one string.

    Args:
        path: The file, as for `read_lines`.
        documents: What a document is: a line, a paragraph (lines up to an empty one) or the file,
            whose texts are its lines. A text that ends with a line end goes on in the next one.
        held_out: Number of texts at the end of the file that are held out. Defaults to 0.
        part: Whether these are the texts before the held-out ones, the default, or the held-out.

    Raises:
        CorpusError: While iterating, if the file cannot be read or has not more than `held_out`
            texts.
    """

    path: Path
    documents: Documents
    held_out: int = 0
    part: Literal["before", "held_out"] = "before"

    def __iter__(self) -> Iterator[tuple[str]]:
        texts = self._texts()
        if self.held_out:
            count = sum(1 for _ in self._texts())
            if (first := count - self.held_out) <= 0:
                raise CorpusError(
                    f"{self.path} must have more texts than held_out.validation={self.held_out:,}. "
                    f"Received: {count:,} {self.documents.replace('files', 'lines')}"
                )
            bounds = (0, first) if self.part == "before" else (first, None)
            texts = itertools.islice(texts, *bounds)
        if self.documents != "files":
            yield from ((text,) for text in texts)
            return
        for text, following in itertools.pairwise(itertools.chain(texts, [None])):
            yield (f"{text}" if following is None else f"{text}\n",)

    def _texts(self) -> Iterator[str]:
        lines = read_lines(self.path)
        if self.documents != "paragraphs":
            return lines
        groups = itertools.groupby(lines, lambda line: bool(line.strip()))
        return ("\n".join(group) for has_text, group in groups if has_text)
