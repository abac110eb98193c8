"""What a translation must not change: placeholders, addresses, identifiers, numbers, symbols."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import regex

from keras_transformer.translation.edges import SYMBOL
from keras_transformer.translation.long_lines import CONSONANTS
from keras_transformer.translation.word_forms import DOTTED, INNER_CAPITAL, WordForms

# What looks like a word to the reader, a number, or nothing, or is a word in upper case.
Kind = Literal["name", "number", "mark", "emphasis"]

_FLAGS = regex.VERBOSE | regex.VERSION1
_WORDS = (
    rf"(?<!\w)(?P<titled>\p{{Lu}}{CONSONANTS}{{1,2}})\.\s(?P<titled>\p{{Lu}}[\p{{L}}\p{{M}}]++)"
    rf"| (?P<mark>{SYMBOL}++) | (?<!\w)(?P<word>{INNER_CAPITAL})"
    r"(?:(?:-(?:\d+|\p{Lu}+)|/[\d.]*\d)(?!\w))*+"
    r"| (?<=[\p{L}\p{N},;:]\s)(?P<word>\p{Lu}[\p{Ll}\p{M}]{2,}+)(?!\w)"
    rf"| (?<!\w)(?P<word>{DOTTED}|\p{{Lu}}['’]\p{{Lu}}\p{{Ll}}++)"
    r"| (?<![\p{L}\p{M}])(?P<other>[a-zA-Z]*+[^\P{L}a-zA-Z][\p{L}\p{M}]*+)"
)
_BRACES = r"\{[^{}]*+\}"
for _ in range(7):  # those inside each other
    _BRACES = rf"\{{(?:[^{{}}]++|{_BRACES}){{0,99}}+\}}"
_PATTERN = regex.compile(
    r"""
    (?(DEFINE)(?P<directive>(?:%%)*+%(?:\(\w+\)|\d+\$)?[-+0\#']*+(?:\d+|\*)?(?:\.(?:\d+|\*))?
        (?:<\w++>[\d.]*+\p{L}?+|[\p{L}@]))
      (?P<currency>\p{Sc}|(?:USD|EUR|GBP|CHF|JPY|CNY|CAD|AUD|INR|KRW|PLN|SEK|NOK)(?!\p{L}))
      (?P<braces>"""
    + _BRACES
    + r""")
      (?P<template>(?!\{\{[\#/^])(?:(?=\{\{)(?&braces)(?<=\}\}) | \{\{.{0,200}?\}\}
        | [$\#](?&braces) | [$#%@]?\{\s*[\w.\-]*\s*(?:[,:!|](?:[^{}]++|(?&braces)){0,99}+)?\})))
    (?<!\p{L}(?=\p{L}))(?: # not within a word
    (?P<mark>\{\{[\#/^].{0,200}?\}\} | \{%.{0,200}?%\} | <%(?![=\-]).{0,200}?%>  # of templates
    | (?<!\w)(?:\(\p{L}\)|\[[\ xX]\])(?!\w)                                # of items
    | [⁰¹²³⁴-⁹†‡]++ | (?<=\S)\[\d{1,3}\](?!\())                              # of notes
    | (?P<name>
      (?:(?<![a-z+.\-])[a-z][a-z+.-]*+://|(?:mailto:|www\.)(?=[^\s<>"]))              # URLs
      (?:(?:(?!&[gl]t;)[^\s<>"])*(?!&)[^\s<>"'.,;:!?)\]}»”’])?+
    | (?<![\w.+\-])[\w.+-]++@[\w-]++(?:\.[\w-]++)+ | <[^\s<>@:]++[@:][^\s<>]*+>   # e-mail addresses
    | (?<![\w.\-])(?:[\w-]++\.)+(?:com|org|net|edu|gov|info|io|dev)(?:/[^\s<>"]*[\w/])?(?!\w)
    | (?:(?<!\w)[A-Za-z]{1,2})?+(?&template)(?:[\w/:.\-]{0,3}?(?&template)){0,9}+
      (?:[A-Za-z]{1,3}(?!\w))?+ | <%.{0,200}?%>                 # templates, v{a}, {a}x{b}px
    | \[\[(?:[^\[\]{}\n]|(?&braces)){0,200}+\]\]                            # wikis
    | (?<![\w%])%[^\W\d]\w*+%(?![\w%])                                      # %NAME%
    | (?<![\w%])(?:-{0,2}\p{L}[\w.\-]{0,40}+=?|\\?0x?)?+(?&directive)              # printf
      (?:[\w/:=.\-]*?(?&directive)){0,9}+\w*+=?+(?:%%)?+
    | (?<![\w%])%(?:%\w*+|\d++%?)(?![\w%]) | (?<![\w~/])~[ADSads](?!\w)   # %%, %1 of Qt, ~a
    | \$(?:[A-Za-z_]\w*(?:\([\w.:\-]*\)|\$)?|\d[^\W\d]\w{2,}(?:=\w+)?)          # $VAR, $1name
    | (?<![\w./\#\-])[\w./\#\-]*+(?<=[a-z./\#]|\w\-)\$\d(?!\w)               # r$1
    | (?<![\w:]):[a-z_]\w+:?(?!\w) | (?<!\w)__[a-z]\w*?__(?!\w|\.\w)          # :name, __name__
    | (?<!\w)@(?:\.\w+)?:(?:\w++(?:\.\w++)*+|(?&braces))                     # @:a.b of Vue
    | (?<![\w.\-])\d+(?:\.\d+)++(?:(?<=\.\d+\.\d+)[\-+~]\w[\w.+~\-]*(?<=\w)
      |[\-.]?(?:alpha|beta|a|b|dev|post|pre|rc)[.\-]?\d+)(?!\w)               # 1.2.3-rc.1
    | &(?:\w[\w.\-]*+|\#\w+); | \\[nrt] | <[bh]r\b[^<>]*>
    | (?<!\w)`++[^`\n]+`++(?:[a-z]{1,2})?(?!\w)
    | (?<!\w)(?P<quote>["'])(?:[^\w\s"'.]{1,3}|\$\d)(?P=quote)(?!\w)               # "|"
    | (?=["\w])(?<=^\s*|[{,]\s*)(?:"[\w.\-]++"\s?[:=](?=\s?[\d"'\[{,;}]|\s*$) # keys of messages
      | [\w.\-]++\s?=(?=\s?["'\[{,;}]|\s*$|\ \p{L})) | ^\s*<[\w/?!][^<>]*>\s*$  # and a tag alone
    | (?<!\w)\p{Lu}++(?:&\p{Lu}++|\+\+|\#)(?!\w) | (?<![\w.])\.\p{Lu}{2,}+(?!\w) # R&D, C++, .NET
    | (?<![\w@#])[@#]\w+ | (?<![\w-])(?:--[a-z][\w-]*(?:=[\w.\-]*\w)?|-[A-Za-z](?!\w))
    | (?<![\w.])(?:(?!a\(n\))\p{L}\([\w,\ ]+\) | [\w.]++\(\) | \p{L}\w*+(?:[+^|]\w++)++
      | \p{L}[\-/](?:\p{L}|\d+)(?!\w|[\-./]\w))                        # f(x), Ctrl+C, a|b, A-Z, I/O
    | (?<![\w.\-])[\w-]{2,}(?:\(\d+\))?\.(?:[a-z]{2,4}\d?)(?!\w|\.\w)             # names of files
    | (?<![^\s("'])(?:~|\.{1,2})?/[\w.\-/:]*\w | (?<!\w)[A-Z]:\\[\w.\-\\]*\w      # and paths
    | (?<![\w.\-])(?:[^\W\d][\w.\-]*+(?:==?|[<>]=?(?=\d))|\p{L}\ [=<>≤≥]\ )[\w.\-/:^]*\w
      (?:\ [+\-*/=]\ [\w.^]*\w)*+                                             # a=5, y = 2x + 3
    | (?<![\w:])(?:[\dA-Fa-f]{1,4}:){3,7}[\dA-Fa-f]{1,4}(?![\w:])
    | (?<=\S\s)<\p{L}[\w\ .\-]{0,40}>                                         # <word>
    | (?<![\w\-])\d{4}-\d\d-\d\dT[\d:.]*\d(?:Z|[+\-]\d\d:?\d\d)?(?!\w)
    | (?<!\w)\p{Lu}{2}\d\d(?:\ \d{2,}){2,}+(?!\w)                              # bank accounts
    | (?<!\w)(?:\d*[^\W\d]+[\d_]\w*(?:[.\-]\w+)*+|\d{5,}[a-f]++(?!\w))          # identifiers
    )
    | (?P<number>                                                           # also amounts
      (?<![\w.\-−+])(?:\+\d[\d\ ()/\-]{5,}|\(\d+\)[\d\ /\-]{5,}              # of a telephone
        |\d{2,}(?:\ \d{2,}){2}[\d\ ]*)\d(?!\w)                                # or a card
    | (?<![\w.−+]|(?<!\p{L})\-)(?:(?:[<>]=?|[≤≥≈~±§])\s?)?[\-−+]?(?:(?&currency)\s?)?[\-−+]?
      (?:\d{1,3}(?:[\ \u00a0\u202f]\d{3})++(?!\d)|\d*[¼-¾⅐-⅞]|\.?\d+(?:[.,:\-/^+*='’]\d+)*+)
      (?:
        (?P<unit>\s?(?:[cdkm]?m(?:[²³]|/[hs])?|[kM]?g|[km]?l|h|min|oz|lbs|ft|mph|px|dpi|kWh?
          |[kKMGT]i?B|[kMGT]?Hz|[AP]M)|[ap]m|m?s|k|\.?x)(?![\w'’])
      | (?:\s?°\s?[CF]|\p{Lu})(?![\w'’])
      | (?!\w)(?:\s?(?:(?&currency)|[%‰]%?|°)(?![\w{(]|<PRI))?
      )
      )
    | """
    + _WORDS
    + ")",
    _FLAGS,
)
# In a text of words alone, only `_WORDS` can be found. This is about 14 times as fast.
_PLAIN = regex.compile(r"(?:[\p{L}\p{M}\s,;!?]++|\.(?!\S)|(?<=\p{L})['’](?=\p{L}))*+")
_PLAIN_PATTERN = regex.compile(
    rf"(?P<number>)(?P<unit>)(?<!\p{{L}}(?=\p{{L}}))(?:{_WORDS})", _FLAGS
)
_SENTENCE = regex.compile(r"(?<!\p{L})\p{Ll}{4}|[.!?]$")  # no title has any of these
# Words to try in a search for words that the model copies, and how many of them are enough.
_MOST_TRIED, _ENOUGH = 300, 16


def protected(text: str, forms: WordForms) -> Iterator[tuple[int, int, Kind]]:
    """Yields the start, end and kind of a text's placeholders, addresses, numbers and the like.

    If ordinary words of a text are in upper case, too, it has no emphasis, and no acronyms. In a
    title, no other word with a capital is a name. A word with a foreign letter always is.
    """
    is_upper = text.isupper() and any(map(forms.is_emphasized, regex.findall(r"\p{L}+", text)))
    is_title = not _SENTENCE.search(text)
    pattern = _PLAIN_PATTERN if _PLAIN.fullmatch(text) else _PATTERN
    for found in pattern.finditer(text):
        kind: Kind = "number" if found["number"] else "mark" if found["mark"] else "name"
        start, end = found.span()
        if (unit := found["unit"] or "")[:1].isspace() and len(unit) > 2 and forms.knows(unit[1:]):
            end -= len(unit)
        names = found.captures("titled")  # as in Mr. Smith
        if names and (not forms.words or all(map(forms.knows, names))):
            continue
        if (word := found["word"] or found["other"]) and forms.is_foreign(word):
            kind = "name"
        elif found["other"]:
            continue
        elif word:
            kind = "name" if forms.is_name(word) else "emphasis"
            is_none = is_upper or (is_title and word[1:].islower())
            if is_none or not (kind == "name" or forms.is_emphasized(word)):
                continue
        if text[start:end] != "1":  # It is one of few numbers whose word has another form.
            yield start, end, kind


def numbers_differ(source: str, translation: str) -> bool:
    """Returns whether a translation has other numbers than its source, which has numbers.

    The translation can have 1 in words. Marks between thousands do not count, nor does another mark
    between the same digits.
    """
    own, found = map(_numbers, (source, translation))
    return bool(own and not own - {"1"} <= found <= own)


def _numbers(text: str) -> set[str]:
    found = regex.findall(r"\d+(?:[.,:\-/\u00a0\u202f]\d+)*", text)
    whole = (regex.sub(r"[^\d:\-/](?=\d{3}(?!\d))", "", x) for x in found)
    return {regex.sub(r"\D", ".", x) for x in whole}


def with_stand_ins(
    forms: WordForms, source_pieces: Sequence[str], translate: Callable[[list[str]], list[str]]
) -> WordForms:
    """Returns the forms with names and numbers that the model copies, in sentences of one word."""
    pieces = (x.removeprefix("▁") for x in source_pieces if x[:1] == "▁")
    words = [x for x in forms.forms or pieces if regex.fullmatch(r"\p{Lu}\p{Ll}{2,}", x)]
    numbers = [str(x) for x in (*range(20, 100, 10), *range(11, 100)) if x % 11]

    def copied(tried: list[str]) -> tuple[str, ...]:
        sentences = [f"{x}{forms.final_mark or '.'}" for x in tried]
        found = zip(tried, sentences, translate(sentences), strict=True)
        return tuple([x for x, sentence, text in found if text == sentence][:_ENOUGH])

    names = copied(words[:_MOST_TRIED])
    return replace(forms, names=names, numbers=copied([*dict.fromkeys(numbers)]))
