"""Words of a text and of its translation that belong together."""

from typing import NamedTuple

import numpy as np


class TokenAlignment(NamedTuple):
    """How much of the attention of each target word goes to each source word.

    Attributes:
        source: Start and end of each word in the source text, in characters.
        target: Start and end of each word in the translation.
        shares: Array `(target words, source words)`.
    """

    source: list[tuple[int, int]]
    target: list[tuple[int, int]]
    shares: np.ndarray
