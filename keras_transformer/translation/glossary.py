"""The terms of a glossary, and where they are in a text."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import regex

from keras_transformer.data.text_files import read_lines
from keras_transformer.errors import UserError

_WITH_CASE = "=case"


@dataclass(frozen=True)
class Glossary:
    """The required translations of terms.

    A term is found as whole words, the longest first, in any case. Each form of a word, such as its
    plural, is a term of its own.

    Example:

    >>> Glossary({"car": "Fahrzeug", "cars": "Fahrzeuge"}, with_case={"US": "USA"})

    Args:
        terms: The translation of each term.
        with_case: The translations of terms that are found only as they are written.
    """

    terms: Mapping[str, str]
    with_case: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> "Glossary":
        """Reads a file with a term, a tab and its translation on each line.

        A third column `=case` finds the term only as it is written. Blank lines and lines that
        begin with "#" are ignored.

        Raises:
            UserError: If a line has other columns, or a term has two translations.
        """
        found: dict[str, dict[str, str]] = {"": {}, _WITH_CASE: {}}
        for number, line in enumerate(read_lines(Path(path)), 1):
            term, *columns = [x.strip() for x in line.split("\t")]
            if term.startswith("#") or not line.strip():
                continue
            translation, case = (*columns, "", "")[:2]
            key = term if case else term.casefold()
            is_new = found.get(case, {}).setdefault(key, translation) == translation
            if not (term and translation and len(columns) < 3 and case in found and is_new):
                raise UserError(
                    f"{path}, line {number}: a line needs a term, a tab and its only translation, "
                    f"and perhaps a tab and =case. Received: {line!r:.80}"
                )
        return cls(found[""], found[_WITH_CASE])

    @functools.cached_property
    def _pattern(self) -> regex.Pattern[str]:
        given = [*((term, "") for term in self.with_case), *((term, "i") for term in self.terms)]
        words = [
            rf"(?{flag}:" + r"\s+".join(map(regex.escape, term.split())) + ")"
            for term, flag in sorted(given, key=lambda x: -len(x[0]))
        ]
        return regex.compile(rf"(?<!\w)(?:{'|'.join(words) or '(?!)'})(?!\w)")

    @functools.cached_property
    def _in_any_case(self) -> dict[str, str]:
        return {term.casefold(): translation for term, translation in self.terms.items()}

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yields the first character of each term, that after its last, and its translation."""
        for found in self._pattern.finditer(text):
            term = " ".join(found[0].split())
            translation = self.with_case.get(term) or self._in_any_case[term.casefold()]
            yield *found.span(), translation
