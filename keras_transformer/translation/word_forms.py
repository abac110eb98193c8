"""Lets the model read lines in upper or lower case, titles and headings as sentences."""

import functools
import itertools
import json
import string
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import regex

from keras_transformer._files import read_json, write_text
from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.errors import UserError
from keras_transformer.translation.edges import edges
from keras_transformer.translation.hypothesis import Hypothesis
from keras_transformer.translation.long_lines import is_invisible, sentence_ends

_MARK = regex.compile(r"[\p{P}\p{S}]")
SPACED_MARK = regex.compile(r"(?<=[\p{L}\p{N}])\s+(?=([.,;:]|[!?]+)(?!\S))")  # as French has it
_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]*+")
# A word such as "U.S.", and one that does not begin a sentence.
DOTTED = r"(?:\p{Lu}\.){2,}+"
_INNER_WORD = regex.compile(
    rf"(?<![\p{{L}}\p{{M}}])(?<=[\p{{L}}\p{{M}}\p{{N}},;]\s|\p{{L}}['’])(?:{DOTTED}|{_WORD.pattern})"
)
_CONTRACTION = regex.compile(rf"(?<=[\p{{L}},;]\s)(?:{_WORD.pattern}['’])+{_WORD.pattern}")
# A semicolon is the question mark of Greek.
_OPEN_END = regex.compile(
    r"(?<=[\p{L}\p{M}\p{N}][\p{Pe}\p{Pf}\"']*)"
    r"(?P<end>\s*(?:[:：,，…]|\.{3}|(?<!\p{Greek}\W*);)|\s[-–—]|(?P<repeated>[!?])[!?]+|)$"
)
# A single mark that ends a sentence. Quotes and brackets may follow.
_FINAL_MARK = regex.compile(
    r"(?<![\p{SB=STerm}\p{SB=ATerm}])[\p{SB=STerm}\p{SB=ATerm}](?=[\p{Pe}\p{Pf}\"']*$)"
)
_APOSTROPHE = regex.compile(r"(?<=\p{L})[´`](?=\p{L})")  # as some type it
_ABBREVIATED = regex.compile(r"\.\p{L}")  # after the first letter of "i.e."
# What is before the first word of a sentence.
_SENTENCE_BEGIN = regex.compile(r"(?:^|(?<=\p{L}))[^\p{L}.!?…]*+[.!?…][^\p{L}\s]*+\s\P{L}*+$")
_REPEATED = regex.compile(r"(\p{L})\1{2,}")
# A word such as "USB" and "GitHub".
INNER_CAPITAL = r"\p{L}[\p{L}\p{M}]*\p{Lu}[\p{L}\p{M}]*+"
# How often the training text has the words with a capital that the model knows, and how much more
# often it must have a word in lower case that is emphasized in upper case, unlike "US", or a word
# with an apostrophe that is typed without it, unlike "it's".
_FREQUENT, _FEW = 4, 300
# In a title without a final mark, words of fewer letters may begin in lower case, such as "of".
_SHORT = 4
_MOST_LINES, _MOST_WORDS, _MOST_TARGET_WORDS = 1_000_000, 100_000, 1_000
# In how many lines a mark must be, or in which share of all, so that a model reads it.
_READ, _READ_SHARE = 5_000, 0.05


class Rewritten(NamedTuple):
    """A line as the model reads it, and how its translation is changed back."""

    text: str
    is_upper: bool = False  # The translation is written in upper case.
    end: str | None = None  # What the line has in place of a final mark: another mark, or nothing.
    head: str = ""  # what is before the text, and not translated
    tail: str = ""  # and after it
    is_split: bool = False  # Its sentences are translated one by one.

    def places(self, translation: str, kept: Collection[str] = ()) -> tuple[str, list[int]]:
        """Returns the translation changed back, and the new place of each of its characters.

        The words `kept` stay as they are. If the model repeats one, it is written once.
        """
        letters = [*translation]
        if self.is_upper:
            letters = [x.upper() for x in letters]
            for word in kept:
                for found in regex.finditer(regex.escape(word), translation):
                    letters[found.start() : found.end()] = found[0]
        for word in kept:
            copies = [*regex.finditer(rf"\s*(?<!\w){regex.escape(word)}(?!\w)", translation)]
            for x in copies[self.text.count(word) :]:
                letters[x.start() : x.end()] = [""] * len(x[0])
        if self.end is not None and (mark := _FINAL_MARK.search(translation)):
            letters[mark.start()] = self.end
        return "".join(letters), [0, *itertools.accumulate(map(len, letters))]

    def restored(self, found: Hypothesis) -> Hypothesis:
        """Returns a translation changed back, with head and tail."""
        text, pairs, scores = found.text, found.alignment, found.word_scores
        if self.is_upper or self.end is not None:
            text = self.places(text)[0].rstrip()
        if (self.head or self.tail) and found.score != IMPOSSIBLE:
            # How many words are before and after, of which none is part of another.
            before, after = len(f"{self.head}x".split()) - 1, len(f"x{self.tail}".split()) - 1
            ends = [before + len(x.split()) for x in (self.text, text)]
            if pairs is not None:
                outer = [(n, n) for n in range(before)]
                inner = [(before + x, before + y) for x, y in pairs]
                pairs = (*outer, *inner, *((ends[0] + n, ends[1] + n) for n in range(after)))
            if scores is not None:
                scores = ((0.0,) * before) + scores + ((0.0,) * after)
            text = self.head + text + self.tail
        return replace(found, text=text, alignment=pairs, word_scores=scores)


@dataclass(frozen=True)
class WordForms:
    """The usual forms of words, and the final mark of most sentences.

    A run learns them from its training text and keeps them in `word_forms.json`. A line in one
    case, or a title, is translated with the usual forms of its words. The translation of a line in
    upper case is in upper case, too. A line that ends with a letter, a digit, a colon, a comma, a
    semicolon, a dash or three dots is translated with a final mark, in whose place the translation
    has the line's own end. In another line, words in upper case and names in lower case are read in
    their usual forms. The `edges` of a line, such as the mark of an item, stay as they are. A line
    of several sentences is translated sentence by sentence, if the lines of the training text have
    one. All other lines are translated as they are written.

    Example:

    >>> WordForms.learn(["We met Tom.", "Yes, the house is big."]).rewritten("A BIG HOUSE")
    Rewritten(text='A big house.', is_upper=True, end='')

    Attributes:
        forms: Words whose most frequent form is not in lower case, the most frequent first.
        final_mark: The last character of most sentences, or "".
        names: Words that the model copies. `translate_segments` writes them in place of what must
            not be translated. If there are none, they are found when they are first needed.
        numbers: Numbers that the model copies.
        lines_are_sentences: Whether fewer than 1 of 20 lines have several sentences.
        words: Words in lower case that are not also acronyms, and frequent words with a capital.
        marks: The marks that a model can read, because many lines have them, also with a space
            before them.
        target_words: The most frequent words of the translations that are in lower case.
        contractions: Words with an apostrophe, without which they are no words.
    """

    forms: tuple[str, ...] = ()
    final_mark: str = ""
    names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    lines_are_sentences: bool = False
    words: tuple[str, ...] = ()
    marks: str = ""
    target_words: tuple[str, ...] = ()
    contractions: tuple[str, ...] = ()

    @classmethod
    def learn(cls, lines: Iterable[str], targets: Iterable[str] = ()) -> "WordForms":
        """Counts the forms of the words within the sentences of at most a million lines.

        `targets` has their translations.
        """
        counts: Counter[str] = Counter()
        ends: Counter[str] = Counter()
        marks: Counter[str] = Counter()
        contracted: Counter[str] = Counter()
        num_several = 0
        for line in itertools.islice(lines, _MOST_LINES):
            if not line.isupper():
                counts.update(_INNER_WORD.findall(line))
            marks.update({*line, *(f" {x[0]}" for x in SPACED_MARK.findall(line))})
            if "'" in line or "’" in line:
                contracted.update(x.replace("’", "'") for x in _CONTRACTION.findall(line))
            ends[line.rstrip()[-1:]] += 1
            num_several += bool(sentence_ends(line))
        usual: dict[str, str] = {}
        for word, _ in counts.most_common():
            usual.setdefault(word.lower(), word)
        ((mark, count),) = ends.most_common(1) or [("", 0)]
        is_mark = bool(mark) and not mark.isalnum() and 2 * count > ends.total()
        forms = (word for lower, word in usual.items() if word != lower)
        words = (
            word
            for word, n in counts.most_common()
            if (word.islower() and 1 < n >= _FEW * counts[word.upper()])
            or (n >= _FREQUENT and not word.islower())
        )
        contractions = (
            x
            for x, n in contracted.most_common()
            if n >= max(_FREQUENT, _FEW * counts[usual.get(key := _joined(x), key)])
        )
        read = min(_READ, _READ_SHARE * ends.total())
        of_targets = cls.learn(targets) if targets else cls()
        lower = (x for x in of_targets.words if x.islower() and x not in of_targets._usual)
        return cls(
            tuple(forms),
            mark if is_mark else "",
            lines_are_sentences=20 * num_several < ends.total(),
            words=tuple(itertools.islice(words, _MOST_WORDS)),
            marks="".join(x for x, n in marks.most_common() if n >= read and _MARK.search(x)),
            target_words=tuple(itertools.islice(lower, _MOST_TARGET_WORDS)),
            contractions=tuple(contractions),
        )

    @classmethod
    def load(cls, path: Path, as_written: bool = False) -> "WordForms":
        """Reads a file that `save` has written: if `as_written`, only the words that are copied.

        If there is no file, there are no forms.
        """
        if not path.exists():
            return cls()
        try:
            found: dict[str, Any] = {
                name: x if isinstance(x, str | bool) else tuple(x)
                for name, x in read_json(path).items()
            }
            forms = cls(**found)
        except (ValueError, TypeError, AttributeError, OSError) as error:
            raise UserError(f"{path} is damaged: remove it, or learn it again. {error}") from None
        return replace(forms, forms=(), words=(), contractions=()) if as_written else forms

    def save(self, path: Path) -> None:
        """Writes the forms as JSON."""
        write_text(path, json.dumps(asdict(self), ensure_ascii=False, indent=0) + "\n")

    @property
    def has_sentences(self) -> bool:
        """Whether the text has words with capitals and final marks, unlike names of numbers."""
        return bool(self.forms and self.final_mark)

    @functools.cached_property
    def _usual(self) -> dict[str, str]:
        return {form.lower(): form for form in self.forms}

    @property
    def has_words(self) -> bool:
        """Whether it is known which words and marks of sentences the model can read."""
        return self.has_sentences and bool(self.words)

    def lacks(self, mark: str) -> bool:
        """Returns whether the training text has a mark in few lines, or in none."""
        return self.has_words and mark not in self.marks

    @functools.cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.words)

    def knows(self, word: str) -> bool:
        """Returns whether the training text has a word as it is written."""
        return word in self._known

    @functools.cached_property
    def _contractions(self) -> dict[str, str]:
        return {_joined(x): x for x in reversed(self.contractions)}

    def respelled(self, word: str) -> str | None:
        """Returns the known spelling of a word without its apostrophe, or with repeated letters.

        It is "don't" for "dont" and "so" for "sooo", and None for other words.
        """
        lower = word.lower()
        found = self._contractions.get(lower)
        if not found and _REPEATED.search(lower):
            shorter = (_REPEATED.sub(r"\1" * count, lower) for count in (2, 1))
            found = next(filter(self.knows, shorter), None)
        if not found or self.knows(lower):
            return None
        return found.upper() if word.isupper() else word[0] + found[1:]

    @functools.cached_property
    def _letters(self) -> frozenset[str]:
        return frozenset("".join((*self.words, string.ascii_lowercase)).lower())

    def is_foreign(self, text: str) -> bool:
        """Returns whether a text is rather in words with letters that no known word has.

        ASCII's letters are not foreign.
        """
        if text.isascii() or not self.has_words:
            return False
        words = _WORD.findall(text)
        foreign = (len(x) for x in words if not self._letters.issuperset(x.lower()))
        return 2 * sum(foreign) > sum(map(len, words))

    def is_emphasized(self, word: str) -> bool:
        """Returns whether a word is in upper case, unlike its usual form."""
        lower = word.lower()
        usual = lower if lower in self._known else self._usual.get(lower, word)
        is_upper = len(word) > 1 and word.isupper()
        return is_upper and usual in self._known and not usual.isupper()

    def _lacks_capital(self, word: str) -> bool:
        return word not in self._known and self._usual.get(word) in self._known

    def is_name(self, word: str) -> bool:
        """Returns whether a word with a capital, not the first of its sentence, is an unknown name.

        If the language writes also nouns with capitals, it is a name if it has an inner capital.
        """
        if not self.words or word in self._known or self.is_emphasized(word):
            return False
        lower, has_nouns = word.lower(), 4 * len(self.forms) > len(self.words)
        is_word = has_nouns or lower in self._known or lower in self._usual
        return not (word[1:].islower() and is_word)

    def within(self, source: str, translation: str) -> str:
        """Returns the translation of a part of a sentence, in lower case if the part begins so."""
        word = _WORD.search(translation) if source.lstrip()[:1].islower() else None
        if (
            word
            and not translation[: word.start()].strip()
            and word[0].lower() in self.target_words
        ):
            return translation[: word.start()] + word[0].lower() + translation[word.end() :]
        return translation

    def of_line(self, line: str) -> Rewritten:
        """Returns a line as the model reads it, without its indentation and its `edges`."""
        if not self.has_sentences:
            return self.rewritten(line)
        head, text, tail = edges(line.strip())
        indent = "" if is_invisible(text) else line[: len(line) - len(line.lstrip())]
        is_split = self.lines_are_sentences
        return self.rewritten(text)._replace(head=indent + head, tail=tail, is_split=is_split)

    def rewritten(self, line: str, kept: Collection[str] = ()) -> Rewritten:
        """Returns a sentence as the model reads it. The words `kept` neither count nor change."""
        line = _APOSTROPHE.sub("'", line.strip())
        places = [x.span() for x in _WORD.finditer(line) if x[0] not in kept]
        if not (self.forms and places):
            return Rewritten(line)
        found = _OPEN_END.search(line) if self.final_mark else None
        words = "".join(line[x:y] for x, y in places)
        whole = [line[x:y] for x, y in places if line[x - 1 : x] not in ("'", "’")]
        is_upper = words.isupper()
        in_one_case = is_upper or (self.has_sentences and words.islower())
        text, changed = line, 0
        if in_one_case or all(x[0].isupper() or (found and len(x) < _SHORT) for x in whole):
            text, changed = self._in_usual_forms(line, places)
        # A line such as "Dear Tom!" or "TV" is not changed.
        if changed <= (not (in_one_case or found)):
            ends = {
                y
                for x, y in places
                if self.is_emphasized(line[x:y])
                or (self._lacks_capital(line[x:y]) and not _ABBREVIATED.match(line, y))
            }
            places = [
                (x, y) for x, y in places if y in ends or (x - 1 in ends and line[x - 1] in "'’")
            ]
            (text, _), is_upper = self._in_usual_forms(line, places), False
        if not found:
            return Rewritten(text, is_upper)
        mark = found["repeated"] or self.final_mark
        return Rewritten(text[: found.start()] + mark, is_upper, found["end"])

    def _in_usual_forms(self, line: str, places: list[tuple[int, int]]) -> tuple[str, int]:
        """Returns a line with the usual forms of its words, and the number of changed words."""
        letters, changed, last = [*line], 0, 0
        for start, end in places:
            word = line[start:end]
            form = self._usual.get(word.lower(), word.lower())
            if _SENTENCE_BEGIN.search(line[last:start] if last else f". {line[:start]}"):
                form = form[:1].title() + form[1:]
            if form != word and len(form) == len(word):
                letters[start:end] = form
                changed += 1
            last = end
        return "".join(letters), changed


def _joined(contraction: str) -> str:
    return contraction.replace("'", "").lower()
