"""The whole Transformer in plain NumPy, forward only: the truth the package is held to.

It knows nothing of Keras. Everything is float64 and written as the papers write it, one function a
formula, never the fast way. `weights` is a nested dictionary of arrays, keyed by the names of
layers and sublayers; masks are boolean, True = may attend. Shape letters as everywhere: B batch,
S source, T target, D d_model, H heads, K d_k, V vocabulary.
"""

import math

import numpy as np

LAYER_NORM_EPSILON = 1e-6


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def relu(x):
    return np.maximum(x, 0.0)


def gelu(x):
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def gelu_approximate(x):
    """Hendrycks and Gimpel 2016, §2: the approximation with tanh."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1.0 + np.exp(-x))


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_approximate": gelu_approximate, "silu": silu}
GATED = {"swiglu": silu, "geglu": gelu}


def dense(weights, x):
    return x @ weights["kernel"] + weights.get("bias", 0.0)


def layer_normalization(weights, x):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + LAYER_NORM_EPSILON) * weights["gamma"] + weights["beta"]


# --- Embeddings (§3.4) and positions (§3.5) --------------------------------------------------


def token_embedding(weights, ids):
    matrix = weights["embeddings"]
    return matrix[ids] * math.sqrt(matrix.shape[1])


def output_projection(weights, x):
    matrix = weights.get("output_embeddings", weights["embeddings"])
    return x @ matrix.T + weights.get("bias", 0.0)


def angles(length, size, offset=0):
    """(T, size / 2): position / 10000^(2i / size)."""
    position = np.arange(offset, offset + length)[:, None]
    two_i = np.arange(0, size, 2)[None, :]
    return position / 10000.0 ** (two_i / size)


def sinusoids(length, d_model, offset=0):
    """(T, D): sine at even features, cosine at odd ones."""
    table = np.zeros((length, d_model))
    table[:, 0::2] = np.sin(angles(length, d_model, offset))
    table[:, 1::2] = np.cos(angles(length, d_model, offset))[:, : d_model // 2]
    return table


def half_split_sinusoids(length, d_model, offset=0):
    """(T, D): all sines, then all cosines."""
    table = sinusoids(length, d_model, offset)
    return np.concatenate([table[:, 0::2], table[:, 1::2]], axis=-1)


def tensor2tensor_sinusoids(length, d_model, first=0):
    """(T, D), D even: all sines, then all cosines, as `get_timing_signal_1d` of tensor2tensor."""
    position = np.arange(first, first + length)[:, None]
    i = np.arange(d_model // 2)[None, :]
    scaled_time = position / 10000.0 ** (i / (d_model // 2 - 1))
    return np.concatenate([np.sin(scaled_time), np.cos(scaled_time)], axis=-1)


FIRST_POSITIONS = {"sinusoidal_marian": 0, "sinusoidal_opennmt": 1, "sinusoidal_fairseq": 2}


def index(length):
    """(T, 1)."""
    return np.arange(length)[:, None].astype("float64")


def binary_digits(length, num_digits):
    """(T, num_digits), lowest digit first."""
    return np.arange(length)[:, None] // 2 ** np.arange(num_digits) % 2.0


def add_features(x, features):
    """One feature is added to all D; several are added to the first ones."""
    if features.shape[-1] == 1:
        return x + features
    x = x.copy()
    x[..., : features.shape[-1]] += features[:, : x.shape[-1]]
    return x


def append_features(weights, x, features):
    features = np.broadcast_to(features, (*x.shape[:2], features.shape[-1]))
    return dense(weights["projection"], np.concatenate([x, features], axis=-1))


def encode_positions(weights, x, encoding, max_length=None):
    """Adds positions to the embeddings (B, T, D); those of attention leave them unchanged."""
    length, d_model = x.shape[1:]
    if encoding in ("none", "rotary", "alibi", "t5"):
        return x
    if encoding == "sinusoidal":
        return x + sinusoids(length, d_model)
    if encoding == "sinusoidal_half_split":
        return x + half_split_sinusoids(length, d_model)
    if encoding in FIRST_POSITIONS:
        return x + tensor2tensor_sinusoids(length, d_model, FIRST_POSITIONS[encoding])
    if encoding == "learned":
        return x + weights["position_embeddings"][:length]
    scheme = encoding.removesuffix("_concatenated")
    if scheme == "index":
        features = index(length)
    elif scheme == "normalized_index":
        features = index(length) / max_length
    elif scheme == "binary":
        features = binary_digits(length, len(f"{max_length - 1:b}"))
    else:
        raise ValueError(encoding)
    if encoding.endswith("_concatenated"):
        return append_features(weights, x, features)
    return add_features(x, features)


def rotate(heads, offset=0):
    """Turns the pair (2i, 2i + 1) of features of (..., T, K) by its angle, as complex numbers."""
    length, size = heads.shape[-2:]
    pairs = heads[..., 0::2] + 1j * heads[..., 1::2]
    pairs = pairs * np.exp(1j * angles(length, size, offset))
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(heads.shape)


def alibi_slopes(num_heads):
    """The rule of the authors: every second slope of the next power of two fills up."""
    power = 2 ** math.floor(math.log2(num_heads))
    start = 2 ** (-8 / power)
    slopes = [start * start**i for i in range(power)]
    if power < num_heads:
        slopes += alibi_slopes(2 * power)[0::2][: num_heads - power]
    return slopes


def t5_bucket(relative_position, bidirectional, num_buckets=32, max_distance=128):
    """As in Mesh TensorFlow, one number at a time: the key's position minus the query's."""
    bucket = 0
    n = -relative_position
    if bidirectional:
        num_buckets //= 2
        bucket += (n < 0) * num_buckets
        n = abs(n)
    else:
        n = max(n, 0)
    max_exact = num_buckets // 2
    if n < max_exact:
        return bucket + n
    share = np.log(np.float32(n) / max_exact) / np.float32(math.log(max_distance / max_exact))
    large = max_exact + int(np.float32(share) * (num_buckets - max_exact))
    return bucket + min(large, num_buckets - 1)


def score_bias(weights, encoding, num_heads, length, bidirectional):
    """(H, T, T), added to the scores of self-attention."""
    distance = np.arange(length)[:, None] - np.arange(length)
    if encoding == "alibi":
        return -np.array(alibi_slopes(num_heads))[:, None, None] * np.abs(distance)
    if encoding == "t5":
        buckets = np.vectorize(lambda d: t5_bucket(-d, bidirectional))(distance)
        return np.moveaxis(weights["relative_attention_bias"][buckets], -1, 0)
    return np.zeros((num_heads, 1, 1))


# --- Attention (§3.2) ------------------------------------------------------------------------


def padding_mask(ids, pad_id=0):
    return ids != pad_id


def causal_mask(length):
    """(T, T): query t may attend to keys 0 to t."""
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    return key <= query


def pattern_mask(length, pattern, window, num_summaries=1):
    """(T, T): which keys a query may attend to."""
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    distance = np.abs(query - key)
    if pattern == "local":
        return distance <= window
    if pattern == "strided":
        return (distance <= window) | (distance % window == 0)
    if pattern == "fixed":
        return (query // window == key // window) | (key % window >= window - num_summaries)
    return np.ones((length, length), bool)


def scaled_dot_product_attention(
    query, key, value, mask=True, use_scale=True, bias=0.0, soft_cap=None
):
    scores = query @ np.swapaxes(key, -1, -2)  # (..., T, S)
    if use_scale:
        scores = scores / math.sqrt(query.shape[-1])
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
    weights = softmax(np.where(mask, scores + bias, -1e9))
    return weights @ value, weights


def multi_head_attention(
    weights,
    query,
    key,
    value,
    num_heads,
    mask=True,
    use_scale=True,
    rotary=False,
    bias=None,
    soft_cap=None,
):
    """`mask` broadcasts to (B, T, S), `bias` is (H, T, S).

    Head h owns columns h * K to (h + 1) * K of the kernels. With G heads of keys and values, query
    head h has those of head h // (H / G).
    """
    queries = np.split(dense(weights["query_projection"], query), num_heads, axis=-1)
    keys = dense(weights["key_projection"], key)
    num_kv_heads = keys.shape[-1] // queries[0].shape[-1]
    values = dense(weights["value_projection"], value)
    keys, values = (
        [x for x in np.split(both, num_kv_heads, -1) for _ in range(num_heads // num_kv_heads)]
        for both in (keys, values)
    )
    outputs, probabilities = [], []
    bias = np.zeros((num_heads, 1, 1)) if bias is None else bias
    for q, k, v, b in zip(queries, keys, values, bias, strict=True):
        if "query_norm" in weights:
            q, k = normalization(weights["query_norm"], q), normalization(weights["key_norm"], k)
        if rotary:
            q, k = rotate(q), rotate(k)
        output, probability = scaled_dot_product_attention(q, k, v, mask, use_scale, b, soft_cap)
        outputs.append(output)
        probabilities.append(probability)
    joined = np.concatenate(outputs, axis=-1)
    return dense(weights["output_projection"], joined), np.stack(probabilities, axis=1)


# --- Layers (§3.1, §3.3) ---------------------------------------------------------------------


def feed_forward(weights, x, activation="relu"):
    if activation in GATED:  # Shazeer 2020, eq. 6
        gated = GATED[activation](dense(weights["inner"], x)) * dense(weights["gate"], x)
        return dense(weights["outer"], gated)
    return dense(weights["outer"], ACTIVATIONS[activation](dense(weights["inner"], x)))


def normalization(weights, x):
    """Layer or RMS normalization, or batch normalization in inference."""
    if "scale" in weights:  # Zhang and Sennrich 2019, eq. 4
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + LAYER_NORM_EPSILON) * weights["scale"]
    if "moving_mean" not in weights:
        return layer_normalization(weights, x)
    deviation = np.sqrt(weights["moving_variance"] + LAYER_NORM_EPSILON)
    return weights["gamma"] * (x - weights["moving_mean"]) / deviation + weights["beta"]


def residual(weights, x, sublayer, norm_first):
    if norm_first:
        return x + sublayer(normalization(weights["norm"], x))
    return normalization(weights["norm"], x + sublayer(x))


def attend(weights, kind, x, memory, mask, num_heads, norm_first, **options):
    """Attention to `memory`, or to `x` itself where that is None, with its residual."""

    def sublayer(x):
        if "forget_gate" in weights[kind]:
            return ssru(weights[kind], x)
        key = x if memory is None else memory
        return multi_head_attention(weights[kind], x, key, key, num_heads, mask, **options)[0]

    return residual(weights[f"{kind}_residual"], x, sublayer, norm_first)


def ssru(weights, x):
    forget = 1 / (1 + np.exp(-dense(weights["forget_gate"], x)))
    candidate = dense(weights["candidate"], x)
    state, states = np.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = forget[:, t] * state + (1 - forget[:, t]) * candidate[:, t]
        states.append(relu(state))
    return np.stack(states, axis=1)


def layer(weights, x, mask, num_heads, activation="relu", norm_first=False, memory=None, **scores):
    """A layer of the encoder, or with `memory`, states and their mask, one of the decoder.

    `scores`: `use_scale` and `soft_cap` of attention, and of self-attention `rotary` and `bias`.
    """
    common = num_heads, norm_first
    x = attend(weights, "self_attention", x, None, mask, *common, **scores)
    if memory is not None:
        without_positions = {**scores, "rotary": False, "bias": None}
        x = attend(weights, "cross_attention", x, *memory, *common, **without_positions)

    def network(x):
        return feed_forward(weights["feed_forward"], x, activation)

    return residual(weights["feed_forward_residual"], x, network, norm_first)


# --- The model (Figure 1) --------------------------------------------------------------------


def layer_arguments_of(config):
    names = ("num_heads", "activation", "norm_first")
    rotary, soft_cap = config["position_encoding"] == "rotary", config["attention_soft_cap"]
    return {**{x: config[x] for x in names}, "rotary": rotary, "soft_cap": soft_cap}


def transformer(weights, config, source_ids, target_ids):
    """(B, S), (B, T) to logits (B, T, V). `config` holds the arguments of the model."""
    joint = config["target_vocabulary_size"] is None
    source_embedding = weights["embedding" if joint else "source_embedding"]
    target_embedding = weights["embedding" if joint else "target_embedding"]
    memory_mask = padding_mask(source_ids, config["pad_id"])[:, None, :]  # (B, 1, S)
    layer_arguments = {**layer_arguments_of(config), "use_scale": config["use_scale"]}

    def allowed(ids):
        return pattern_mask(ids.shape[1], config["attention_pattern"], config["attention_window"])

    def bias(positions, ids, bidirectional):
        encoding, length = config["position_encoding"], ids.shape[1]
        return score_bias(
            weights.get(positions), encoding, config["num_heads"], length, bidirectional
        )

    def embed(embedding, ids):
        vectors = token_embedding(embedding, ids)
        encoding, max_length = config["position_encoding"], config["max_length"]
        return encode_positions(weights.get("positions"), vectors, encoding, max_length)

    memory = embed(source_embedding, source_ids)
    for i in range(1, config["num_layers"] + 1):
        own, mask = weights[f"encoder_layer_{i}"], memory_mask & allowed(source_ids)
        own_bias = bias("positions", source_ids, True)
        memory = layer(own, memory, mask, **layer_arguments, bias=own_bias)
    if config["norm_first"]:
        memory = normalization(weights["encoder_norm"], memory)

    mask = causal_mask(target_ids.shape[1]) & allowed(target_ids)
    if config["normalization"] == "batch":  # the model masks padding only then
        mask = mask & padding_mask(target_ids, config["pad_id"])[:, None, :]
    x, own_bias = embed(target_embedding, target_ids), bias("decoder_positions", target_ids, False)
    given = {"memory": (memory, memory_mask), "bias": own_bias, **layer_arguments}
    for i in range(1, (config["num_decoder_layers"] or config["num_layers"]) + 1):
        x = layer(weights[f"decoder_layer_{i}"], x, mask, **given)
    if config["norm_first"]:
        x = normalization(weights["decoder_norm"], x)
    return output_projection(target_embedding, x)


def masked_language_model(weights, config, token_ids, masked_positions, segment_ids=None):
    """(B, S), (B, M) to BERT's states (B, S, D) and logits (B, M, V)."""
    mask = padding_mask(token_ids, config["pad_id"])[:, None, :]  # (B, 1, S)
    x = weights["embedding"]["embeddings"][token_ids]
    x = encode_positions(weights["positions"], x, "learned")
    if segment_ids is not None:
        x = x + weights["segment_embedding"]["embeddings"][segment_ids]
    x = layer_normalization(weights["embedding_norm"], x)
    for own in weights["encoder"]:
        x = layer(own, x, mask, config["num_heads"], config["activation"])
    masked = np.stack([row[chosen] for row, chosen in zip(x, masked_positions, strict=True)])
    hidden = ACTIVATIONS[config["activation"]](dense(weights["prediction"], masked))
    hidden = layer_normalization(weights["prediction_norm"], hidden)
    return x, output_projection(weights["embedding"], hidden) + weights["prediction_bias"]["bias"]


def language_model(weights, config, token_ids):
    """(B, T) to logits (B, T, V). `config` holds the arguments of the model."""
    encoding, length = config["position_encoding"], token_ids.shape[1]
    patterns = config["attention_pattern"]
    patterns = patterns if isinstance(patterns, list) else [patterns]
    positions = weights.get("decoder_positions")
    bias = score_bias(positions, encoding, config["num_heads"], length, False)
    x = weights["embedding"]["embeddings"][token_ids]
    x = encode_positions(weights.get("positions"), x, encoding, config["max_length"])
    for i in range(1, config["num_layers"] + 1):
        pattern = patterns[(i - 1) % len(patterns)]
        mask = causal_mask(length) & pattern_mask(length, pattern, config["attention_window"])
        own = weights[f"decoder_layer_{i}"]
        x = layer(own, x, mask, bias=bias, **layer_arguments_of(config))
    if config["norm_first"]:
        x = normalization(weights["decoder_norm"], x)
    logits, cap = output_projection(weights["embedding"], x), config["logits_soft_cap"]
    return cap * np.tanh(logits / cap) if cap else logits
