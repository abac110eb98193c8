"""Above translation: files in, files out. All but the text stays as it is, byte for byte."""

import codecs
import re
from pathlib import Path

from keras_transformer._files import check_other_file, output_bytes, read_bytes
from keras_transformer.data.text_files import CorpusError
from keras_transformer.documents.document import Document, Languages
from keras_transformer.documents.html import read_html
from keras_transformer.documents.markdown import read_markdown
from keras_transformer.documents.messages import read_json, read_yaml
from keras_transformer.documents.subtitles import read_srt, read_text, read_vtt
from keras_transformer.documents.units import read_po, read_xliff
from keras_transformer.errors import UserError
from keras_transformer.translation.base_translator import BaseTranslator, Progress
from keras_transformer.translation.glossary import Glossary
from keras_transformer.translation.segments import TranslatedSegment

__all__ = ["translate_document"]

# What reads each format, and its suffixes.
FORMATS = {
    "text": (read_text, ".txt"),
    "html": (read_html, ".html .htm .xhtml"),
    "markdown": (read_markdown, ".md .markdown"),
    "srt": (read_srt, ".srt"),
    "vtt": (read_vtt, ".vtt"),
    "json": (read_json, ".json .arb"),
    "yaml": (read_yaml, ".yaml .yml"),
    "po": (read_po, ".po .pot"),
    "xliff": (read_xliff, ".xlf .xliff .sdlxliff .mqxliff .mxliff"),
}
_BOMS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_CHARSET = re.compile(
    rb"""(?:<meta\b[^>]*?\bcharset|<\?xml\b[^>]*?\bencoding)\s*=\s*["']?\s*([\w.:-]+)""", re.I
)


def format_of(path: Path) -> str | None:
    """Returns the format that the suffix of a file tells, or None."""
    suffix = path.suffix.lower()
    return next((name for name, (_, x) in FORMATS.items() if suffix in x.split()), None)


def read_document(
    path: str | Path, format: str | None = None, languages: Languages = (None, None)
) -> Document:
    """Reads a file to translate, of at most 16 MiB. For the arguments, see `translate_document`."""
    path = Path(path)
    format = format or format_of(path)
    if format not in FORMATS:
        suffixes = " ".join(x for _, x in FORMATS.values())
        raise UserError(
            f"the suffix of a document must be one of {suffixes}, or give its format: "
            f"{', '.join(FORMATS)}. Received: {path.name}, format={format!r}"
        )
    content = read_bytes(path)
    bom = next((x for x in _BOMS if content.startswith(x)), b"")
    encoding = _BOMS.get(bom, "utf-8")
    if format in ("html", "xliff") and not bom and (declared := _CHARSET.search(content[:1024])):
        encoding = declared[1].decode().lower()
        if format == "html" and encoding in ("iso-8859-1", "latin1", "us-ascii", "ascii"):
            encoding = "cp1252"  # as browsers do
        elif format == "html" and encoding.startswith("utf-16"):
            encoding = "utf-8"
    try:
        text = content[len(bom) :].decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise CorpusError(
            f"{path}: text must be of the encoding {encoding}. Received: {error}"
        ) from None
    read, _ = FORMATS[format]
    document = read(text, languages, path)
    document.encoding, document.bom = encoding, bom
    return document


def translate_document(
    translator: BaseTranslator,
    path: str | Path,
    output: str | Path,
    format: str | None = None,
    languages: Languages = (None, None),
    glossary: Glossary | None = None,
    progress: Progress = False,
) -> list[TranslatedSegment]:
    """Translates a file: HTML, Markdown, subtitles (SRT and WebVTT), JSON, YAML, PO, XLIFF,
    or lines of text.

    All but the text stays as it is, byte for byte. Inline markup is put where its words are in the
    translation. Of PO and XLIFF, only messages without a translation are translated, and marked as
    to be checked.

    Example:

    >>> translate_document(translator, "page.html", "page.de.html", languages=("en", "de"))

    Args:
        translator: A translator whose model has attention.
        path: The file, of at most 16 MiB.
        output: The translated file. If the translation fails, the old file stays.
        format: One of `FORMATS`. Defaults to None, which means that the suffix of the file tells.
        languages: Codes of the languages of the model. HTML gets the second as `lang`, and `dir` if
            it is written from right to left; text of HTML in other languages than the first stays.
        glossary: Translations of terms.
        progress: As of `translate`.

    Returns:
        The translated segments in the order of the file.

    Raises:
        UserError: If the format is unknown, the file is malformed, has another encoding than it
            declares or other languages, or the output is the file itself.
    """
    check_other_file(Path(output), Path(path), option="output")
    document = read_document(path, format, languages)
    with output_bytes(output) as file:
        content, segments = document.translate(translator, glossary, progress)
        file.write(content)
    return segments
