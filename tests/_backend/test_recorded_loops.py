"""Searches of PyTorch that replay a recorded step, and loops that can't be recorded."""

import numpy as np
import pytest
from keras import ops

from keras_transformer import SamplingOptions, SearchOptions
from keras_transformer._backend import compile_function

torch = pytest.importorskip("torch")
recorded_loops = pytest.importorskip("keras_transformer._backend.recorded_loops")

pytestmark = pytest.mark.once  # on PyTorch


@pytest.fixture
def programs(monkeypatch):
    """The programs of recorded steps, or None where that failed."""
    made, program = [], recorded_loops._Recorder.program
    monkeypatch.setattr(
        recorded_loops._Recorder, "program", lambda *x: made.append(program(*x)) or made[-1]
    )
    monkeypatch.setattr(recorded_loops, "STEPS_BEFORE", 2)
    return made


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize(
    "options, quantize",
    [
        (SearchOptions(n_best=4), True),
        pytest.param(SearchOptions(beam_size=1), False, marks=pytest.mark.slow),
        (SearchOptions(beam_size=3), False),
        (SearchOptions(coverage_penalty=0.2, no_repeat_ngram_size=2), False),
        (SamplingOptions(num_samples=2, top_k=5), False),
    ],
    ids=["beam", "greedy", "required", "rules", "sampling"],
)
def test_replayed_searches_are_equal_bit_for_bit(
    programs, searches, monkeypatch, options, quantize
):
    found = searches(options, quantize)
    assert programs and None not in programs
    monkeypatch.setattr(recorded_loops, "STEPS_BEFORE", np.inf)
    for a, b in zip(searches(options, quantize), found, strict=True):
        for name, x, y in zip(a._fields, a, b, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=name)


@pytest.mark.parametrize(
    "body, can_repeat",
    [
        (lambda x: x + (2 if x[0] < 3 else 1), False),
        (lambda x: x + float(x.tolist()[0] < 3), False),
        (lambda x: x + float(ops.convert_to_numpy(x)[0] < 3), False),
        (lambda x: x + x[x > 2].sum(), False),
        (lambda x: x.data + 1, False),
        (lambda x: torch.cat([x, x[:1]]), False),
        (lambda x: x + torch.tensor([1.0]).add_(1.0), True),
        (lambda x: x.split(1)[0] + x.max(0).values, True),
    ],
    ids=["item", "tolist", "numpy", "choice", "data", "growing", "constant", "several"],
)
def test_a_step_is_repeated_only_if_no_value_decides_in_python(programs, body, can_repeat):
    class Model:
        compiles = True

    def loop(model, x, count):
        def steps_left(x, count):
            return count

        def step(_, x, count):
            return body(x), count - 1

        return compile_function.while_loop(steps_left, step, (x, count), None, "loop")[0]

    compiled = compile_function.compile_function(loop, Model())
    for _ in range(3):
        expected = torch.tensor([0.5])
        for _ in range(6):
            expected = body(expected)
        assert compiled(torch.tensor([0.5]), torch.tensor(6)).tolist() == expected.tolist()
    assert len(programs) <= 1 and any(programs) == can_repeat
