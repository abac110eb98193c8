"""Compiled searches whose request and options are plain arguments, and token rules by hand."""

import contextlib
import functools

import numpy as np
import pytest

from keras_transformer import SamplingOptions, SearchOptions, compile_function, search
from keras_transformer.decoding import Request, SearchResult
from support.contract import to_numpy
from support.fake_models import EOS


@functools.cache
def _compiled(model):
    return compile_function(search, model)


def _search(kind, model, arrays, max_length, rules, arguments):
    request = {name: arguments.pop(name) for name in Request._fields if name in arguments}
    result = _compiled(model)(
        Request(*arrays, **request),
        max_length=max_length,
        options=kind(**arguments),
        rules=tuple(rules),
    )
    return SearchResult(*map(to_numpy, result))


def beam_search(model, *arrays, max_length, rules=(), **arguments):
    """The hypotheses as NumPy arrays; `arrays` and `arguments` are the request and the options."""
    return _search(SearchOptions, model, arrays, max_length, rules, arguments)


def sample(model, source_ids, random_numbers, *arrays, max_length, rules=(), **arguments):
    """As `beam_search`, for samples."""
    arguments["random_numbers"] = random_numbers
    return _search(SamplingOptions, model, (source_ids, *arrays), max_length, rules, arguments)


@contextlib.contextmanager
def eagerly():
    """Searches without XLA on TensorFlow: compiling takes most of the time of a small search."""
    with pytest.MonkeyPatch.context() as patch:
        compiler = "keras_transformer._backend.compile_function._tensorflow"
        patch.setattr(compiler, lambda function, model, _: functools.partial(function, model))
        yield


def quick_search(model, request, max_length, options):
    """The result as NumPy arrays; inside `eagerly`, without XLA on TensorFlow."""
    compiled = compile_function(search, model)
    result = compiled(request, max_length=max_length, options=options)
    return SearchResult(*map(to_numpy, result))


def rule_by_hand(
    repetition_penalty=1.0, no_repeat_ngram_size=0, min_length=1, prefix=(), forbidden=()
):
    """The rules of options and request, on the log-probabilities `(V,)` of one hypothesis."""

    def rule(log_probabilities, ids):
        ids, following = list(ids), np.array(log_probabilities)
        tokens, size = range(len(following)), no_repeat_ngram_size
        following[list(set(ids))] *= repetition_penalty
        banned = set()
        if len(ids) + 1 < min_length:
            banned.add(EOS)
        for token in tokens:
            longer = [*ids, token]
            if size and has(ids, longer[-size:]) and len(longer) > size:
                banned.add(token)
        following[list(banned)] = -np.inf
        if len(ids) < len(prefix):
            following[:] = -np.inf
            following[prefix[len(ids)]] = 0.0
        for token in tokens:
            longer = [*ids, token]
            if any(longer[-len(words) :] == list(words) for words in forbidden):
                following[token] = -np.inf
        return following

    return rule


def has(ids, words):
    starts = range(len(ids) - len(words) + 1)
    return any(list(ids[start : start + len(words)]) == words for start in starts)
