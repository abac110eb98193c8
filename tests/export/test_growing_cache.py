"""A cache that grows finds what a cache of fixed size finds, without XLA."""

import numpy as np

from keras_transformer.export.serving_files import CORE


def test_search_finds_the_same_over_both_kinds_of_cache(exporting):
    grows, fixed = (exporting.answers["growing"][name] for name in ("grows", "fixed"))
    assert grows["ids"] == fixed["ids"]
    np.testing.assert_allclose(grows["scores"], fixed["scores"], atol=1e-5)


def test_only_the_cache_of_fixed_size_needs_xla(exporting):
    grows, fixed = (exporting.answers["growing"][name] for name in ("grows", "fixed"))
    assert set(fixed["operations"]) - CORE == {"XlaDynamicUpdateSlice"}
    assert not set(grows["operations"]) - CORE
