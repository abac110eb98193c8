#!/usr/bin/env python
"""What the packaged translator keeps of real text: tags, placeholders, numbers, terms and case.

The sentences, the expected word of each tag and the terms are in `real_text.tsv`; the rest are test
sentences of the run. A tag is right if it is around one of its expected words. A placeholder or a
number is kept if it is in the translation. A term counts if it is there, and "usual" counts the
usual word that should not be. BLEU is of the first 500 test sentences, changed as the names say;
what stands beside a label, brackets and a semicolon is not counted, nor are quotes, nor the case of
the line with a word in upper case. `same` is the share of sentences with one mark and no digit that
stay as they were. `--speed N` also translates the first N test sentences as lines and as HTML
documents, in turn, in which no sentence, each third and each has a tag, in per cent of the rate of
lines.
"""

import csv
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _common import Parser, limit_threads, show

DATA = Path(__file__).with_suffix(".tsv")
TAG = re.compile(r"<(\w+)[^>]*>(.*?)</\1>")
NUMBER = re.compile(r"\d+(?:[.,:\-]\d+)*")
PLACEHOLDER = re.compile(r"https?://\S*\w|www\.\S*\w|\S+@\S*\w|\{\{\w+\}\}|\$?\{\w+\}|%\S*[sd]\b")
# The least that counts as success.
EXPECTED = {"tags": 64, "placeholders": 29, "numbers": 25, "terms": 97, "usual": -5}
ENDS = {"no_mark": "", "colon": ":", "semicolon": ";"}
EXPECTED |= dict.fromkeys("paragraph label item brackets quotes clauses word".split(), 45.0)
EXPECTED |= dict.fromkeys(("upper", "title", "lower"), 45.0) | dict.fromkeys(ENDS, 43.0)
EXPECTED |= dict.fromkeys(("speed_0", "speed_1/3", "speed_1"), 80.0)
EXPECTED |= {"hasty": 44.0, "same": 100.0}
LINES, TERMS, ROUNDS = 500, 100, 5
Change = Callable[[str], str]


def tagged(text: str) -> Any:
    """Returns the segment of a sentence with tags."""
    from keras_transformer.translation import Segment, Span

    plain, spans, last = "", [], 0
    for found in TAG.finditer(text):
        plain += text[last : found.start()]
        start, before = len(plain), found[0][: found.start(2) - found.start()]
        plain += found[2]
        spans.append(Span(start, len(plain), before, f"</{found[1]}>"))
        last = found.end()
    return Segment(plain + text[last:], tuple(spans))


def right_tags(translation: str, tags: Sequence[str], expected: Sequence[str]) -> int:
    """Returns how many of the tags are around one of their expected words."""
    found, pairs = TAG.findall(translation), zip(tags, expected, strict=True)
    return sum(any((tag, word) in found for word in words.split("|")) for tag, words in pairs)


def title(text: str) -> str:
    return re.sub(r"(?<![\w'])\w", lambda x: x[0].upper(), text)


def hasty(text: str) -> str:
    """Returns a sentence without apostrophes and capitals inside, and with misplaced spaces."""
    text = re.sub(r"(?<= )[A-Z]", lambda x: x[0].lower(), re.sub(r"'|(?<=,) ", "", text))
    return re.sub(r"(?=[.!?]$)", " ", text)


def word_changed(change: Change) -> Change:
    """Returns a function that changes the longest word of a sentence, but the first and names."""
    words = re.compile(r"(?<=\w )[a-z]{3,}|$")
    return lambda text: text.replace(x := max(words.findall(text), key=len), x and change(x), 1)


def with_end(end: str) -> Change:
    return lambda text: text.rstrip(".!?") + end


def segments(rows: Sequence[Sequence[str]], translator: Any) -> dict[str, int]:
    """Counts what is kept of the sentences in `real_text.tsv`."""
    from keras_transformer.translation import Segment

    counts = {"tags": 0, "placeholders": 0, "numbers": 0}
    rows = [row for row in rows if row[0] in counts]
    given = [tagged(row[1]) if row[0] == "tags" else Segment(row[1]) for row in rows]
    translations = translator.translate_segments(given)
    for (kind, source, *expected), found in zip(rows, translations, strict=True):
        if kind == "tags":
            names = [name for name, _ in TAG.findall(source)]
            count, most = right_tags(found.text, names, expected), len(expected)
        else:
            pattern = NUMBER if kind == "numbers" else PLACEHOLDER
            parts = pattern.findall(source)
            count, most = sum(x in found.text for x in parts), len(parts)
            if kind == "numbers":  # of a sentence
                count, most = int(count == most), 1
        counts[kind] += count
        if count < most:
            print(f"{kind} {count}/{most}: {source} | {found.text}")
    return counts


def terms(rows: Sequence[Sequence[str]], translator: Any, sources: Sequence[str]) -> dict[str, int]:
    """Counts the terms of the glossary in test sentences, and the words that they replace."""
    from keras_transformer.translation import Glossary, Segment

    given = [row[1:] for row in rows if row[0] == "terms"]
    pairs = [(s, x) for s in sources for x in given if re.search(rf"\b{x[0]}\b", s)][:TERMS]
    glossary = Glossary({term: translation for term, translation, _ in given})
    found = translator.translate_segments([Segment(s) for s, _ in pairs], glossary=glossary)
    counts = {"terms": 0, "usual": 0}
    for (source, (_, term, usual)), x in zip(pairs, found, strict=True):
        is_there = [bool(re.search(rf"\b(?:{word})", x.text)) for word in (term, usual)]
        counts["terms"] += is_there[0]
        counts["usual"] += is_there[1]
        if is_there != [True, False]:
            print(f"terms: {source} | {x.text}")
    return counts


def case(plain: Any, translator: Any, text: tuple[list[str], list[str]]) -> dict[str, float]:
    """Returns the BLEU of sentences that are written in other ways, and the share that stays."""
    from keras_transformer.evaluation.run_evaluation import bleu
    from keras_transformer.translation import Segment

    sources, references = text
    fives = [[" ".join(x[n : n + 5]) for n in range(0, len(x), 5)] for x in text]
    before, after = plain.translate(sources), translator.translate(sources)
    marked = [n for n, x in enumerate(sources) if not re.search(r"\w$|[\d\"]|[.!?] ", x)]
    notes = translator.translate_segments([Segment(f"Note: {x}") for x in sources])

    def score(change: Change, undo: Change = str, of: Change = str) -> float:
        found = translator.translate([change(x) for x in sources])
        return bleu([undo(x) for x in found], [of(x) for x in references])

    return {
        "as_written": bleu(after, references),
        "paragraph": bleu(translator.translate(fives[0]), fives[1]),
        "label": bleu([x.text.partition(": ")[2] for x in notes], references),
        "item": score("- {}".format, lambda x: x.removeprefix("- ")),
        "brackets": score(lambda x: f"{x} (I think so)", lambda x: re.sub(r" ?\(.*?\)", "", x)),
        "quotes": score(word_changed('"{}"'.format), lambda x: x.replace('"', "")),
        "clauses": score(lambda x: f"{x[:-1]}; {x}", lambda x: x.partition("; ")[2]),
        "word": score(word_changed(str.upper), str.lower, str.lower),
        "upper": score(str.upper, of=str.upper),
        "title": score(title),
        "lower": score(str.lower),
        "hasty": score(hasty),
        **{name: score(with_end(x), of=with_end(x)) for name, x in ENDS.items()},
        "same": 100 * sum(before[n] == after[n] for n in marked) / len(marked),
    }


def speed(translator: Any, sources: Sequence[str]) -> dict[str, float]:
    """Returns the rates of documents in per cent of that of lines, as medians."""
    from keras_transformer.documents import translate_document

    def document(every: int) -> str:
        tagged = [re.sub(r"^(\S+)", r"<b>\1</b>", x) for x in sources]
        lines = (tagged[n] if every and not n % every else x for n, x in enumerate(sources))
        return "".join(f"<p>{x}</p>\n" for x in lines)

    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        for _ in range(ROUNDS + 1):
            for name, every in {"lines": 0, "speed_0": 0, "speed_1/3": 3, "speed_1": 1}.items():
                page.write_text(document(every), encoding="utf-8")
                begin = time.perf_counter()
                if name == "lines":
                    translator.translate(sources)
                else:
                    translate_document(translator, page, page.with_suffix(".de.html"))
                seconds.setdefault(name, []).append(time.perf_counter() - begin)
    medians = {name: statistics.median(x[1:]) for name, x in seconds.items()}
    return {name: 100 * medians["lines"] / x for name, x in medians.items() if name != "lines"}


def main() -> None:
    parser = Parser(__doc__ or "", "example: python scripts/bench/real_text.py")
    parser.add_argument("--engine", choices=("ctranslate2", "keras"), default="ctranslate2")
    parser.add_argument("--speed", type=int, metavar="N", help="also measure with N sentences")
    arguments = parser.parse()
    limit_threads()
    from keras_transformer import Run, open_translator

    run = Run.open("tatoeba_en_de")
    translator = open_translator(run, engine=arguments.engine)
    plain = open_translator(run, engine=arguments.engine, as_written=True)
    sources, references = map(list, zip(*run.text.pairs("test"), strict=True))
    rows = list(csv.reader(DATA.open(encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE))
    found: dict[str, float] = {**segments(rows, translator), **terms(rows, translator, sources)}
    found |= case(plain, translator, (sources[:LINES], references[:LINES]))
    if arguments.speed:
        found |= speed(translator, sources[: arguments.speed])
    table = [{"what": x, "figure": n, "at_least": EXPECTED.get(x)} for x, n in found.items()]
    show(table, {"what": "", "figure": ".2f", "at_least": ""}, arguments.json)
    low = [x for x, n in EXPECTED.items() if x in found and found[x] * (1 if n > 0 else -1) < n]
    raise SystemExit(f"too low: {', '.join(low)}" if low else 0)


if __name__ == "__main__":
    main()
