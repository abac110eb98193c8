"""A GRU that attends before each step."""

import numpy as np
import pytest
import torch
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import AttentionalGRU

B, T, S, D, M, U = 2, 5, 7, 3, 11, 4


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    shapes = {"x": (B, T, D), "initial_state": (B, U), "memory": (B, S, M)}
    arrays = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    mask = np.arange(S)[None, :] < np.array([[4], [S]])
    return {**arrays, "memory_padding_mask": mask}


@pytest.fixture
def layer(inputs):
    layer = AttentionalGRU(U)
    layer.build(*(inputs[name].shape for name in ("x", "initial_state", "memory")))
    randomize(layer)
    return layer


def test_contract(inputs, tmp_path):
    assert_layer_contract(AttentionalGRU, {"units": U}, inputs, (B, T, U + M), tmp_path)


def test_agrees_with_reference(layer, inputs):
    output, weights = map(to_numpy, layer(**inputs, return_attention_weights=True))
    for row, length in enumerate((4, S)):
        memory = inputs["memory"][row, :length]
        arrays = (inputs["x"][row], inputs["initial_state"][row], memory)
        states, contexts, expected = reference.attentional_gru(weights_of(layer), *arrays)
        both = np.concatenate([states, contexts], axis=-1)
        np.testing.assert_allclose(output[row], both, atol=1e-5)
        np.testing.assert_allclose(weights[row, :, :length], expected, atol=1e-5)
        assert (weights[row, :, length:] == 0).all()


def test_symbolic_attention_weights_have_the_shape_of_eager_ones(layer, inputs):
    import keras

    symbolic = {
        name: keras.KerasTensor(array.shape, str(array.dtype)) for name, array in inputs.items()
    }
    output, weights = layer(**symbolic, return_attention_weights=True)
    assert output.shape == (B, T, U + M) and weights.shape == (B, T, S)


def test_a_mask_that_the_memory_carries_hides_padding(layer, inputs):
    import keras

    mask = inputs.pop("memory_padding_mask")
    expected = to_numpy(layer(**inputs, memory_padding_mask=mask))
    inputs["memory"] = np.where(mask[..., None], inputs["memory"], 0.0)
    masked = {**inputs, "memory": keras.layers.Masking()(inputs["memory"])}
    np.testing.assert_allclose(to_numpy(layer(**masked)), expected, atol=1e-6)


def test_the_reference_is_the_gru_of_pytorch():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(S, D))
    weights = {
        "kernel": rng.normal(size=(D, 3 * U)),
        "recurrent_kernel": rng.normal(size=(U, 3 * U)),
        "bias": rng.normal(size=(2, 3 * U)),
    }
    order = [*range(U, 2 * U), *range(U), *range(2 * U, 3 * U)]  # PyTorch: reset before update
    parts = (weights["kernel"], weights["recurrent_kernel"], *weights["bias"])
    layer = torch.nn.GRU(D, U, dtype=torch.float64)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    layer.load_state_dict(
        {
            name: torch.from_numpy(part[..., order].T.copy())
            for name, part in zip(names, parts, strict=True)
        }
    )
    with torch.no_grad():
        expected = layer(torch.from_numpy(x))[0].numpy()
    np.testing.assert_allclose(reference.gru(weights, x), expected, atol=1e-12)
