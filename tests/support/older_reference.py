"""The models from before the Transformer in NumPy, one sentence at a time and without padding."""

import math

import numpy as np

from support.reference import (
    dense,
    encode_positions,
    output_projection,
    scaled_dot_product_attention,
    softmax,
    token_embedding,
)

# --- Recurrent layers --------------------------------------------------------------------------


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def gru(weights, x, state):
    """(S, D) and a state (U) to (S, U). Cho et al. 2014; the reset gate after the product."""
    states = []
    for vector in x:
        of_input = np.split(vector @ weights["kernel"] + weights["bias"][0], 3)
        of_state = np.split(state @ weights["recurrent_kernel"] + weights["bias"][1], 3)
        update, reset = (sigmoid(of_input[gate] + of_state[gate]) for gate in (0, 1))
        state = update * state + (1 - update) * np.tanh(of_input[2] + reset * of_state[2])
        states.append(state)
    return np.stack(states)


def lstm(weights, x, states):
    """(S, D) and two states (U) to (S, U) and two states (U). Hochreiter and Schmidhuber 1997."""
    (hidden, cell), found = states, []
    for vector in x:
        gates = vector @ weights["kernel"] + hidden @ weights["recurrent_kernel"] + weights["bias"]
        entrance, forget, candidate, exit = np.split(gates, 4)
        cell = sigmoid(forget) * cell + sigmoid(entrance) * np.tanh(candidate)
        hidden = sigmoid(exit) * np.tanh(cell)
        found.append(hidden)
    return np.stack(found), (hidden, cell)


def attentional_gru(weights, x, state, memory):
    """(T, D), (U), (S, M) to states (T, U) and contexts (T, M), by v^T tanh(W q + U k)."""
    keys, found = dense(weights["key_projection"], memory), []
    for vector in x:
        query = dense(weights["query_projection"], state)
        scores = dense(weights["score_projection"], np.tanh(query + keys))[:, 0]
        context = softmax(scores) @ memory
        (state,) = gru(weights["cell"], np.concatenate([vector, context])[None], state)
        found.append((state, context))
    return tuple(map(np.stack, zip(*found, strict=True)))


def recurrent(weights, config, x, y):
    """Sutskever et al. 2014."""
    x, begin = x[::-1], np.zeros((2, config["d_model"]))
    for i in range(1, config["num_layers"] + 1):
        # A layer of the decoder reads only the layer below: both run in one pass.
        x, states = lstm(weights[f"encoder_layer_{i}"]["cell"], x, begin)
        y, _ = lstm(weights[f"decoder_layer_{i}"]["cell"], y, states)
    return dense(weights["output"], y)


def attentional_recurrent(weights, config, x, y):
    """Bahdanau et al. 2015."""
    begin = np.zeros(config["d_model"])
    forward = gru(weights["encoder_forward"]["cell"], x, begin)
    backward = gru(weights["encoder_backward"]["cell"], x[::-1], begin)[::-1]
    state = np.tanh(dense(weights["bridge"], backward[0]))
    memory = np.concatenate([forward, backward], axis=-1)
    states, contexts = attentional_gru(weights["decoder"], y, state, memory)
    hidden = dense(weights["output"], np.concatenate([states, contexts, y], axis=-1))
    return np.maximum(*np.split(hidden, 2, axis=-1))


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


def convolutional(weights, config, x, y):
    """Gehring et al. 2017."""
    size = config["kernel_size"]
    embedded = encode_positions(weights["source_positions"], x[None] * 0.1, "learned")[0]
    hidden = dense(weights["encoder_input"], embedded)
    for i in range(1, config["num_layers"] + 1):
        hidden = convolutional_encoder_layer(weights[f"encoder_layer_{i}"], hidden, size)
    key = dense(weights["encoder_output"], hidden)
    value = (key + embedded) * math.sqrt(0.5)
    embedded = encode_positions(weights["target_positions"], y[None] * 0.1, "learned")[0]
    hidden = dense(weights["decoder_input"], embedded)
    for i in range(1, config["num_decoder_layers"] + 1):
        own = weights[f"decoder_layer_{i}"]
        hidden = convolutional_decoder_layer(own, hidden, embedded, key, value, size)
    return dense(weights["decoder_output"], hidden)


# --- Whole models: from embeddings (S, D), (T, D) to the states (T, D) of the target tokens -------

MODELS = {
    "recurrent": recurrent,
    "attentional_recurrent": attentional_recurrent,
    "convolutional": convolutional,
}


def logits_of(name, weights, config, source_ids, target_ids):
    """Logits (B, T, V) of one of `MODELS`, 0 where there is padding."""
    source, target = weights["source_embedding"], weights["target_embedding"]
    pad_id = config["pad_id"]
    logits = np.zeros((*target_ids.shape, len(target["embeddings"])))
    for row, (ids, own) in enumerate(zip(source_ids, target_ids, strict=True)):
        ids, own = ids[ids != pad_id], own[own != pad_id]
        x, y = token_embedding(source, ids), token_embedding(target, own)
        states = MODELS[name](weights, config, x, y)
        logits[row, : len(own)] = output_projection(target, states)
    return logits
