"""Drops pairs of parallel text that are probably no translations."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from keras_transformer._progress import Bar
from keras_transformer.data.languages import base_language
from keras_transformer.data.text_files import Pair
from keras_transformer.errors import UserError, imported

# Of 10,000 sentences of Tatoeba in English and German, one is wrong at this confidence. If the
# sides are exchanged, nine tenths are.
_CONFIDENCE = 0.7
# Languages that the detector confuses count as one.
_CLOSE = "bs hr sr|da nb nn no|id ms|yue wuu zh|ar ary arz|fil tl|pbt ps|quy quz qu".split("|")


def is_uneven(pair: Pair, most: float) -> bool:
    """Returns whether a side has more than `most` times the UTF-8 bytes of the other, not empty.

    Scripts with few characters per sentence have more bytes per character, so bytes suit all.
    """
    shorter, longer = sorted(len(side.encode()) for side in pair)
    return 0 < most * shorter < longer


def language_test(languages: tuple[str, str]) -> Callable[[Pair], bool]:
    """Returns a test for pairs with a sentence that is surely of another language, by py3langid.

    Raises `UserError` if py3langid is not installed or knows neither of the languages. A side whose
    language it does not know is not checked.
    """
    rule = "data.filters.wrong_language"
    langid = imported("py3langid.langid", "language-id", f"{rule} needs")
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    known, sides = {*identifier.labels}, []
    for own in map(base_language, languages):
        close = {own}.union(*(group.split() for group in _CLOSE if own in group.split()))
        sides.append({*close, "zxx"} if close & known else known)  # zxx: no language
    if sides == [known, known]:
        received = ", ".join(languages)
        raise UserError(f"{rule}: py3langid must know one of the languages. Received: {received}")

    def is_wrong(pair: Pair) -> bool:
        found = zip(map(identifier.classify, pair), sides, strict=True)
        return any(language not in own and sure >= _CONFIDENCE for (language, sure), own in found)

    return is_wrong


def filtered(
    pairs: Iterable[Pair],
    counts: Counter[str],
    max_length_ratio: float | None = None,
    identical: bool = False,
    repeated: bool = False,
    wrong_language: Callable[[Pair], bool] | None = None,
) -> Iterator[Pair]:
    """Yields the pairs that the filters of a recipe keep, and counts "kept" and each reason.

    `wrong_language` is a `language_test`. `repeated` needs about 90 bytes of memory per pair. Pairs
    with an empty side are kept: `TokenStore.build` drops and counts them.
    """
    seen: set[int] = set()
    for pair in Bar("filtering", iterable=pairs, unit="pair", delay=1):
        reason = "kept"
        if repeated and hash(pair) in seen:
            reason = "an equal pair before"
        elif identical and pair[0] == pair[1]:
            reason = "equal sides"
        elif max_length_ratio and is_uneven(pair, max_length_ratio):
            reason = f"a length ratio above {max_length_ratio:g}"
        elif wrong_language and wrong_language(pair):
            reason = "another language"
        if repeated:
            seen.add(hash(pair))
        counts[reason] += 1
        if reason == "kept":
            yield pair
