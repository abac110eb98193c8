"""Searches of PyTorch that compile a recorded step."""

import numpy as np
import pytest

from keras_transformer import SamplingOptions, SearchOptions

pytest.importorskip("torch")
compile_graph = pytest.importorskip("keras_transformer._backend.compile_graph")

pytestmark = pytest.mark.once  # on PyTorch


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize(
    "backend, options, quantize",
    [
        ("aot_eager", SearchOptions(n_best=4), True),
        pytest.param("aot_eager", SearchOptions(beam_size=3), False, marks=pytest.mark.slow),
        ("aot_eager", SamplingOptions(num_samples=2, top_k=5), False),
        pytest.param("inductor", SearchOptions(n_best=4), True, marks=pytest.mark.slow),
    ],
    ids=["beam", "required", "sampling", "inductor"],
)
def test_compiled_searches_find_what_eager_ones_find(
    programs, searches, monkeypatch, backend, options, quantize
):
    monkeypatch.setattr(compile_graph, "BACKEND", backend)
    found = searches(options, quantize, jit_compile=True)
    assert programs and None not in programs
    for a, b in zip(searches(options, quantize), found, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)
        rtol = 0 if backend == "aot_eager" else 1e-5
        np.testing.assert_allclose(a.scores, b.scores, rtol)
