"""Generates sentence pairs that are numbers and dates, written in words of two languages."""

import copy
import datetime
import re
from contextlib import suppress

import numpy as np
from langcodes import Language

from keras_transformer.errors import UserError, imported

NUMBERS = 1_000_000  # 0 ... 999,999
FIRST_DAY = datetime.date(1700, 1, 1)
DAYS = (datetime.date(2100, 1, 1) - FIRST_DAY).days

_SHARE_OF_DATES = 0.25
# The probability of drawing the number n is proportional to 1 / (n + _SMALL_NUMBER).
_SMALL_NUMBER = 1_000

# Rules for days and years in words. Babel would write them in digits.
_PATTERNS = {"de": "EEEE, 'der' d. MMMM y"}
_ORDINAL_DAYS = {"en"}
_ORDINAL_FIRST_DAYS = {"fr", "it"}
_YEARS_IN_HUNDREDS = {"da", "de", "en", "nl"}
_IRREGULAR_MONTHS = {"ko": {"육월": "유월", "십월": "시월"}}


def generate_pairs(
    count: int, source_language: str = "en", target_language: str = "de", seed: int = 0
) -> list[tuple[str, str]]:
    """Draws numbers (0 to 999,999) and dates (1700 to 2099), written out in both languages.

    About three quarters of the pairs are numbers, mostly small numbers. The other pairs are dates
    such as ("Monday, January fifth, seventeen eighty-nine", "Montag, der fünfte Januar
    siebzehnhundertneunundachtzig"). The pairs, at most 1,146,097, are different and in random
    order. num2words and Babel must support the languages, such as "en", "kor" or "pt-BR".

    Raises:
        UserError: If `count` is out of range, if num2words or Babel, the packages of the extra
            `quickstart`, is not installed, or if a language is not supported.
    """
    if not 0 <= count <= NUMBERS + DAYS:
        raise UserError(
            f"the generator has {NUMBERS + DAYS:,} different pairs. Received: {count:,} pairs"
        )
    source, target = _Writer(source_language), _Writer(target_language)
    # An item is a number n below NUMBERS, or NUMBERS + n for the day n after FIRST_DAY.
    rng = np.random.default_rng(seed)
    weights = np.empty(NUMBERS + DAYS)
    weights[:NUMBERS] = 1 / (np.arange(NUMBERS) + _SMALL_NUMBER)
    weights[:NUMBERS] *= (1 - _SHARE_OF_DATES) / weights[:NUMBERS].sum()
    weights[NUMBERS:] = _SHARE_OF_DATES / DAYS
    # Weighted draw without replacement: the items with the largest log(weight) + Gumbel noise.
    keys = np.log(weights) + rng.gumbel(size=len(weights))
    items = rng.permutation(np.argpartition(-keys, count - 1)[:count])
    return [(source.write(item), target.write(item)) for item in items.tolist()]


class _Writer:
    """Writes numbers and dates as words of one language."""

    def __init__(self, language: str) -> None:
        names, reason = ("babel", "num2words"), "data.generator needs"
        babel, num2words = (imported(name, "quickstart", reason) for name in names)
        converters = num2words.CONVERTER_CLASSES
        try:
            tag = Language.get(language)  # "deu" and "de_DE" are German, too
            name, base = str(tag).replace("-", "_"), str(tag.language)
            self._locale = babel.Locale.parse(name)
            converter = copy.copy(converters[name if name in converters else base])
            converter.to_cardinal(NUMBERS - 1)  # that of Amharic fails
        except (babel.UnknownLocaleError, ValueError, KeyError, TypeError):
            raise UserError(
                f"num2words and Babel must support the language. Received: language={language!r}"
            ) from None
        # Without words for numbers above NUMBERS, the converter is four times as fast.
        if cards := getattr(converter, "cards", None):
            converter.cards = type(cards)((n, name) for n, name in cards.items() if n <= NUMBERS)
        self._language, self._converter = base, converter
        pattern = _PATTERNS.get(base) or self._locale.date_formats["full"].pattern
        self._ordinal_days = base in _ORDINAL_DAYS or "d." in pattern
        self._tokens = re.findall(
            r"'([^']*)'|([A-Za-z]+)|([^A-Za-z']+)", pattern.replace("d.", "d")
        )

    def write(self, item: int) -> str:
        if item < NUMBERS:
            return self._converter.to_cardinal(item)
        date = FIRST_DAY + datetime.timedelta(days=item - NUMBERS)
        return "".join(
            self._write_field(field, date) if field else quoted or other
            for quoted, field, other in self._tokens
        )

    def _write_field(self, field: str, date: datetime.date) -> str:
        """Writes one field of a date. `field` is a format code such as "EEEE" for the weekday."""
        from babel.dates import format_date

        if field.startswith("d"):
            is_ordinal = date.day == 1 and self._language in _ORDINAL_FIRST_DAYS
            if self._ordinal_days or is_ordinal:
                with suppress(NotImplementedError):
                    return self._converter.to_ordinal(date.day)
            return self._converter.to_cardinal(date.day)
        if field.startswith("y"):
            in_hundreds = self._language in _YEARS_IN_HUNDREDS
            write = self._converter.to_year if in_hundreds else self._converter.to_cardinal
            return write(date.year)
        name = format_date(date, field, self._locale)
        words = re.sub(r"\d+", lambda figures: self._converter.to_cardinal(int(figures[0])), name)
        return _IRREGULAR_MONTHS.get(self._language, {}).get(words, words)
