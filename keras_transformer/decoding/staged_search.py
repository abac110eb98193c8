"""Beam search in stages: between them the cache grows and the batch shrinks."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import compile_function
from keras_transformer.decoding.beam_search import BeamSearch, BeamState, Sentences
from keras_transformer.decoding.search import IMPOSSIBLE, SearchResult

FIRST_STAGE = 8


class StagedBeamSearch:
    """Beam search for whoever decodes one batch after another.

    It finds what `beam_search` finds. That is one function: a batch keeps its size until its last
    sentence has ended, and with XLA all of it is compiled before it begins. This one stops as soon
    as half of the sentences have ended, and goes on with the others in half as many rows; and it
    stops after 8, 16, 32, 64, ... tokens, until which its cache has room. Every size is compiled
    when it first comes up.

    Example:

    >>> search = StagedBeamSearch(model)
    >>> result = search(source_ids, max_length=60, beam_size=4)

    Args:
        model: Has `init_cache` and `step`, as `Transformer` documents them. Without `extend_cache`
            there is only one stage.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._begin = compile_function(_begin, model)
        self._resize = compile_function(_resize, model)
        self._advance = compile_function(_advance, model, donated=(1, 2))

    def __call__(self, *arrays: Any, max_length: int, **options: Any) -> SearchResult:
        """Searches.

        Args:
            *arrays: The arrays of `beam_search`, in its order.
            max_length: As in `beam_search`.
            **options: As in `beam_search`.

        Returns:
            A `SearchResult` of NumPy arrays.

        Raises:
            ValueError: If an option is out of its range.
        """
        lengths = stages(max_length) if hasattr(self._model, "extend_cache") else [max_length]
        sentences, state, cache = self._begin(
            *arrays, max_length=max_length, length=lengths[0], **options
        )
        rows = np.arange(len(arrays[0]))
        found = _nothing(len(rows), BeamSearch(**options), max_length)
        while True:
            state, cache, result, is_open = self._advance(sentences, state, cache, **options)
            result = SearchResult(*map(ops.convert_to_numpy, result))
            _write(found, rows, result)
            is_open = ops.convert_to_numpy(is_open)
            if not is_open.any() or result.steps == max_length:
                return found
            kept = self._rows_to_keep(is_open)
            rows = rows if kept is None else rows[kept]
            length = next(length for length in lengths if length > result.steps)
            sentences, state, cache = self._resize(
                sentences, state, cache, kept, length=length, **options
            )

    def _rows_to_keep(self, is_open: np.ndarray) -> np.ndarray | None:
        """Those that are open, and closed ones up to the next size; None stands for all."""
        size = len(is_open)
        while is_open.sum() <= fewer(size):
            size = fewer(size)
        return None if size == len(is_open) else np.argsort(~is_open, kind="stable")[:size]


def stages(max_length: int) -> list[int]:
    """Returns the numbers of tokens at which a search stops, the last of them `max_length`.

    >>> stages(100)
    [8, 16, 32, 64, 100]
    """
    lengths = (FIRST_STAGE << exponent for exponent in range(max_length.bit_length()))
    return [*(length for length in lengths if length < max_length), max_length]


def fewer(rows: int) -> int:
    """Returns the next smaller size of a batch, or 0.

    Between 8 rows and 2 time hardly falls, and each size is compiled.

    >>> fewer(32), fewer(8), fewer(2)
    (16, 2, 0)
    """
    return rows // 2 if rows > 8 else 2 if rows > 2 else 0


def _begin(
    model: Any, *arrays: Any, max_length: int, length: int, **options: Any
) -> tuple[Sentences, BeamState, dict[str, Any]]:
    search = BeamSearch(**options)
    sentences = search.sentences(*arrays, max_length=max_length)
    cache = model.init_cache(sentences.source_ids, length, search.beam_size)
    return sentences, search.start(sentences, length), cache


def _resize(
    model: Any,
    sentences: Sentences,
    state: BeamState,
    cache: Any,
    rows: Any,
    *,
    length: int,
    **options: Any,
) -> tuple[Sentences, BeamState, dict[str, Any]]:
    """Keeps some rows, or all with None, and makes room for `length` tokens."""
    if rows is not None:
        batch = sentences.source_ids.shape[0]
        position, cache = state.position, cache.take_sentences(rows, batch)
        sentences, state = keras.tree.map_structure(
            lambda x: None if x is None else ops.take(x, rows, axis=0),
            (sentences, state._replace(position=None)),
        )
        state = state._replace(position=position)
    pad_id = BeamSearch(**options).pad_id
    state = state._replace(
        live=state.live._replace(ids=_widened(state.live.ids, length, pad_id)),
        finished=state.finished._replace(ids=_widened(state.finished.ids, length, pad_id)),
    )
    if hasattr(model, "extend_cache"):
        cache = model.extend_cache(cache, length)
    return sentences, state, cache


def _widened(ids: Any, length: int, pad_id: int) -> Any:
    added = 1 + length - ids.shape[-1]
    return ops.pad(ids, ((0, 0), (0, 0), (0, added)), constant_values=pad_id)


def _advance(
    model: Any, sentences: Sentences, state: BeamState, cache: dict[str, Any], **options: Any
) -> tuple[BeamState, dict[str, Any], SearchResult, Any]:
    """Decodes until there is no more room, or fewer rows will do.

    Returns:
        The state, the cache, what was found, and which sentences are open, bool `(B,)`.
    """
    search = BeamSearch(**options)
    rows, _, length = state.live.ids.shape
    enough = fewer(rows)
    state, cache = ops.while_loop(
        lambda state, _: ops.logical_and(
            ops.sum(ops.cast(search.is_open(state), "int32")) > enough, state.position < length - 1
        ),
        lambda state, cache: search.advance(model, sentences, state, cache),
        (state, cache),
    )
    return state, cache, search.result(sentences, state), search.is_open(state)


def _nothing(batch: int, search: BeamSearch, max_length: int) -> SearchResult:
    shape = (batch, search.n_best)
    return SearchResult(
        ids=np.full((*shape, max_length), search.pad_id, "int32"),
        scores=np.full(shape, IMPOSSIBLE, "float32"),
        log_probabilities=np.full(shape, IMPOSSIBLE, "float32"),
        lengths=np.zeros(shape, "int32"),
        steps=np.zeros((), "int32"),
    )


def _write(found: SearchResult, rows: np.ndarray, result: SearchResult) -> None:
    """Writes the result of some rows, whose ids may be fewer, over what was found before."""
    found.ids[rows, :, : result.ids.shape[-1]] = result.ids
    found.scores[rows] = result.scores
    found.log_probabilities[rows] = result.log_probabilities
    found.lengths[rows] = result.lengths
    found.steps[...] = result.steps
