"""The models from before the Transformer, one sentence at a time and without padding.

In NumPy, with the recurrent layers of PyTorch.
"""

import math

import numpy as np
import torch

from support.reference import (
    dense,
    encode_positions,
    output_projection,
    scaled_dot_product_attention,
    softmax,
    token_embedding,
)

# --- Recurrent layers --------------------------------------------------------------------------


def additive_attention(weights, query, key, value):
    """(B, T, D_q), (B, S, D_k), (B, S, D_v) to (B, T, D_v): v^T tanh(W q + U k)."""
    queries = dense(weights["query_projection"], query)[:, :, None, :]
    keys = dense(weights["key_projection"], key)[:, None, :, :]
    scores = dense(weights["score_projection"], np.tanh(queries + keys))[..., 0]  # (B, T, S)
    probabilities = softmax(scores)
    return probabilities @ value, probabilities


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def torch_layer(kind, weights, gates):
    """A recurrent layer of PyTorch with Keras's weights, whose gates are in another order."""
    kernel, recurrent = weights["kernel"], weights["recurrent_kernel"]
    biases = np.broadcast_to(weights["bias"], (2, kernel.shape[1])).copy()
    biases[1] *= weights["bias"].ndim - 1  # Keras's LSTM has one bias
    layer = kind(len(kernel), len(recurrent), dtype=torch.float64, device="cpu")
    order = np.arange(kernel.shape[1]).reshape(len(gates), -1)[list(gates)].ravel()
    for parameter, part in zip(layer.parameters(), (kernel, recurrent, *biases), strict=True):
        parameter.data = torch.from_numpy(np.float64(part[..., order].T.copy()))
    return layer


def gru(weights, x, state=None):
    """(S, D) and a state (U) to (S, U). Cho et al. 2014; the reset gate after the product."""
    begin = np.zeros(len(weights["recurrent_kernel"])) if state is None else state
    layer = torch_layer(torch.nn.GRU, weights, (1, 0, 2))  # PyTorch: reset before update
    with torch.no_grad():
        states, _ = layer(torch.tensor(x.copy()).double(), torch.tensor(begin[None]).double())
    return states.numpy()


def lstm(weights, x, state):
    """(S, D) and two states (U) to (S, U) and two states (U). Hochreiter and Schmidhuber 1997."""
    begin = tuple(torch.tensor(part[None]).double() for part in state)
    with torch.no_grad():
        layer = torch_layer(torch.nn.LSTM, weights, (0, 1, 2, 3))
        states, ends = layer(torch.tensor(x.copy()).double(), begin)
    return states.numpy(), tuple(end[0].numpy() for end in ends)


def attentional_gru(weights, x, state, memory):
    """(T, D), (U), (S, M) to states (T, U), contexts (T, M) and attention weights (T, S)."""
    found = []
    for vector in x:
        context, probabilities = (
            result[0, 0]
            for result in additive_attention(weights, state[None, None], memory[None], memory[None])
        )
        state = gru(weights["cell"], np.concatenate([vector, context])[None], state)[0]
        found.append((state, context, probabilities))
    return tuple(map(np.stack, zip(*found, strict=True)))


def _sentences(model, weights, config, source_ids, target_ids):
    """Logits (B, T, V) of `model(weights, config, source_ids, embed)`; 0 where there is padding."""
    joint, pad_id = config["target_vocabulary_size"] is None, config["pad_id"]
    source, target = (
        weights["embedding" if joint else f"{side}_embedding"] for side in ("source", "target")
    )
    logits = np.zeros((*target_ids.shape, len(target["embeddings"])))
    for row, (ids, own) in enumerate(zip(source_ids, target_ids, strict=True)):
        ids, own = ids[ids != pad_id], own[own != pad_id]
        x, y = token_embedding(source, ids), token_embedding(target, own)
        logits[row, : len(own)] = output_projection(target, model(weights, config, x, y))
    return logits


def recurrent_seq2seq(weights, config, source_ids, target_ids):
    """Sutskever et al. 2014; logits (B, T, V)."""

    def model(weights, config, x, y):
        x, begin = x[::-1], (np.zeros(config["d_model"]), np.zeros(config["d_model"]))
        for i in range(1, config["num_layers"] + 1):
            # A layer of the decoder reads only the layer below: both run in one pass.
            x, state = lstm(weights[f"encoder_layer_{i}"]["cell"], x, begin)
            y, _ = lstm(weights[f"decoder_layer_{i}"]["cell"], y, state)
        return dense(weights["output"], y)

    return _sentences(model, weights, config, source_ids, target_ids)


def attentional_recurrent_seq2seq(weights, config, source_ids, target_ids):
    """Bahdanau et al. 2015; logits (B, T, V)."""

    def model(weights, config, x, y):
        forward = gru(weights["encoder_forward"]["cell"], x)
        backward = gru(weights["encoder_backward"]["cell"], x[::-1])[::-1]
        state = np.tanh(dense(weights["bridge"], backward[0]))
        memory = np.concatenate([forward, backward], axis=-1)
        states, contexts, _ = attentional_gru(weights["decoder"], y, state, memory)
        hidden = dense(weights["output"], np.concatenate([states, contexts, y], axis=-1))
        return np.maximum(*np.split(hidden, 2, axis=-1))

    return _sentences(model, weights, config, source_ids, target_ids)


# --- Convolutional layers ----------------------------------------------------------------------


def gated_convolution(weights, x, before, after):
    """(S, D) to (S, D): a kernel over the neighbours of each position, then the GLU."""
    padded = np.pad(x, ((before, after), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, before + 1 + after, axis=0)
    windows = np.swapaxes(windows, 1, 2).reshape(len(x), -1)
    values, gates = np.split(dense(weights["convolution"], windows), 2, axis=-1)
    return values * sigmoid(gates)


def convolutional_encoder_layer(weights, x, kernel_size):
    after = kernel_size // 2
    convolved = gated_convolution(weights, x, kernel_size - 1 - after, after)
    return (x + convolved) * math.sqrt(0.5)


def convolutional_decoder_layer(weights, x, embeddings, key, value, kernel_size):
    convolved = gated_convolution(weights, x, kernel_size - 1, 0)
    query = (dense(weights["query_projection"], convolved) + embeddings) * math.sqrt(0.5)
    context, _ = scaled_dot_product_attention(query, key, value, use_scale=False)
    context = context * len(key) * math.sqrt(1 / len(key))
    attended = (convolved + dense(weights["output_projection"], context)) * math.sqrt(0.5)
    return (x + attended) * math.sqrt(0.5)


def convolutional_seq2seq(weights, config, source_ids, target_ids):
    """Gehring et al. 2017; logits (B, T, V)."""

    def model(weights, config, x, y):
        size, layers = config["kernel_size"], config["num_layers"]
        embedded = encode_positions(weights["source_positions"], x[None] * 0.1, "learned")[0]
        hidden = dense(weights["encoder_input"], embedded)
        for i in range(1, layers + 1):
            hidden = convolutional_encoder_layer(weights[f"encoder_layer_{i}"], hidden, size)
        key = dense(weights["encoder_output"], hidden)
        value = (key + embedded) * math.sqrt(0.5)
        embedded = encode_positions(weights["target_positions"], y[None] * 0.1, "learned")[0]
        hidden = dense(weights["decoder_input"], embedded)
        for i in range(1, (config["num_decoder_layers"] or layers) + 1):
            own = weights[f"decoder_layer_{i}"]
            hidden = convolutional_decoder_layer(own, hidden, embedded, key, value, size)
        return dense(weights["decoder_output"], hidden)

    return _sentences(model, weights, config, source_ids, target_ids)
