"""Fixtures of several tests of PyTorch's recorded programs."""

import keras
import numpy as np
import pytest

from keras_transformer import SamplingOptions
from keras_transformer.decoding.batch_search import MANY_SHAPES, BatchSearch
from keras_transformer.decoding.decoding_loop import make_strategy
from keras_transformer.decoding.request import Request
from keras_transformer.models import Transformer


@pytest.fixture
def programs(monkeypatch):
    """The programs of recorded steps, or None where that failed."""
    recorded_loops = pytest.importorskip("keras_transformer._backend.recorded_loops")
    recorder = pytest.importorskip("keras_transformer._backend.recorder")
    made, program = [], recorder.Recorder.program
    monkeypatch.setattr(
        recorder.Recorder, "program", lambda *x, **y: made.append(program(*x, **y)) or made[-1]
    )
    monkeypatch.setattr(recorded_loops, "STEPS_BEFORE", 2)
    return made


@pytest.fixture
def searches():
    """Searches of one model with short limits and without, and after a change of its weights."""

    def searches(options, quantize=False, shapes=MANY_SHAPES, jit_compile=False):
        keras.utils.set_random_seed(5)
        sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
        model = Transformer(20, **sizes, dtype="float32" if quantize else "mixed_bfloat16")
        model.jit_compile = jit_compile
        generator = np.random.default_rng(2)
        request = Request(generator.integers(4, 20, (10, 5), "int32"))
        if isinstance(options, SamplingOptions):
            request = request._replace(random_numbers=generator.random((10, 2, 30)))
        elif options.beam_size == 3:
            request = request._replace(required_ids=np.full((10, 1, 1), 7, "int32"))
        short = request._replace(max_lengths=generator.integers(2, 10, 10))
        run, strategy = BatchSearch(model), make_strategy(model, options)
        found = [run(x, strategy, 30, shapes) for x in (short, request)]
        model.set_weights([x * 1.5 for x in model.get_weights()])
        if quantize:
            model.quantize("int8")
        return [*found, run(request, strategy, 30, shapes)]

    return searches
