"""Runs the decoding loop of beam search and sampling. Each step decodes one token.

The steps are grouped into stages. A stage ends when the cache is full. The next stage has a larger
cache. `search` runs all stages, and can be compiled as one function. `StagedSearch` compiles each
stage separately. It also ends a stage when the unfinished sentences fit into a smaller batch. The
next stage then has the smaller batch.
"""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import (
    CompiledFunctions,
    compiles_each_shape,
    makes_graphs,
)
from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.options import DecodingOptions, SamplingOptions, SearchOptions
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.shortlist import (
    check_limits_vocabulary,
    limit_request,
    with_token_ids,
)
from keras_transformer.decoding.steps import IMPOSSIBLE, Request, SearchResult, TokenRule
from keras_transformer.decoding.token_rules import rules_of_options
from keras_transformer.errors import check_sizes
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.translation.buckets import FEW_SHAPES, MANY_SHAPES, Shapes

Strategy = BeamSearch | Sampling

# Up to these numbers of sentences, a search would spend more time on compiling than it saves, see
# `AdaptiveSearch`. Estimated for the tiny model on 2 cores.
GRAPH_SENTENCES, FEW_SHAPES_SENTENCES = 4096, 16384

# Maximum number of tokens of the first stage of `search`, which always compiles all stages.
FIRST_STAGE = 24

# Stands for bos and eos where the vocabulary has no such token.
NO_ID = -1


def search(
    model: Any,
    request: Any,
    *,
    max_length: Any,
    options: DecodingOptions | None = None,
    rules: Sequence[TokenRule] = (),
    bos_id: int | None = None,
    eos_id: int | None = None,
    beam_size: Any = None,
) -> SearchResult:
    """Finds translations by beam search or by random sampling.

    `compile_function` can compile this function on every backend. The search never chooses padding
    or bos, but may choose unk. On one machine and backend, results are repeatable.

    Example:

    >>> result = search(model, source_ids, max_length=60, options=SearchOptions(n_best=2))
    >>> result.ids[:, 0]                                             # (B, 60), the best hypotheses

    Args:
        model: A model that implements `Searchable` (`models/protocol.py`).
        request: int tensor `(B, S)`, the source ids, or a `Request`.
        max_length: Maximum length L of a hypothesis in tokens, eos included. L can be a 0-d int
            tensor in a TensorFlow graph without XLA, because loops may change shapes there.
        options: `SearchOptions` for beam search or `SamplingOptions` for sampling. Defaults to
            `SearchOptions()`. If `options.max_length` is also set, the smaller limit applies.
        rules: Token rules, such as `ForbiddenWords`. They apply after the rules that `options` turn
            on. If the rules allow no token for a hypothesis, the hypothesis is dropped. Defaults to
            no rules.
        bos_id: Id of the beginning of a sentence. Defaults to None, which means 2, or no id if the
            model reads prompts, as a `LanguageModel` does.
        eos_id: Id of the end of a sentence. Defaults to None, which means 3, or no id if the model
            reads prompts.
        beam_size: Number of beams as a 0-d int tensor, if the number is known only at run time.
            With `beam_size`, the search returns `beam_size` hypotheses and requires
            `request.beam_sizes`. Defaults to None, which means `options.beam_size` beams and
            `options.n_best` hypotheses.

    Returns:
        A `SearchResult`.

    Raises:
        ValueError: If the request has a field that this kind of search does not support, has floats
            instead of ids, or lacks `beam_sizes` that `beam_size` requires. If a number or a target
            id in the request is out of range, except in a compiled function, where only shapes are
            known. If `max_length` is below 1. If there is a coverage penalty but the model has no
            attention.
    """
    strategy = make_strategy(model, options or SearchOptions(), rules, bos_id, eos_id, beam_size)
    request = request if isinstance(request, Request) else Request(request)
    max_length = _checked_length(max_length)
    if beam_size is not None and request.beam_sizes is None:
        raise ValueError("`beam_size` requires `request.beam_sizes`.")
    if rules and request.shortlist is not None:
        raise ValueError(f"`rules` can't be combined with a shortlist. Received: rules={rules}")
    return run_stages(model, request, max_length, strategy=strategy)


def _checked_length(max_length: Any) -> Any:
    """Returns an int, or a tensor of int32. Raises `ValueError` for other numbers."""
    if isinstance(max_length, Integral):
        check_sizes(max_length=max_length)
        return int(max_length)
    dtype = keras.backend.standardize_dtype(getattr(max_length, "dtype", "float32"))
    if "int" not in dtype:
        raise ValueError(
            f"`max_length` must be an integer or a tensor of integers. Received: {max_length}"
        )
    return ops.cast(max_length, "int32")


def make_strategy(
    model: Any,
    options: DecodingOptions,
    rules: Sequence[TokenRule] = (),
    bos_id: int | None = None,
    eos_id: int | None = None,
    beam_size: Any = None,
) -> Strategy:
    """Returns a `BeamSearch` for `SearchOptions` or a `Sampling` for `SamplingOptions`.

    For the arguments, see `search`.
    """
    if not isinstance(options, SearchOptions | SamplingOptions):
        raise TypeError(
            f"`options` must be SearchOptions or SamplingOptions. Received: options={options!r}"
        )
    check_coverage_penalty(model, options)
    reads_prompt = getattr(model, "reads_prompt", False)
    if bos_id is None:
        bos_id = NO_ID if reads_prompt else 2
    if eos_id is None:
        eos_id = NO_ID if reads_prompt else 3
    if eos_id == model.pad_id != NO_ID:
        raise ValueError(
            "`eos_id` must differ from the model's `pad_id`, because padding is never chosen. A "
            "model with `pad_id=-1` can choose every token. "
            f"Received: eos_id={eos_id}, model.pad_id={model.pad_id}"
        )
    ids = {"bos_id": bos_id, "eos_id": eos_id, "pad_id": model.pad_id}
    rules = (*rules_of_options(options, eos_id), *rules)
    if isinstance(options, SamplingOptions):
        if beam_size is not None:
            raise ValueError("`beam_size` must be None for sampling.")
        return Sampling(options, rules, **ids)
    sizes = (options.beam_size, options.n_best) if beam_size is None else (beam_size, beam_size)
    return BeamSearch(options, rules, *sizes, **ids)


def check_coverage_penalty(model: Any, options: DecodingOptions) -> None:
    """Raises ValueError if `options` has a coverage penalty but the model has no attention."""
    coverage_penalty = getattr(options, "coverage_penalty", 0.0)
    if coverage_penalty and not hasattr(model, "source_attention"):
        raise ValueError(
            "`coverage_penalty` needs a model with attention (a method `source_attention`). "
            f"Received: coverage_penalty={coverage_penalty}, model={type(model).__name__}"
        )


class StagedSearch:
    """Searches many batches faster than `search`, with the same results.

    In `search`, a batch keeps its size until the last sentence is finished. `StagedSearch`
    continues with a smaller batch as soon as the unfinished sentences fit into the smaller batch.
    Each batch size is compiled when it first occurs.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._compiled = CompiledFunctions(model, (_begin, ()), (_resize, ()), (_advance, (1, 2)))

    def __call__(
        self, request: Request, strategy: Strategy, max_length: int, shapes: Shapes = MANY_SHAPES
    ) -> SearchResult:
        """Runs the search for a request of NumPy arrays, and returns NumPy arrays."""
        begin, resize, advance = self._compiled.current()
        rows = np.arange(len(request.source_ids))
        sizes = batch_sizes(len(rows), shapes)
        lengths = stage_lengths(self._model, request.source_ids.shape[1], max_length, shapes)
        request, state, cache = begin(
            request, strategy=strategy, max_length=max_length, length=lengths[0]
        )
        found = _empty_result(len(rows), strategy, max_length)
        length = lengths[0]
        while True:
            state, cache, result, is_open = advance(
                request,
                state,
                cache,
                strategy=strategy,
                length=length,
                max_open=next((size for size in sizes if size < len(rows)), 0),
            )
            result = SearchResult(*map(ops.convert_to_numpy, result))
            _write_rows(found, rows, result)
            is_open = ops.convert_to_numpy(is_open)
            if not is_open.any() or result.steps == max_length:
                return found
            kept = _rows_to_keep(is_open, sizes)
            rows = rows if kept is None else rows[kept]
            if shapes.first_stage is None:
                length = max_length
            else:
                length = next(length for length in lengths if length > result.steps)
            request, state, cache = resize(
                request, state, cache, kept, strategy=strategy, length=length
            )


class Plan(NamedTuple):
    """Plan for searching a list of sentences.

    `shapes` are the sizes of the batches. If `in_graph` is True, the search uses one graph for all
    shapes. Otherwise, the search is compiled for each shape, except on PyTorch.
    """

    shapes: Shapes
    in_graph: bool = False


class AdaptiveSearch:
    """Runs searches, and chooses what to compile by the number of sentences searched so far.

    On TensorFlow, if the model's `accepts_any_shape` is True, beam search uses one graph for all
    shapes for the first `GRAPH_SENTENCES` sentences. This graph runs without XLA. In all other
    cases, TensorFlow and JAX run programs that XLA compiles for each shape. Until
    `FEW_SHAPES_SENTENCES` sentences, batches have few different shapes, and afterwards many.
    PyTorch compiles nothing, so it always uses many shapes.
    """

    def __init__(self, model: Any) -> None:
        self._staged = StagedSearch(model)
        self._in_graph = CompiledFunctions(model, (run_stages, ()), any_shape=True)
        self._accepts_any_shape = makes_graphs() and getattr(model, "accepts_any_shape", False)
        self._num_sentences = 0

    def plan(self, num_sentences: int, strategy: Strategy) -> Plan:
        """Returns the plan for the next `num_sentences` sentences."""
        self._num_sentences += num_sentences
        has_graph = self._accepts_any_shape and isinstance(strategy, BeamSearch)
        if has_graph and self._num_sentences <= GRAPH_SENTENCES:
            return Plan(MANY_SHAPES, in_graph=True)
        is_short = compiles_each_shape() and self._num_sentences <= FEW_SHAPES_SENTENCES
        return Plan(FEW_SHAPES if is_short else MANY_SHAPES)

    def __call__(
        self, request: Request, strategy: Strategy, max_length: int, plan: Plan
    ) -> SearchResult:
        """Runs the search for a request of NumPy arrays, and returns NumPy arrays."""
        if not plan.in_graph:
            return self._staged(request, strategy, max_length, plan.shapes)
        (run,) = self._in_graph.current()
        result = run(request, np.int32(max_length), strategy=strategy)
        return SearchResult(*map(ops.convert_to_numpy, result))


def stages(model: Any, max_length: int, first: int, factor: int = 2) -> list[int]:
    """Returns the length of the hypotheses at the end of each stage, in tokens.

    The lengths are `first`, `first * factor`, `first * factor**2` and so on. The last length is
    `max_length`.

    For a model without `extend_cache`, there is a single stage of `max_length` tokens.
    """
    if not hasattr(model, "extend_cache"):
        return [max_length]
    lengths = (first * factor**exponent for exponent in range(max_length.bit_length()))
    return [*(length for length in lengths if length < max_length), max_length]


def stage_lengths(model: Any, width: int, max_length: int, shapes: Shapes) -> list[int]:
    """Returns the lengths of `stages` for a batch of sources of `width` tokens."""
    if shapes.first_stage is None:
        return stages(model, max_length, width, factor=max_length)
    return stages(model, max_length, shapes.first_stage)


def batch_sizes(rows: int, shapes: Shapes) -> list[int]:
    """Returns the numbers of rows that a batch of `rows` rows may have in turn.

    A batch of more than 8 rows shrinks by `shapes.row_factor`, and a batch of 8 rows to 2. Fewer
    than 8 rows stay. More small sizes would hardly save time, and each size must be compiled. If
    `shapes.first_stage` is None, a batch shrinks only once.
    """
    sizes = [rows]
    while sizes[-1] >= 8 and not (shapes.first_stage is None and len(sizes) > 1):
        sizes.append(sizes[-1] // shapes.row_factor if sizes[-1] > 8 else 2)
    return sizes


def run_stages(
    model: Any, request: Request, max_length: Any, *, strategy: Strategy, in_python: bool = False
) -> SearchResult:
    """Runs all stages of a search.

    If `max_length` is known only at run time, there is a single stage. If `in_python` is True,
    Python calls `strategy.advance` for each token, even if the backend has loops.
    """
    is_known = isinstance(max_length, int)
    lengths = stages(model, max_length, FIRST_STAGE) if is_known else [max_length]
    request, state, cache = _begin(
        model, request, strategy=strategy, max_length=max_length, length=lengths[0]
    )
    for stage, length in enumerate(lengths):
        if stage > 0:
            request, state, cache = _resize(
                model, request, state, cache, None, strategy=strategy, length=length
            )
        state, cache, result, _ = _advance(
            model, request, state, cache, strategy=strategy, length=length, in_python=in_python
        )
    return result


def _begin(
    model: Any, request: Request, *, strategy: Strategy, max_length: Any, length: Any
) -> tuple[Request, Any, Cache]:
    """Returns the request as tensors, and the state and cache before the first token."""
    request = request.as_tensors(max_length, strategy.options.max_length)
    strategy.check(request, max_length)
    sizes = (getattr(model, f"{side}vocabulary_size", None) for side in ("target_", ""))
    if size := next(filter(None, sizes), None):
        request.check_ids(size, strategy.pad_id)
    room = length if isinstance(length, int) else None
    cache = model.init_cache(request.source_ids, room, strategy.num_beams)
    if request.shortlist is not None:
        check_limits_vocabulary(model)
        specials = (strategy.pad_id, strategy.bos_id, strategy.eos_id)
        request = limit_request(request, max(specials) + 1, strategy.pad_id)
        cache = model.limit_vocabulary(cache, request.shortlist)
    return request, strategy.start(request, length), cache


def _resize(
    model: Any,
    request: Request,
    state: Any,
    cache: Cache,
    rows: Any,
    *,
    strategy: Strategy,
    length: int,
) -> tuple[Request, Any, Cache]:
    """Keeps the sentences with indices `rows` (None = all), and makes room for `length` tokens."""
    if rows is not None:
        cache = cache.take_sentences(rows, request.source_ids.shape[0])
        position = state.position
        request, state = keras.tree.map_structure(
            lambda x: None if x is None else ops.take(x, rows, axis=0),
            (request, state._replace(position=None)),
        )
        state = state._replace(position=position)
    if hasattr(model, "extend_cache"):
        cache = model.extend_cache(cache, length)
    return request, strategy.widen(state, length), cache


def _advance(
    model: Any,
    request: Request,
    state: Any,
    cache: Cache,
    *,
    strategy: Strategy,
    length: Any,
    max_open: int = 0,
    in_python: bool = False,
) -> tuple[Any, Cache, SearchResult, Any]:
    """Decodes up to `length` tokens, but stops if at most `max_open` sentences are unfinished.

    Returns the state, the cache, the result so far, and a bool mask `(B,)` of unfinished sentences.
    """
    in_python = in_python or not getattr(model, "compiles", True)
    loop = _python_loop if in_python else ops.while_loop
    state, cache = loop(
        lambda state, _: ops.logical_and(
            ops.sum(ops.cast(strategy.is_open(state), "int32")) > max_open, state.position < length
        ),
        lambda state, cache: strategy.advance(model, request, state, cache),
        (state, cache),
    )
    result = strategy.result(request, state)
    if request.shortlist is not None:
        result = with_token_ids(result, request.shortlist)
    return state, cache, result, strategy.is_open(state)


def _python_loop(condition: Callable[..., Any], body: Callable[..., Any], state: Any) -> Any:
    """Does the same as `ops.while_loop`, but calls both functions before each step, from Python."""
    while ops.convert_to_numpy(condition(*state)):
        state = body(*state)
    return state


def _rows_to_keep(is_open: np.ndarray, sizes: Sequence[int]) -> np.ndarray | None:
    """Returns the indices of the rows to keep (None = all). Unfinished sentences come first."""
    size = min(size for size in sizes if size >= is_open.sum())
    return None if size >= len(is_open) else np.argsort(~is_open, kind="stable")[:size]


def _empty_result(batch: int, strategy: Strategy, max_length: int) -> SearchResult:
    shape = (batch, strategy.num_results)
    return SearchResult(
        ids=np.full((*shape, max_length), strategy.pad_id, "int32"),
        scores=np.full(shape, IMPOSSIBLE, "float32"),
        log_probabilities=np.full(shape, IMPOSSIBLE, "float32"),
        lengths=np.zeros(shape, "int32"),
        steps=np.zeros((), "int32"),
    )


def _write_rows(found: SearchResult, rows: np.ndarray, result: SearchResult) -> None:
    """Copies `result` to `rows` of `found`. The ids in `result` may be shorter than in `found`."""
    found.ids[rows, :, : result.ids.shape[-1]] = result.ids
    for array, values in zip(found[1:4], result[1:4], strict=True):
        array[rows] = values
    found.steps[...] = result.steps
