"""The LSTM of Keras, of PyTorch and of the reference are the same."""

import numpy as np
import torch
from support import reference
from support.contract import to_numpy
from support.seq2seq_models import small_model
from support.small_models import inputs_of

S, D, U = 7, 5, 3


def torch_weights(parts):
    """`parts` are (input kernel, recurrent kernel, input bias, recurrent bias) of `torch.nn`."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    return {name: torch.from_numpy(part.T.copy()) for name, part in zip(names, parts, strict=True)}


def test_the_reference_is_the_lstm_of_pytorch():
    rng = np.random.default_rng(0)
    x, state = rng.normal(size=(S, D)), (rng.normal(size=U), rng.normal(size=U))
    weights = {
        "kernel": rng.normal(size=(D, 4 * U)),
        "recurrent_kernel": rng.normal(size=(U, 4 * U)),
        "bias": rng.normal(size=4 * U),
    }
    layer = torch.nn.LSTM(D, U, dtype=torch.float64)  # input, forget, cell, output: as in Keras
    layer.load_state_dict(torch_weights((*weights.values(), np.zeros(4 * U))))
    with torch.no_grad():
        begin = tuple(torch.from_numpy(part)[None] for part in state)
        expected, ends = layer(torch.from_numpy(x), begin)
    found, (hidden, cell) = reference.lstm(weights, x, state)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-12)
    np.testing.assert_allclose([hidden, cell], [end[0].numpy() for end in ends], atol=1e-12)


def test_the_context_is_all_that_the_decoder_knows_of_the_source():
    model = small_model("recurrent")
    source_ids = inputs_of(model)["source_ids"]
    cache = model.init_cache(source_ids, max_length=4)
    assert cache.sentence == {}
    longer = model.init_cache(np.pad(source_ids, ((0, 0), (0, 4))), max_length=4)
    for (hidden, cell), (hidden_of_longer, cell_of_longer) in zip(
        cache.beam, longer.beam, strict=True
    ):
        assert hidden.shape == cell.shape == (len(source_ids), 1, model.d_model)
        np.testing.assert_allclose(to_numpy(hidden), to_numpy(hidden_of_longer), atol=1e-6)
        np.testing.assert_allclose(to_numpy(cell), to_numpy(cell_of_longer), atol=1e-6)
