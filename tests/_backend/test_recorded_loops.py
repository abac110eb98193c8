"""Searches of PyTorch replay a recorded step: on a CPU, compiled, or as a CUDA graph."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import SamplingOptions, SearchOptions
from keras_transformer._backend import compile_function
from keras_transformer.decoding.batch_search import MANY_SHAPES, BatchSearch
from keras_transformer.decoding.decoding_loop import make_strategy
from keras_transformer.decoding.request import Request
from keras_transformer.models import Transformer

torch = pytest.importorskip("torch")
compile_graph = pytest.importorskip("keras_transformer._backend.compile_graph")
cuda_graphs = pytest.importorskip("keras_transformer._backend.cuda_graphs")
recorded_loops = pytest.importorskip("keras_transformer._backend.recorded_loops")
cuda_on_cpu = pytest.importorskip("support.cuda_on_cpu").cuda_on_cpu

pytestmark = pytest.mark.once  # on PyTorch


@pytest.fixture
def programs(monkeypatch):
    """The programs of recorded steps, or None where that failed."""
    made, program = [], recorded_loops.Recorder.program
    monkeypatch.setattr(
        recorded_loops.Recorder,
        "program",
        lambda *x, **y: made.append(program(*x, **y)) or made[-1],
    )
    monkeypatch.setattr(recorded_loops, "STEPS_BEFORE", 2)
    return made


def searches(options, quantize=False, shapes=MANY_SHAPES, jit_compile=False):
    """Searches of one model with short limits and without, and after a change of its weights."""
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


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


BEAM, REQUIRED = SearchOptions(n_best=4), SearchOptions(beam_size=3)
SAMPLING = SamplingOptions(num_samples=2, top_k=5)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize(
    "options, quantize, compiler",
    [
        (BEAM, True, None),
        slow(SearchOptions(beam_size=1), False, None),
        (REQUIRED, False, None),
        (SearchOptions(coverage_penalty=0.2, no_repeat_ngram_size=2), False, None),
        (SAMPLING, False, None),
        (BEAM, True, "aot_eager"),
        slow(REQUIRED, False, "aot_eager"),
        (SAMPLING, False, "aot_eager"),
        slow(BEAM, True, "inductor"),
    ],
    ids=[
        *("beam", "greedy", "required", "rules", "sampling"),
        *("compiled beam", "compiled required", "compiled sampling", "inductor"),
    ],
)
def test_replayed_searches_are_equal_bit_for_bit(
    programs, monkeypatch, options, quantize, compiler
):
    monkeypatch.setattr(compile_graph, "BACKEND", compiler)
    found = searches(options, quantize, jit_compile=compiler is not None)
    assert programs and None not in programs
    monkeypatch.setattr(recorded_loops, "STEPS_BEFORE", np.inf)
    rtol = 1e-5 if compiler == "inductor" else 0  # It rounds otherwise.
    for a, b in zip(searches(options, quantize), found, strict=True):
        for name, x, y in zip(a._fields, a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol, err_msg=name)


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


def test_numbers_are_made_on_the_device():
    with cuda_graphs.Recordable():
        made = [torch.as_tensor(x) for x in (True, 3, 2.5, np.float32(1.5), np.array(7))]
        whole = torch.as_tensor(np.arange(3)), torch.as_tensor(torch.tensor([1.0]))
    assert [x.item() for x in made] == [True, 3, 2.5, 1.5, 7]
    assert [tuple(x.shape) for x in whole] == [(3,), (1,)]
    assert made[2].dtype == torch.float32


@pytest.mark.parametrize(
    "options, steps_per_look",
    [
        (BEAM, 1),
        slow(SearchOptions(beam_size=1), 100),
        slow(SearchOptions(num_beam_groups=2, diversity_penalty=0.5), 4),
        (SamplingOptions(num_samples=2), 4),
    ],
    ids=["beam-1", "greedy-100", "groups-4", "sampling-4"],
)
@pytest.mark.parametrize("jit_compile", [False, True], ids=["eager", "compiled"])
def test_searches_by_cuda_graphs_find_what_others_find(
    monkeypatch, options, steps_per_look, jit_compile
):
    """With a stand-in that records and replays the operations of a CPU."""
    for name, function in vars(cuda_on_cpu()).items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(compile_graph, "BACKEND", "aot_eager")
    monkeypatch.setattr(cuda_graphs, "_STEPS_PER_LOOK", steps_per_look)
    replays = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda x: (replays.append(x), replay(x)))
    of_each = []
    for is_on_gpu in (False, True):
        monkeypatch.setattr(compile_function, "is_on_cuda", lambda x=is_on_gpu: x)
        shapes = MANY_SHAPES._replace(first_stage=4)
        of_each.append(searches(options, shapes=shapes, jit_compile=is_on_gpu and jit_compile))
    expected, found = of_each
    for a, b in zip(expected, found, strict=True):
        for name in ("ids", "scores", "log_probabilities", "lengths"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert len(replays) > 2 * len(set(replays)) > 0
    assert expected[0].steps < found[0].steps or steps_per_look == 1
    assert 30 in (expected[1].steps, expected[2].steps)
