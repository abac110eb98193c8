"""Searches by CUDA graphs, with a stand-in that records and replays the operations of a CPU."""

import numpy as np
import pytest

from keras_transformer import SamplingOptions, SearchOptions
from keras_transformer._backend import compile_function
from keras_transformer.decoding.batch_search import MANY_SHAPES

torch = pytest.importorskip("torch")
compile_graph = pytest.importorskip("keras_transformer._backend.compile_graph")
cuda_graphs = pytest.importorskip("keras_transformer._backend.cuda_graphs")
cuda_on_cpu = pytest.importorskip("support.cuda_on_cpu").cuda_on_cpu

pytestmark = pytest.mark.once  # on PyTorch


@pytest.fixture
def gpu(monkeypatch):
    for name, function in vars(cuda_on_cpu()).items():
        monkeypatch.setattr(torch.cuda, name, function)


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
        (SearchOptions(n_best=4), 1),
        pytest.param(SearchOptions(beam_size=1), 100, marks=pytest.mark.slow),
        pytest.param(
            SearchOptions(num_beam_groups=2, diversity_penalty=0.5), 4, marks=pytest.mark.slow
        ),
        (SamplingOptions(num_samples=2), 4),
    ],
    ids=["beam-1", "greedy-100", "groups-4", "sampling-4"],
)
@pytest.mark.parametrize("jit_compile", [False, True], ids=["eager", "compiled"])
def test_replayed_searches_find_what_others_find(
    gpu, searches, monkeypatch, options, steps_per_look, jit_compile
):
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
