"""What layers and the optimizer compute otherwise on GPUs of PyTorch and JAX, run on a CPU."""

import keras
import numpy as np
import pytest
from support.contract import assert_same_arrays

from keras_transformer._backend import operations
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.base import Dense
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.training import TransformerAdam
from keras_transformer.training.step import optimizer


@pytest.fixture
def attention_of_xla(monkeypatch):
    """On a CPU, JAX has no attention of cuDNN."""
    if keras.config.backend() == "jax":
        import jax

        kernel = jax.nn.dot_product_attention

        def of_xla(*inputs, implementation, **options):
            return kernel(*inputs, **options)

        monkeypatch.setattr(jax.nn, "dot_product_attention", of_xla)


@pytest.mark.parametrize(
    "is_causal, is_padded, is_cross",
    [(True, True, False), (False, True, True), (False, False, True), (True, False, False)],
)
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 0.03)])
@pytest.mark.usefixtures("attention_of_xla")
def test_fused_attention_equals_the_formula(
    monkeypatch, is_causal, is_padded, is_cross, dtype, tolerance
):
    random = np.random.default_rng(1)
    query, memory = (random.normal(size=(3, n, 16)).astype("float32") for n in (6, 8))
    inputs = {"key": memory} if is_cross else {}
    options = {"use_causal_mask": is_causal}
    if is_padded:
        mask = random.random((3, 8 if is_cross else 6)) < 0.6
        mask[0], mask[1, 0] = False, True
        options = {**options, "padding_mask": mask}
    heads = {"num_heads": 2, "num_kv_heads": 1 if is_cross else 2}  # grouped in two cases of four
    attention = MultiHeadAttention(**heads, bias_initializer="random_normal", dtype=dtype)
    expected = attention(query, **inputs, **options)
    monkeypatch.setattr(operations, "FUSED_DEVICES", ("cpu",))
    found = attention(query, **inputs, **options)
    real = slice(1 if is_padded else 0, None)  # Rows of padding are only finite.
    np.testing.assert_allclose(*(to_numpy(x)[real] for x in (found, expected)), atol=tolerance)
    assert np.isfinite(to_numpy(found)).all()


@pytest.mark.parametrize(("is_causal", "is_padded"), [(True, False), (False, True)])
def test_masks_of_rows_give_the_formula(monkeypatch, is_causal, is_padded):
    random = np.random.default_rng(0)
    query = random.normal(size=(3, 6, 8)).astype("float32")
    segments = np.sort(random.integers(0, 3, (3, 6)))[:, ::-1]
    options = {"attention_mask": segments[:, :, None] == segments[:, None]}
    options |= {"use_causal_mask": is_causal, "padding_mask": segments != 0 if is_padded else None}
    attention = MultiHeadAttention(num_heads=2, num_kv_heads=1)
    expected = attention(query, **options)
    monkeypatch.setattr(operations, "FUSED_DEVICES", ("cpu",))
    found = to_numpy(attention(query, **options))
    real = segments != 0 if is_padded else slice(None)  # Rows of padding are only finite.
    np.testing.assert_allclose(found[real], to_numpy(expected)[real], atol=1e-6)
    assert np.isfinite(found).all()


@pytest.mark.once  # on PyTorch
def test_fused_adam_equals_that_of_keras(monkeypatch):
    weights = []
    for is_on_gpu in (False, True):
        monkeypatch.setattr(optimizer, "is_on_cuda", lambda is_on_gpu=is_on_gpu: is_on_gpu)
        variables = [keras.Variable(np.linspace(-1, 1, n, dtype="float32")) for n in (3, 5)]
        adam = TransformerAdam(0.1, epsilon=1e-3, weight_decay=0.01)
        for step in range(4):
            gradients = [
                keras.ops.sin(keras.ops.stop_gradient(x.value) * (step + 3)) for x in variables
            ]
            adam.apply(gradients, variables)
        weights.append([keras.ops.convert_to_numpy(x).copy() for x in variables])
    assert_same_arrays(*weights, rtol=1e-6)


def test_layers_train_as_by_their_formulas(monkeypatch):
    x = np.random.default_rng(1).normal(size=(3, 5, 6)).astype("float32")
    y = np.random.default_rng(2).normal(size=(3, 5, 4)).astype("float32")
    results = []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(operations, "FUSED_DEVICES", devices)
        keras.utils.set_random_seed(1)
        inputs = keras.Input((5, 6))
        states = MultiHeadAttention(num_heads=2, bias_initializer="random_normal")(inputs)
        states = LayerNormalization(beta_initializer="random_normal")(states)
        states = Dense(8, activation="relu", bias_initializer="random_normal")(states)
        model = keras.Model(inputs, Dense(4)(states))
        model.compile("sgd", "mse")
        model.train_on_batch(x, y)
        results.append(model.get_weights())
    assert_same_arrays(*results, atol=1e-6)


def test_softmax_parts_equal_the_formula(monkeypatch):
    logits = np.random.default_rng(1).normal(scale=20, size=(5, 300)).astype("float32")
    expected = operations.softmax_parts(keras.ops.convert_to_tensor(logits))
    monkeypatch.setattr(operations, "FUSED_DEVICES", ("cpu",))
    found = operations.softmax_parts(keras.ops.convert_to_tensor(logits))
    assert_same_arrays(found, expected, rtol=1e-5)


def to_numpy(x):
    return keras.ops.convert_to_numpy(keras.ops.cast(x, "float32"))
