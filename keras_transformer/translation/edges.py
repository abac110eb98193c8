"""What is around the sentence of a line: marks of items, symbols, brackets and quotes."""

import regex

# Emoji, and symbols such as notes, arrows and bullets.
SYMBOL = (
    r"(?>(?:\p{RI}\p{RI}|[\d*\#]\uFE0F?\u20E3|(?!\d)\p{Emoji}[\p{EMod}\uFE0F\U000E0020-\U000E007F]*"
    r"(?:\u200D\p{ExtPict}[\p{EMod}\uFE0F]*)*)(?<=[\p{ExtPict}\p{RI}\p{EMod}\uFE0F\u20E3\U000E007F])"
    r"|[\p{So}--[°№]]|[\u2190-\u21FF\u2022\u2023\u2043])"
)
_SMILEY = "[:;=]-?[()DPp]"
# What is before a sentence, such as the mark of an item, and after it.
_HEAD = regex.compile(
    rf"(?:(?:[-–—*•·>#+|]+|//+|/\*+|<!--|\(?\d{{1,3}}[.)]|\(?\p{{L}}\)|\[[ xX]?\]|{SYMBOL}+"
    rf"|{_SMILEY}|(?:[ivx]{{1,4}}|[IVX]{{2,4}})\.)\s+|[–—]+(?=\p{{L}})|(?:\.{{3}}|…)\s?)++(?=.*\p{{L}})",
    regex.VERSION1,
)
_TAIL = regex.compile(rf"(?:\s*{SYMBOL}|\s+(?:{_SMILEY}|[-–—]{{2,}}>?|\*/|\|))+$", regex.VERSION1)
_MARKS = r"()\[\]\"“”„«»‹›*_="
_ENCLOSED = regex.compile(rf"([{_MARKS}]++\s*+)([^{_MARKS}]+?)(?<!\s)(\s*+[{_MARKS}]+)")
_LONGEST_TAIL = 40


def edges(line: str) -> tuple[str, str, str]:
    """Returns what is before the sentence of a line, the sentence, and what is after it.

    These are the mark of an item such as `1.`, symbols, and brackets, quotes or marks of emphasis
    around all of it. A line of symbols alone has none.

    >>> edges("- (It is late.) 😀")
    ('- (', 'It is late.', ') 😀')
    """
    head = found[0] if (found := _HEAD.match(line)) else ""
    tail = found[0] if (found := _TAIL.search(line[len(head) :][-_LONGEST_TAIL:])) else ""
    line = line[len(head) : len(line) - len(tail)]
    if not line:
        return "", head + tail, ""
    if found := _ENCLOSED.fullmatch(line):
        return head + found[1], found[2], found[3] + tail
    return head, line, tail
