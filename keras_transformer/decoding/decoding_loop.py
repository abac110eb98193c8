"""Runs the decoding loop of beam search and sampling. Each step decodes one token.

A stage is the steps until the cache is full. The next stage has a larger cache. `search` runs all
stages, and can be compiled as one function. `BatchSearch` compiles each stage separately.
"""

import functools
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.compile_function import while_loop
from keras_transformer._backend.types import Ids, Size, Tensor
from keras_transformer.capabilities import Capabilities
from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.next_tokens import TokenRule
from keras_transformer.decoding.options import SamplingOptions, SearchOptions
from keras_transformer.decoding.request import Request, SearchResult
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.shortlist import limit_request, with_token_ids
from keras_transformer.decoding.token_rules import NO_TOKEN, rules_of_options
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.models.protocol import Searchable

Strategy = BeamSearch | Sampling

# Maximum number of tokens of the first stage of `search`, which always compiles all stages.
FIRST_STAGE = 24


def search(
    model: Searchable,
    request: Request | Ids,
    *,
    max_length: Any,
    options: SearchOptions | SamplingOptions | None = None,
    rules: Sequence[TokenRule] = (),
    bos_id: int | None = None,
    eos_id: int | None = None,
    beam_size: Tensor | None = None,
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
        max_length: Maximum length L of a hypothesis in tokens, eos included, at least 1. L can be a
            0-d int tensor in a TensorFlow graph without XLA, because loops may change shapes there.
        options: `SearchOptions` for beam search or `SamplingOptions` for sampling. Defaults to
            `SearchOptions()`. If `options.max_length` is also set, the smaller limit applies.
        rules: Token rules, such as `ForbiddenWords`. They apply after the rules that `options` turn
            on. If the rules allow no token for a hypothesis, the hypothesis is dropped. Defaults to
            no rules.
        bos_id: Id of the beginning of a sentence. Defaults to 2, or to no id if the model reads
            prompts, as a `LanguageModel` does.
        eos_id: Id of the end of a sentence. Defaults to 3, or to no id if the model reads prompts.
        beam_size: Number of beams as a 0-d int tensor, if the number is known only at run time.
            With `beam_size`, the search returns `beam_size` hypotheses and requires
            `request.beam_sizes`. Defaults to `options.beam_size` and `options.n_best`.

    Raises:
        ValueError: If the request has a field that this kind of search does not support.
    """
    strategy = make_strategy(model, options or SearchOptions(), rules, bos_id, eos_id, beam_size)
    request = request if isinstance(request, Request) else Request(request)
    if rules and request.shortlist is not None:
        raise ValueError(f"`rules` can't be combined with a shortlist. Received: rules={rules}")
    is_known = isinstance(max_length, Integral)
    max_length = int(max_length) if is_known else ops.cast(max_length, "int32")
    return run_stages(model, request, max_length, strategy=strategy)


def make_strategy(
    model: Searchable,
    options: SearchOptions | SamplingOptions,
    rules: Sequence[TokenRule] = (),
    bos_id: int | None = None,
    eos_id: int | None = None,
    beam_size: Tensor | None = None,
) -> Strategy:
    """Returns a `BeamSearch` or a `Sampling`. For the arguments, see `search`."""
    usual = (NO_TOKEN, NO_TOKEN) if Capabilities.of(model).reads_prompt else (2, 3)
    bos_id, eos_id = (y if x is None else x for x, y in zip((bos_id, eos_id), usual, strict=True))
    if eos_id == model.pad_id != NO_TOKEN:
        raise ValueError(
            "`eos_id` must differ from the model's `pad_id`, because padding is never chosen. "
            f"Received: eos_id={eos_id}, model.pad_id={model.pad_id}"
        )
    ids = {"bos_id": bos_id, "eos_id": eos_id, "pad_id": model.pad_id}
    rules = (*rules_of_options(options, eos_id), *rules)
    if isinstance(options, SamplingOptions):
        return Sampling(options, rules, options.num_samples, options.num_samples, **ids)
    if options.coverage_penalty and Capabilities.of(model).source_attention is None:
        raise ValueError(
            "`coverage_penalty` needs a model with attention (a method `source_attention`). "
            f"Received: coverage_penalty={options.coverage_penalty}, model={type(model).__name__}"
        )
    sizes = (options.beam_size, options.n_best) if beam_size is None else (beam_size, beam_size)
    return BeamSearch(options, rules, *sizes, **ids)


def run_stages(
    model: Any,
    request: Request,
    max_length: Any,
    *,
    strategy: Strategy,
    first: int = FIRST_STAGE,
) -> SearchResult:
    """Runs all stages of a search: only one if `max_length` is known only at run time.

    The first stage has `first` tokens.
    """
    is_known = isinstance(max_length, int)
    lengths = stages(model, max_length, first) if is_known else [max_length]
    sizes: dict[str, Any] = {"strategy": strategy, "length": lengths[0]}
    request, state, cache = begin(model, request, max_length=max_length, **sizes)
    state, cache, result, _ = advance(model, request, state, cache, **sizes)
    for length in lengths[1:]:
        sizes["length"] = length
        request, state, cache = resize(model, request, state, cache, None, **sizes)
        state, cache, result, _ = advance(model, request, state, cache, **sizes)
    return result


def stages(model: Searchable, max_length: int, first: int, factor: int = 2) -> list[int]:
    """Returns the lengths `first`, `first * factor`, ... and `max_length` that stages end with.

    A model without `extend_cache` has a single stage.
    """
    if Capabilities.of(model).extend_cache is None:
        return [max_length]
    lengths = (first * factor**exponent for exponent in range(max_length.bit_length()))
    return [*(length for length in lengths if length < max_length), max_length]


def begin(
    model: Any, request: Request, *, strategy: Strategy, max_length: Size, length: Size
) -> tuple[Request, Any, Cache]:
    """Returns the request as tensors, and the state and cache before the first token."""
    request = request.as_tensors(max_length, strategy.options.max_length)
    if not strategy.supports(request, max_length):
        shapes = {name: tuple(x.shape) for name, x in request._asdict().items() if x is not None}
        raise ValueError(
            f"{type(strategy).__name__} needs {strategy.needs}. "
            f"Received: max_length={max_length}, {strategy.options!r}, shapes of fields {shapes}"
        )
    room = length if isinstance(length, int) else None
    cache = model.init_cache(request.source_ids, room, strategy.num_beams)
    if request.shortlist is not None:
        specials = (strategy.pad_id, strategy.bos_id, strategy.eos_id)
        request = limit_request(request, max(specials) + 1, strategy.pad_id)
        cache = model.limit_vocabulary(cache, request.shortlist)
    return request, strategy.start(request, length), cache


def resize(
    model: Any, request: Request, state: Any, cache: Cache, rows: Any, *, strategy: Any, length: int
) -> tuple[Request, Any, Cache]:
    """Keeps the sentences with indices `rows` (None = all), and makes room for `length` tokens."""
    if rows is not None:
        cache = cache.take_sentences(rows, request.source_ids.shape[0])
        request, state = keras.tree.map_structure(  # None and the position have no rows
            lambda x: x if x is None or x is state.position else ops.take(x, rows, axis=0),
            (request, state),
        )
    if extend_cache := Capabilities.of(model).extend_cache:
        cache = extend_cache(cache, length)
    return request, strategy.widen(state, length), cache


def advance(
    model: Searchable,
    request: Request,
    state: Any,
    cache: Cache,
    *,
    strategy: Strategy,
    length: Size,
    max_open: int = 0,
) -> tuple[Any, Cache, SearchResult, Any]:
    """Decodes up to `length` tokens, but stops if at most `max_open` sentences are unfinished.

    A GPU may stop some steps later. This changes nothing in the results of finished sentences.
    Returns the state, the cache, the result so far, and a bool mask `(B,)` of unfinished sentences.
    """

    def steps_left(state: Any, _: Any) -> Any:
        num_open = ops.sum(ops.cast(strategy.is_open(state), "int32"))
        return ops.cast(num_open > max_open, "int32") * (length - state.position)

    step = functools.partial(strategy.advance, model)
    if strategy.in_python or not Capabilities.of(model).compiles:
        while ops.convert_to_numpy(steps_left(state, cache)):
            state, cache = step(request, state, cache)
    else:
        name = strategy, length, max_open
        state, cache = while_loop(steps_left, step, (state, cache), request, name)
    result = strategy.result(request, state)
    if request.shortlist is not None:
        result = with_token_ids(result, request.shortlist)
    return state, cache, result, strategy.is_open(state)
