"""Drops pairs of parallel text that are probably no translations."""

from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module

import numpy as np

from keras_transformer._progress import Bar
from keras_transformer.data.corpus import Pair
from keras_transformer.errors import UserError

# Of 10,000 sentences of Tatoeba in English and German, one is wrong at this confidence. If the
# sides are exchanged, nine tenths are.
_CONFIDENCE = 0.7
# Languages that the detector confuses count as one.
_CLOSE = ("bs hr sr", "da nb nn no", "id ms", "yue wuu zh", "ar ary arz")


def is_uneven(pair: Pair, most: float) -> bool:
    """Returns whether a side has more than `most` times the UTF-8 bytes of the other.

    Scripts with few characters per sentence have more bytes per character, so bytes suit all.
    """
    shorter, longer = sorted(len(side.encode()) for side in pair)
    return longer > most * shorter


class LanguageDetector:
    """Finds sentences of another language than their side, by py3langid.

    Raises `UserError` if py3langid is not installed or knows neither of the languages. A side whose
    language it does not know is not checked.
    """

    def __init__(self, languages: tuple[str, str]) -> None:
        try:
            from langcodes import Language, tag_is_valid

            langid = import_module("py3langid.langid")
        except ModuleNotFoundError as error:
            raise UserError(
                f"data.filters.wrong_language needs {error.name}: "
                "pip install 'keras3-transformer[language-id]'"
            ) from error
        model = langid.MODEL_FILE
        self._identifier = langid.LanguageIdentifier.from_model_file(model, norm_probs=True)
        self._sides = []
        for code in languages:
            own = str(Language.get(code).language) if tag_is_valid(code) else code
            close = {own}.union(*(group.split() for group in _CLOSE if own in group.split()))
            self._sides.append(close if close & {*self._identifier.labels} else None)
        if self._sides == [None, None]:
            rule = "data.filters.wrong_language: py3langid must know one of the languages"
            raise UserError(f"{rule}. Received: {', '.join(languages)}")

    def is_wrong(self, pair: Pair) -> bool:
        """Returns whether a side is surely of another language."""
        for sentence, own in zip(pair, self._sides, strict=True):
            language, confidence = self._identifier.classify(sentence) if own else ("", 0)
            if own and confidence >= _CONFIDENCE and language not in {*own, "zxx"}:  # zxx: none
                return True
        return False


def filtered(
    pairs: Iterable[Pair],
    counts: Counter[str],
    detector: LanguageDetector | None = None,
    max_length_ratio: float | None = None,
    identical: bool = False,
    repeated: bool = False,
) -> Iterator[Pair]:
    """Yields the pairs that the filters of a recipe keep, and counts "kept" and each reason.

    `repeated` reads the pairs twice and needs 32 bytes of memory per pair. Pairs with an empty side
    are kept: `TokenStore.build` drops and counts them.
    """
    is_first = np.zeros(0, bool)
    if repeated:
        hashes = np.fromiter(map(hash, pairs), np.int64)
        is_first = np.zeros(len(hashes), bool)
        is_first[np.unique(hashes, return_index=True)[1]] = True
    for number, pair in enumerate(Bar("filtering", iterable=pairs, unit="pair", delay=1)):
        reason = "kept"
        if repeated and not is_first[number]:
            reason = "an equal pair before"
        elif identical and pair[0] == pair[1]:
            reason = "equal sides"
        elif all(pair) and max_length_ratio and is_uneven(pair, max_length_ratio):
            reason = f"a length ratio above {max_length_ratio:g}"
        elif detector and detector.is_wrong(pair):
            reason = "another language"
        counts[reason] += 1
        if reason == "kept":
            yield pair
