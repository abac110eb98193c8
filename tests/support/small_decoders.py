"""Small decoders, whose steps give what they compute for the whole sequence."""

import keras
import numpy as np

from keras_transformer.layers import Decoder
from support.contract import compiled, randomize, to_numpy

B, N, S, T, H, D, F = 2, 2, 7, 5, 3, 12, 11
MEMORY = {
    "memory": np.random.default_rng(1).normal(size=(B, S, D)).astype("float32"),
    "memory_padding_mask": np.arange(S)[None, :] < np.array([[4], [S]]),
}


def make_decoder(**arguments):
    decoder = Decoder(2, D, H, F, **arguments)
    decoder.build((B, T, D), (B, S, D) if decoder.use_memory else None)
    return randomize(decoder)


def assert_steps_equal_the_whole(decoder, max_length, is_fused=True):
    """Hypotheses change places after each step; the last two steps may have a longer cache."""
    generator, memory = np.random.default_rng(2), MEMORY if decoder.use_memory else {}
    tokens = generator.normal(size=(B, N, T, D)).astype("float32")
    moves = generator.integers(0, N, (T, B, N)).astype("int32")
    cache, path = decoder.init_cache(B, N, max_length, **memory), np.zeros_like(tokens)
    if not is_fused:  # as after `quantize`
        parts = {"self_attention": {}, "cross_attention": ()}
        layers = dict.fromkeys(range(decoder.num_layers), parts)
        cache = cache._replace(shared={**cache.shared, "layers": layers})
    of_beams = {name: np.repeat(x, N, axis=0) for name, x in memory.items()}
    step, whole = compiled(decoder.step), compiled(decoder)
    for position in range(T):
        if position == max_length:
            cache = decoder.extend_cache(cache, T)
        path[:, :, position] = tokens[:, :, position]
        expected = to_numpy(whole(path.reshape(B * N, T, D), **of_beams))[:, position]
        token = tokens[:, :, position].reshape(-1, D)
        output, cache, weights = step(token, cache, position)
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
        cache = cache.reorder(keras.ops.convert_to_tensor(moves[position]))
        path = np.take_along_axis(path, moves[position][:, :, None, None], axis=1)
    return weights
