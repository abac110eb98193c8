"""Bytes that nobody should send, and what every door must make of them."""

import gzip
import itertools

LONGEST_LINE = 1024 * 1024

_TEXTS = {
    "empty": "",
    "one newline": "\n",
    "no newline at the end": "one\ntwo",
    "only white space": " \t \u3000 \n\t\n",
    "lone carriage returns": "one\rtwo\r\nthree\r",
    "carriage returns and newlines": "one\r\n\r\ntwo\r\n",
    "NUL": "one\0two\n\0\n",
    "other line separators": "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei\n\u2028\n",
    "control characters": "\x01\x02\x1b[31m\x07\x08\x7f\n\u200b\u200e\ufeff\n",
    "combining characters": "a" + "\u0301" * 500 + "\nq\u0323\u0307\n",
    "right to left": "שלום עולם\n\u202eعالم\u202c\n",
    "emoji": "\U0001f469\u200d\U0001f4bb\n\U0001f1e9\U0001f1ea \U0001f600\ufe0f\n",
    "outside of Unicode's characters": "\ufffe\uffff\U0010ffff\ue000\n",
    "pieces": "▁\n▁▁one ▁two\n ▁ \n",
    "special tokens": "<s>\n</s> one\n<pad>\n<unk> ⁇\none </s> two\n<0x41>\n",
    "many empty lines": "\n" * 10_000,
    "tabs": "one\ttwo\n\t\n\tone\t\n",
    "a long word": "x" * 3_000 + "\n",
    "what a shell, HTML and JSON read": '$(reboot) `x`\n<b>&amp;\n{"b64": "AA=="}\n',
}
_BYTES = {
    "byte order mark": b"\xef\xbb\xbfone\ntwo\n",
    "byte order mark alone": b"\xef\xbb\xbf",
    "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbfone\n\xef\xbb\xbftwo\n",
}
NO_TEXT = {
    "UTF-16": "\ufeffone\ntwo\n".encode("utf-16-le"),
    "UTF-16, big-endian": "\ufeffone\n".encode("utf-16-be"),
    "Latin-1": "sch\xf6n\n".encode("latin-1"),
    "a character cut off": b"one\ntwo \xc3",
    "an overlong encoding": b"one\n\xc0\xaf\n",
    "a surrogate": b"one\n\xed\xa0\x80\n",
    "all bytes": bytes(range(256)),
    "an overlong line": b"one\n" + b"a" * (LONGEST_LINE + 1) + b"\ntwo\n",
    "half of a gzip file": gzip.compress("".join(f"line {n}\n" for n in range(99)).encode())[:90],
    "a gzip header alone": b"\x1f\x8b",
    "a gzip file with a wrong checksum": gzip.compress(b"one\ntwo\n", mtime=0)[:-8] + bytes(8),
    "a gzip file and more": gzip.compress(b"one\n", mtime=0) + b"more",
}

TEXT = {**{name: text.encode() for name, text in _TEXTS.items()}, **_BYTES}


def lines_of(data: bytes) -> tuple[list[str], bool]:
    """The lines before the first that is no text, and whether all are text.

    Lines end with a newline, and a carriage return before it belongs to the line end. One byte
    order mark at the beginning is no text. A first line as of UTF-16 or ISO 2022 is none, either.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    *lines, last = data.split(b"\n")
    ended = [line.removesuffix(b"\r") for line in lines] + ([last] if last else [])
    first = data[: len(ended[0]) + 1] if ended else b""
    is_other = b"\x1b$" in first or first.count(0) > max(3, len(first) // 20)
    good = [] if is_other else list(itertools.takewhile(_is_utf8, ended))
    return [line.decode() for line in good], len(good) == len(ended)


def _is_utf8(line: bytes) -> bool:
    return line.decode("utf-8", "ignore").encode() == line
