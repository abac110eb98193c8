"""Drops pairs of parallel text that are probably no translations."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from keras_transformer._progress import Bar
from keras_transformer.data.corpus import Pair
from keras_transformer.data.token_store import list_reasons
from keras_transformer.errors import UserError

# A language counts as wrong from this confidence on. Of 10,000 sentences of Tatoeba, English and
# German, 1 is wrong by mistake; of exchanged sides, nine tenths are found.
_CONFIDENCE = 0.7
# Languages that the detector confuses count as one.
_CLOSE = (
    {"bs", "hr", "sr"},
    {"da", "nb", "nn", "no"},
    {"id", "ms"},
    {"yue", "wuu", "zh"},
    {"ar", "ary", "arz"},
)


def is_uneven(pair: Pair, most: float) -> bool:
    """Returns whether a side has more than `most` times the UTF-8 bytes of the other.

    A character of a script that needs few characters has many bytes, so bytes suit all scripts.
    """
    shorter, longer = sorted(len(side.encode()) for side in pair)
    return longer > most * shorter


class LanguageDetector:
    """Tells whether a pair has a sentence of another language, by py3langid.

    Args:
        languages: The codes of the source and target language. A side whose language py3langid does
            not know is not checked.

    Raises:
        UserError: If py3langid is not installed, or knows neither language.
    """

    def __init__(self, languages: tuple[str, str]) -> None:
        try:
            from langcodes import Language
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ModuleNotFoundError as error:
            raise UserError(
                "data.filters.wrong_language needs py3langid: "
                "pip install 'keras3-transformer[language-id]'"
            ) from error
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        own = [str(Language.get(code).language) for code in languages]
        known = {*self._identifier.labels}
        self._sides = [_group(code) if known & _group(code) else None for code in own]
        if not any(self._sides):
            rule = "data.filters.wrong_language: py3langid must know one of the languages"
            raise UserError(f"{rule}. Received: {', '.join(languages)}")

    def is_wrong(self, pair: Pair) -> bool:
        """Returns whether a side is surely of another language than its own."""
        for side, own in zip(pair, self._sides, strict=True):
            if own is not None:
                language, confidence = self._identifier.classify(side)
                if confidence >= _CONFIDENCE and language not in {*own, "zxx"}:  # zxx: none
                    return True
        return False


@cache
def _group(language: str) -> frozenset[str]:
    return frozenset(next((group for group in _CLOSE if language in group), {language}))


@dataclass
class FilteredText:
    """Parallel text without the pairs that filters drop, as keys of `data.filters` say.

    `kept` and `dropped`, by reason, are those of the last iteration. Memory: 32 bytes per pair if
    `repeated` is set. Pairs with an empty side are kept: `TokenStore.build` drops and counts them.
    """

    pairs: Iterable[Pair]
    max_length_ratio: float | None = None
    identical: bool = False
    repeated: bool = False
    detector: LanguageDetector | None = None
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[Pair]:
        self.kept, self.dropped = 0, Counter()
        is_first = self._is_first() if self.repeated else None
        for number, pair in enumerate(Bar("filtering", iterable=self.pairs, unit="pair", delay=1)):
            if is_first is not None and not is_first[number]:
                self.dropped["an equal pair before"] += 1
            elif reason := self._reason(pair):
                self.dropped[reason] += 1
            else:
                self.kept += 1
                yield pair

    def _is_first(self) -> np.ndarray:
        """Returns whether each pair is the first of its kind: bool (pairs,)."""
        hashes = np.fromiter(map(hash, self.pairs), np.int64)
        is_first = np.zeros(len(hashes), bool)
        is_first[np.unique(hashes, return_index=True)[1]] = True
        return is_first

    def _reason(self, pair: Pair) -> str | None:
        source, target = pair
        if not source.strip() or not target.strip():
            return None
        if self.identical and source == target:
            return "equal sides"
        if self.max_length_ratio and is_uneven(pair, self.max_length_ratio):
            return f"a length ratio above {self.max_length_ratio:g}"
        if self.detector and self.detector.is_wrong(pair):
            return "another language"
        return None

    @property
    def report(self) -> str:
        """The counts of the last iteration."""
        dropped = f"{self.dropped.total():,} dropped"
        reasons = f": {list_reasons(self.dropped)}" if self.dropped else ""
        return f"filters: {self.kept:,} pairs kept, {dropped}{reasons}"
