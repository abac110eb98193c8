"""Limits the search of each sentence to a shortlist of target tokens.

Each sentence has its own shortlist, so its translation does not depend on its batch. Inside a
search with a shortlist, ids of target tokens are columns of the shortlist. The shortlist is sorted
and contains all ids up to the largest id of pad, bos and eos, which so keep their ids.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer._backend.types import Ids
from keras_transformer._files import atomic_write
from keras_transformer.data.token_store import SIDES, TokenStore
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.request import Request, SearchResult
from keras_transformer.errors import UserError
from keras_transformer.layers.attention.cache import take_columns

_LARGEST = np.iinfo(np.int32).max
_IDS = ("prefix_ids", "forbidden_ids", "required_ids")

# Maximum number of pairs of a source token and a target token in the same pair of sentences that
# are learned from. They need about 75 bytes each. In a longer text, sentences are chosen evenly.
MOST_TOKEN_PAIRS = 50_000_000
ITERATIONS = 5


class Shortlist(NamedTuple):
    """The target tokens that the translation of a sentence may contain.

    These tokens are the most frequent target tokens and the most probable translations of each
    source token of the sentence.

    Example:

    >>> shortlist = Shortlist.learn(TokenStore("runs/a/store/train"), tokenizer)
    >>> Translator(model, tokenizer, shortlist=shortlist).translate(["A man sleeps."])

    Source: Jean et al. 2015, §3.3; Junczys-Dowmunt et al. 2018, §2 (Marian).
    """

    frequent: np.ndarray  # int32 `(F,)`, ids of target tokens
    translations: np.ndarray  # int32 `(V, M)`, target ids for each source id, padded with -1
    fingerprint: str  # of the tokenizer

    @classmethod
    def learn(
        cls,
        store: TokenStore,
        tokenizer: Tokenizer,
        num_frequent: int = 100,
        num_translations: int = 30,
    ) -> "Shortlist":
        """Learns the translations of tokens from parallel text, by IBM model 1.

        Args:
            store: The `TokenStore` of the training text.
            tokenizer: The `Tokenizer` of the store.
            num_frequent: Number F of the most frequent target tokens. Defaults to 100.
            num_translations: Number M of translations of each source token. Defaults to 30.
        """
        sizes = tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size
        counts, translations = lexical_table(store, *sizes, num_translations)
        frequent = np.argsort(-counts, kind="stable")[:num_frequent].astype("int32")
        return cls(frequent, translations, tokenizer.fingerprint)

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises a ValueError if the shortlist was learned with another tokenizer."""
        if self.fingerprint != tokenizer.fingerprint:
            raise ValueError(
                "`shortlist` must be learned with the translator's tokenizer. Received: the "
                f"tokenizers {self.fingerprint[:12]} and {tokenizer.fingerprint[:12]}"
            )

    def tokens(self, source_ids: Sequence[int]) -> np.ndarray:
        """Returns the sorted ids of the target tokens for one sentence, int32 `(K,)`."""
        found = np.unique(self.translations[np.asarray(source_ids, "int32")])
        return np.union1d(self.frequent, found[found >= 0]).astype("int32")

    def save(self, path: str | Path) -> None:
        """Writes the shortlist to a `.npz` file, without pickle."""
        with atomic_write(Path(path)) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **self._asdict())

    @classmethod
    def load(cls, path: str | Path) -> "Shortlist":
        """Reads a file that `save` has written.

        Raises:
            UserError: If the file is missing or damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(arrays["frequent"], arrays["translations"], str(arrays["fingerprint"]))
        except Exception as error:  # zipfile, zlib and NumPy raise different errors
            raise UserError(f"{path} is missing or damaged: {error}") from error


def limit_request(request: Request, num_specials: int, pad_id: int) -> Request:
    """Sorts the shortlist of a request, and adds the ids below `num_specials` and those of `_IDS`.

    In the fields `_IDS`, ids are replaced by columns of the shortlist.
    """
    batch = ops.shape(request.source_ids)[0]
    fields = {name: x for name, x in request._asdict().items() if name in _IDS and x is not None}
    specials = ops.arange(num_specials, dtype="int32") + ops.zeros((batch, 1), "int32")
    # Reshapes only sequences, of which only B may be known at run time alone.
    rows = [
        x if len(x.shape) == 2 else ops.reshape(x, (-1, math.prod(x.shape[1:])))
        for x in (request.shortlist, *fields.values())
    ]
    shortlist = unique_ids(ops.concatenate([specials, *rows], axis=1), pad_id)
    columns = {name: _columns(x, shortlist) for name, x in fields.items()}
    return request._replace(shortlist=shortlist, **columns)


def unique_ids(ids: Ids, pad_id: int) -> Any:
    """Sorts each row of `ids`, int32 `(B, K)`, and replaces duplicates by padding at the end."""
    ids = ops.sort(ids, axis=1)
    is_new = ops.concatenate([ops.ones_like(ids[:, :1], "bool"), ids[:, 1:] != ids[:, :-1]], axis=1)
    ids = ops.sort(ops.where(is_new, ids, _LARGEST), axis=1)
    return ops.where(ids == _LARGEST, pad_id, ids)


def with_token_ids(result: SearchResult, shortlist: Ids) -> SearchResult:
    """Returns `result` with token ids instead of columns of the shortlist."""
    shape = ops.shape(result.ids)
    ids = take_columns(shortlist, ops.reshape(result.ids, (shape[0], -1)))
    return result._replace(ids=ops.reshape(ids, shape))


def _columns(ids: Ids, shortlist: Ids) -> Any:
    """Returns the first column of each of the `ids` `(B, ...)` in `shortlist` `(B, K)`, int32."""
    count = ops.shape(shortlist)[1]
    is_id = ids[..., None] == ops.expand_dims(shortlist, tuple(range(1, len(ids.shape))))
    return ops.min(ops.where(is_id, ops.arange(count, dtype="int32"), count), axis=-1)


def lexical_table(
    store: TokenStore, source_size: int, target_size: int, num_translations: int
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates p(target token | source token) with IBM model 1 (Brown et al. 1993, §4.1).

    Returns the number of occurrences of each of W target tokens, int64 `(W,)`, and the ids of the M
    most probable translations of each of V source tokens, best first, int32 `(V, M)`, padded by -1.
    """
    pairs = _token_pairs(store, source_size)
    keys, places = np.unique(pairs[0] * target_size + pairs[1], return_inverse=True)
    sources, targets = np.divmod(keys, target_size)
    probabilities = np.ones(len(keys))
    for _ in range(ITERATIONS):
        shares = probabilities[places]
        shares /= np.bincount(pairs[2], shares)[pairs[2]]
        expected = np.bincount(places, shares, len(keys))
        totals = np.bincount(sources, expected, source_size + 1)
        probabilities = expected / totals[sources]
    order = np.lexsort((-probabilities, sources))
    sources, targets = sources[order], targets[order]
    ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
    is_best = ranks < num_translations
    table = np.full((source_size + 1, num_translations), -1, "int32")
    table[sources[is_best], ranks[is_best]] = targets[is_best]
    pieces = store.pieces("target", np.arange(len(store)))
    return np.bincount(pieces, minlength=target_size), table[:-1]  # no empty word


def _token_pairs(store: TokenStore, empty_id: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the source id, target id and target position of each pair of tokens, int64 `(P,)`.

    The empty source word `empty_id` explains target tokens that translate no source token.
    """
    source_lengths, target_lengths = (store.lengths(side) for side in SIDES)
    step = max(1, -(-int(((source_lengths + 1) * target_lengths).sum()) // MOST_TOKEN_PAIRS))
    sources, targets, counts = [], [], []
    for index in range(0, len(store), step):
        source, target = store.pair(index)
        words = np.concatenate([[empty_id], source.astype("int64")])
        sources.append(np.tile(words, len(target)))
        targets.append(np.repeat(target.astype("int64"), len(words)))
        counts.append(np.full(len(target), len(words)))
    per_position = np.concatenate(counts)
    positions = np.repeat(np.arange(len(per_position)), per_position)
    return np.concatenate(sources), np.concatenate(targets), positions
