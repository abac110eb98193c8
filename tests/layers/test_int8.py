"""Products of 8-bit weights, and a whole Transformer of them."""

import numpy as np
import pytest
from support.contract import to_numpy
from support.small_models import inputs_of, new_model

from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.dense import int8_matmul

N, D, M, T = 3, 11, 7, 5


def test_equals_the_product_of_the_rounded_numbers():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(N, D)).astype("float32")
    kernel = generator.integers(-127, 128, (D, M)).astype("int8")
    scale = generator.uniform(50, 200, M).astype("float32")
    x_scale = 127 / np.abs(x).max(axis=-1, keepdims=True)
    expected = np.round(x * x_scale) @ kernel.astype("float64") / (x_scale * scale)
    np.testing.assert_allclose(to_numpy(int8_matmul(x, kernel, scale)), expected, rtol=1e-4)


def test_embedding_keeps_its_vectors_to_half_a_step():
    layer = TokenEmbedding(vocabulary_size=M, d_model=D)
    ids = np.arange(M)[None]
    before = to_numpy(layer(ids))
    layer.quantize("int8")
    assert layer.embeddings.dtype == "int8"
    step = np.abs(before).max(axis=-1, keepdims=True) / 127
    assert (np.abs(to_numpy(layer(ids)) - before) <= 0.51 * step).all()


def test_embedding_refuses_other_modes():
    layer = TokenEmbedding(vocabulary_size=M, d_model=D)
    layer.build((None, None))
    with pytest.raises(NotImplementedError, match="Received: mode='int4'"):
        layer.quantize("int4")


@pytest.mark.slow
def test_quantized_model_decodes_from_the_cache_what_it_computes_at_once():
    model = new_model("sinusoidal")
    inputs = inputs_of(model)
    exact = to_numpy(model(inputs))
    model.quantize("int8")
    kernels = [weight for weight in model.weights if weight.path.endswith(("kernel", "embeddings"))]
    assert kernels and all(weight.dtype == "int8" for weight in kernels)
    full = to_numpy(model(inputs))
    error = np.abs(full - exact).max() / np.abs(exact).max()
    assert 0 < error < 0.1
    target_ids = inputs["target_ids"]
    cache = model.init_cache(inputs["source_ids"], max_length=target_ids.shape[1])
    for position in range(target_ids.shape[1]):
        logits, cache = model.step(target_ids[:, position, None], cache, position)
        np.testing.assert_allclose(to_numpy(logits)[:, 0], full[:, position], atol=2e-3)
