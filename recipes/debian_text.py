"""What `debian_en_ko.py` and `debian_en_de.py` share: packages of Debian, their texts, cleaning."""

import re
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from keras_transformer.data.held_out import sentence_key
from keras_transformer.data.text_files import download
from keras_transformer.errors import UserError

ARCHIVE = "https://snapshot.debian.org/archive/debian/20260801T000000Z"

Pair = tuple[str, str]


# 1. Packages. A package of Debian is an `ar` archive with a tar archive of the files; a package of
# source code is a tar archive.


def find_packages(packages: str, data_dir: Path | None) -> dict[str, Path]:
    """Returns the path of each file, by the name of the package.

    `packages` has a line for each file: its path below pool/main or from dists on, and SHA-256.
    """
    found = {}
    for line in packages.split("\n")[1:-1]:
        path, sha256 = line.split()
        folder, _, file = path.rpartition("/")
        name, is_package, _ = file.partition("_")
        name = name if is_package else Path(name).stem  # Translation-de.bz2
        ending = "_*.deb" if file.endswith(".deb") else "_*.tar.xz" if is_package else "*"
        if data_dir is None:
            root = "pool/main/" if is_package else ""
            found[name] = download(file, f"{ARCHIVE}/{root}{folder}", sha256)
        elif local := sorted(data_dir.glob(f"{name}{ending}")):
            found[name] = local[-1]
        else:
            raise UserError(f"{file} or a newer version must be in {data_dir}: see apt-get(8)")
    return found


def read_package(package: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yields path and content of the files whose whole path matches `pattern`."""
    with package.open("rb") as file:
        if package.suffix == ".deb":
            file.seek(len(b"!<arch>\n"))
            while (header := file.read(60)) and not header.startswith(b"data.tar"):
                size = int(header[48:58])
                file.seek(size + size % 2, 1)
        with tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                if member.isfile() and re.fullmatch(pattern, member.name):
                    yield member.name, archive.extractfile(member).read()


# 2. The three formats: LibreOffice's help, GNOME's help, and the translations of programs.


class HelpPage(HTMLParser):
    """A page of LibreOffice's help. `texts` has the headings and paragraphs by their ids."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._id = self._tag = ""
        self._is_hidden: list[bool] = []
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attributes: list) -> None:
        id = dict(attributes).get("id", "")
        if tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6"):
            self._id, self._tag, self._is_hidden = id, tag, []
        elif tag == "span":  # a text for each system: the text of the default system counts
            hidden = "hidden" in dict(attributes) and not id.startswith("default")
            self._is_hidden.append(hidden)

    def handle_endtag(self, tag: str) -> None:
        if tag == "span" and self._is_hidden:
            self._is_hidden.pop()
        elif tag == self._tag:
            self._id = ""

    def handle_data(self, data: str) -> None:
        if self._id and not any(self._is_hidden):
            self.texts[self._id] = self.texts.get(self._id, "") + data


def libreoffice_help(english: Path, other: Path, code: str) -> Iterator[Pair]:
    """Aligns the pages by their paths, and the paragraphs of a page by their ids."""
    folder = "./usr/share/libreoffice/help/"
    pages = {
        name.replace(f"/{code}/", "/en-US/"): HelpPage(content).texts
        for name, content in read_package(other, rf"{folder}{code}/text/.*\.html")
    }
    for name, content in read_package(english, rf"{folder}en-US/text/.*\.html"):
        for id, text in HelpPage(content).texts.items():
            yield text, pages.get(name, {}).get(id, "")


def gnome_help(package: Path, code: str) -> Iterator[Pair]:
    """Aligns the pages by their paths. A page counts if both languages have the same elements."""

    def texts(content: bytes) -> list[tuple[str, str]]:
        elements = [(x.tag.rpartition("}")[2], x) for x in ElementTree.fromstring(content).iter()]
        return [(tag, "".join(x.itertext())) for tag, x in elements if tag in ("p", "title")]

    pages = dict(read_package(package, rf"./usr/share/help/(C|{code})/.*\.page"))
    for name in pages:
        translation = pages.get(name.replace("/C/", f"/{code}/"))
        if "/C/" in name and translation is not None:
            english, other = texts(pages[name]), texts(translation)
            if [tag for tag, _ in english] == [tag for tag, _ in other]:
                yield from ((x, y) for (_, x), (_, y) in zip(english, other, strict=True))


def program_texts(package: Path, code: str) -> Iterator[Pair]:
    """Reads the .mo files of GNU gettext, which contain each text and its translation."""
    for _, content in read_package(package, rf".*/{code}(_[A-Z]+)?/.*\.mo"):
        order = "<" if content.startswith(b"\xde\x12\x04\x95") else ">"
        count, *tables = struct.unpack_from(f"{order}3I", content, 8)
        for index in range(count):
            texts = []
            for table in tables:
                length, start = struct.unpack_from(f"{order}2I", content, table + 8 * index)
                texts.append(content[start : start + length].decode())
            # A text may start with a context and \4. The forms of singular and plural follow \0.
            yield texts[0].rpartition("\4")[2].rpartition("\0")[2], texts[1].partition("\0")[0]


# 3. Cleaning.


@dataclass(frozen=True)
class Language:
    """What a translation into a language looks like.

    Attributes:
        code: The language's code, as in the names of files.
        letters: Pattern of its letters.
        share: More than this part of the characters are letters.
        ratios: Characters per character of the English sentence, more than and less than.
    """

    code: str
    letters: str
    share: float
    ratios: tuple[float, float]

    def is_good(self, english: str, other: str) -> bool:
        """Returns whether a pair looks like a sentence and its translation.

        Both must have letters of their language, few other characters, similar lengths, and the
        same placeholders and numbers of several digits.
        """
        letters = len(re.findall(r"[A-Za-z]", english))
        others = len(re.findall(self.letters, other))
        exotic = r"[^\x20-\x7e°±²³·×÷©®‐-―‘’‚“”„•…→←↑↓≤≥]"
        placeholders = [
            sorted(re.findall(r"%\w+|\{\w*\}|\$\w+|\d{2,}", text)) for text in (english, other)
        ]
        return (
            letters >= 2
            and others >= 1
            and letters > 0.5 * len(english.replace(" ", ""))
            and others > self.share * len(other.replace(" ", ""))
            and self.ratios[0] < len(other) / len(english) < self.ratios[1]
            and not re.search(exotic, english + re.sub(self.letters, "", other))
            and placeholders[0] == placeholders[1]
            and english != other
        )


def without_marks(text: str) -> str:
    """Removes tags, the marks of keyboard shortcuts, and line ends."""
    text = re.sub(r"<[^<>]*>", " ", text)
    text = re.sub(r"\s*\([_&~][A-Za-z0-9]\)", "", text)  # "파일(_F)"
    text = re.sub(r"(?<![\w&~%])[_&~](?=\w)", "", text)  # "_File"
    text = re.sub(r"(?<=[A-Za-zÄÖÜäöüß])[_&~](?=[a-zäöüß]+\b)", "", text)  # "E_xit"
    return " ".join(text.split())


def sentences(english: str, other: str) -> list[Pair]:
    """Splits a pair of paragraphs if both have the same number of sentences."""
    sides = [re.split(r"(?<=[^.][.!?]) (?=[^a-z])", text) for text in (english, other)]
    if len(sides[0]) != len(sides[1]):
        return [(english, other)]
    return list(zip(*sides, strict=True))


def corpus_of(
    sources: Iterable[tuple[str, Iterable[Pair], Callable[[str], str]]], language: Language
) -> list[Pair]:
    """Cleans the pairs, and leaves one translation of each sentence: the first.

    `sources` has the name of each source, its pairs and the function that removes their marks.
    """
    corpus: dict[str, Pair] = {}
    for name, pairs, plain in sources:
        pieces = (piece for pair in pairs for piece in sentences(*map(plain, pair)))
        known, words = len(corpus), 0
        for english, other in pieces:
            key = sentence_key(english)
            if key not in corpus and language.is_good(english, other):
                corpus[key] = english, other
                words += len(english.split())
        print(f"{name:24} {len(corpus) - known:7,} new pairs, {words:9,} English words", flush=True)
    return list(corpus.values())
