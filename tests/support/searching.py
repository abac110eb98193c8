"""Compiled searches whose request and options are plain arguments."""

import contextlib
import functools

import pytest

from keras_transformer import SamplingOptions, SearchOptions, compile_function, search
from keras_transformer.decoding import Request, SearchResult
from support.contract import to_numpy


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
