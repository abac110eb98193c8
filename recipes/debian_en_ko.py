"""Makes the English-Korean corpus of the recipe `debian_en_ko` from packages of Debian 12.

The packages contain help pages and programs in English and Korean. The text is about office
programs, pictures, music, e-mail, money and games. The game Widelands tells stories, so the corpus
also has sentences in the first person.

command:  python recipes/debian_en_ko.py FOLDER [--data-dir PACKAGES]
          keras-transformer train debian_en_ko --data-dir FOLDER
data:     17 packages, 530 MB, downloaded and verified by their SHA-256. If PACKAGES is given, the
          packages are read from there, in the versions that `apt-get download NAME` gets.
license:  LibreOffice: MPL-2.0. GNOME's help: CC-BY-SA-3.0. Programs and games: GPL-2+ or GPL-3+.
          The file usr/share/doc/NAME/copyright of each package has the details.
hardware: 1 CPU core
time:     43 s, without the download
result:   101,443 pairs, 713,796 English words
"""

import argparse
import re
import struct
import tarfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from keras_transformer.data.held_out import sentence_key
from keras_transformer.data.text_files import download
from keras_transformer.errors import UserError

ARCHIVE = "https://snapshot.debian.org/archive/debian/20260801T000000Z/pool/main"

# Path in the archive, and SHA-256. If two packages translate the same sentence, the first counts.
PACKAGES = """
libr/libreoffice/libreoffice-help-en-us_7.4.7-1+deb12u14_all.deb 8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712
libr/libreoffice/libreoffice-help-ko_7.4.7-1+deb12u14_all.deb 7ef2d854e9ed58e6bf861cfa9fa2579555233f9df874baf327fcb07ccd190669
g/gnome-user-docs/gnome-user-docs_43.0-2_all.deb 0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f
w/widelands/widelands-data_1.1-3_all.deb 0e23d645b15bcfb9e3bcae0de9bc1bdfa75a6ecb36b2e449759d6eb0b4bbd8fb
libr/libreoffice/libreoffice-l10n-ko_7.4.7-1+deb12u14_all.deb 808e24f4c5400c2a957575a36c2c99cdd71d5a05ec57123e5bbb7c041765b920
e/evolution/evolution-common_3.46.4-2+deb12u1_all.deb 52e3a67ba3f2815fa864f600f5e3c2afd6ebc0b3487b50525df75006d4172b46
b/blender/blender-data_3.4.1+dfsg-2_all.deb 5ceaf56a49ba3ded95c751d739aeec3d19e7fad76fba5cb70666986af9303b0e
i/inkscape/inkscape_1.2.2-2+b1_amd64.deb 5e767932868c0e6909400986d5df7dbad540c9716512c1449bb7b8c6e864a3a8
v/vlc/vlc-l10n_3.0.23-0+deb12u1_all.deb 69ab8c034e2097e1050ff62e8048e0ad5e1f72991456a34d02bcecc8a8083136
k/krita/krita-l10n_5.1.5+dfsg-2+deb12u1_all.deb ad2b1d244e1021b4f56637b9e9109d5d512c8b457d13945cfae8296e294da1ac
g/gimp/gimp-data_2.10.34-1+deb12u10_all.deb 89007a69d4ef2b0440e5419e75d4112cfd1c49e97db38220d210b9f86322be7c
g/git/git_2.39.5-0+deb12u3_amd64.deb 637a85ddd6247fab13bdd0592f2f39aff04ce4dbf0655d3ab553ac359a38ce6f
f/freeciv/freeciv-data_3.0.6-1+deb12u1_all.deb 278bed022b87408ca9923aa727bef3d6c97875c811723e93ff95dded1b9b76b2
d/digikam/digikam-data_7.9.0-1_all.deb a941a504ba7bdf9d276a43ca3c2a0b2b5b74a55420d8c4b4f29d681e96cbf450
g/gnucash/gnucash-common_4.13-1_all.deb 8477b415856eb671125ee63ac6a4ee1d23efeca3de6e55e5a14c6ebb32642b31
c/cinnamon-translations/cinnamon-l10n_5.6.1-2_all.deb c03953148ebcac4b440c6cb397d5ee345760a9836ce433942dc80d2becc92d89
f/filezilla/filezilla-common_3.63.0-1+deb12u3_all.deb 2788f0f962c3a3d8eda1e76f10339b29ca5dc42dceb4ee8ad66b0c9beb6a717a
"""  # noqa: E501

Pair = tuple[str, str]


# 1. Packages. A package of Debian is an `ar` archive with a tar archive of the files.


def find_packages(data_dir: Path | None) -> dict[str, Path]:
    """Returns the path of each package, by the name of the package."""
    found = {}
    for line in PACKAGES.split("\n")[1:-1]:
        path, sha256 = line.split()
        folder, _, file = path.rpartition("/")
        name = file.partition("_")[0]
        if data_dir is None:
            found[name] = download(file, f"{ARCHIVE}/{folder}", sha256)
        elif local := sorted(data_dir.glob(f"{name}_*.deb")):
            found[name] = local[-1]
        else:
            raise SystemExit(f"{data_dir} must have {name}_*.deb: run apt-get download {name}")
    return found


def read_package(package: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yields path and content of the files whose whole path matches `pattern`."""
    with package.open("rb") as file:
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


def libreoffice_help(english: Path, korean: Path) -> Iterator[Pair]:
    """Aligns the pages by their paths, and the paragraphs of a page by their ids."""
    folder = "./usr/share/libreoffice/help/"
    pages = {
        name.replace("/ko/", "/en-US/"): HelpPage(content).texts
        for name, content in read_package(korean, rf"{folder}ko/text/.*\.html")
    }
    for name, content in read_package(english, rf"{folder}en-US/text/.*\.html"):
        for id, text in HelpPage(content).texts.items():
            yield text, pages.get(name, {}).get(id, "")


def gnome_help(package: Path) -> Iterator[Pair]:
    """Aligns the pages by their paths. A page counts if both languages have the same elements."""

    def texts(content: bytes) -> list[tuple[str, str]]:
        elements = [(x.tag.rpartition("}")[2], x) for x in ElementTree.fromstring(content).iter()]
        return [(tag, "".join(x.itertext())) for tag, x in elements if tag in ("p", "title")]

    pages = dict(read_package(package, r"./usr/share/help/(C|ko)/.*\.page"))
    for name in pages:
        translation = pages.get(name.replace("/C/", "/ko/"))
        if "/C/" in name and translation is not None:
            english, korean = texts(pages[name]), texts(translation)
            if [tag for tag, _ in english] == [tag for tag, _ in korean]:
                yield from ((x, y) for (_, x), (_, y) in zip(english, korean, strict=True))


def program_texts(package: Path) -> Iterator[Pair]:
    """Reads the .mo files of GNU gettext, which contain each text and its translation."""
    for _, content in read_package(package, r".*/ko(_KR)?/.*\.mo"):
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


def clean(pairs: Iterator[Pair]) -> Iterator[Pair]:
    """Removes tags and the marks of keyboard shortcuts, splits paragraphs, drops bad pairs."""
    for english, korean in pairs:
        english, korean = without_marks(english), without_marks(korean)
        yield from (pair for pair in sentences(english, korean) if is_good(*pair))


def without_marks(text: str) -> str:
    """Removes tags, the marks of keyboard shortcuts, and line ends."""
    text = re.sub(r"<[^<>]*>", " ", text)
    text = re.sub(r"\s*\([_&~][A-Za-z0-9]\)", "", text)  # "파일(_F)"
    text = re.sub(r"(?<![\w&~%])[_&~](?=\w)", "", text)  # "_File"
    text = re.sub(r"(?<=[A-Za-z])[_&~](?=[a-z]+\b)", "", text)  # "E_xit"
    return " ".join(text.split())


def sentences(english: str, korean: str) -> list[Pair]:
    """Splits a pair of paragraphs if both have the same number of sentences."""
    sides = [re.split(r"(?<=[^.][.!?]) (?=[^a-z])", text) for text in (english, korean)]
    if len(sides[0]) != len(sides[1]):
        return [(english, korean)]
    return list(zip(*sides, strict=True))


def is_good(english: str, korean: str) -> bool:
    """Returns whether a pair looks like a sentence and its translation.

    Both must have letters of their language, few other characters, similar lengths, and the same
    placeholders and numbers of several digits.
    """
    letters, hangul = (
        len(re.findall(pattern, text))
        for pattern, text in ((r"[A-Za-z]", english), (r"[가-힣]", korean))
    )
    exotic = r"[^\x20-\x7e°±²³·×÷©®가-힣‐-―‘’“”•…→←↑↓≤≥]"
    placeholders = [
        sorted(re.findall(r"%\w+|\{\w*\}|\$\w+|\d{2,}", text)) for text in (english, korean)
    ]
    return (
        letters >= 2
        and hangul >= 1
        and letters > 0.5 * len(english.replace(" ", ""))
        and hangul > 0.3 * len(korean.replace(" ", ""))
        and 0.15 < len(korean) / len(english) < 1.5
        and not re.search(exotic, english + korean)
        and placeholders[0] == placeholders[1]
    )


def main() -> None:
    """Reads the packages and writes the corpus, without two translations of one sentence."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder in which to write en-ko.tsv")
    parser.add_argument("--data-dir", type=Path, help="folder of the packages (default: download)")
    options = parser.parse_args()
    packages = find_packages(options.data_dir)
    help_packages = packages.pop("libreoffice-help-en-us"), packages.pop("libreoffice-help-ko")
    sources = {"libreoffice-help": libreoffice_help(*help_packages)}
    sources["gnome-user-docs"] = gnome_help(packages.pop("gnome-user-docs"))
    sources |= {name: program_texts(package) for name, package in packages.items()}

    corpus: dict[str, Pair] = {}
    for name, pairs in sources.items():
        before = len(corpus)
        for english, korean in clean(pairs):
            corpus.setdefault(sentence_key(english), (english, korean))
        print(f"{name:20} {len(corpus) - before:7,} new pairs", flush=True)
    options.folder.mkdir(parents=True, exist_ok=True)
    with (options.folder / "en-ko.tsv").open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{english}\t{korean}\n" for english, korean in corpus.values())
    words = sum(len(english.split()) for english, _ in corpus.values())
    print(f"{file.name}: {len(corpus):,} pairs, {words:,} English words")


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        raise SystemExit(f"Error: {error}") from None
