"""Small language models, prompts, and a tokenizer of letters."""

import functools

import ablation_layers  # noqa: F401  registers the fixed pattern
import keras
import numpy as np

from keras_transformer import LanguageModel
from support.contract import compiled, randomize, to_numpy

V, D, H, F, LAYERS, LONGEST = 29, 10, 2, 14, 2, 23
N, STEPS, LENGTHS = 3, 4, [5, 1, 3]  # of `assert_steps_equal_call`
VARIANTS = {
    "learned": {},
    "rotary": {"position_encoding": "rotary", "d_model": 12},
    "t5": {"position_encoding": "t5"},
    "sinusoidal_post_norm": {"position_encoding": "sinusoidal", "norm_first": False},
    "fixed": {"attention_pattern": "fixed", "attention_window": 3},
    "alternating": {"attention_pattern": ["fixed", None], "attention_window": 3},
    "local": {"attention_pattern": "local", "attention_window": 3},
    "llama": {
        **{"normalization": "rms", "activation": "swiglu", "use_bias": False, "num_kv_heads": 1},
        **{"position_encoding": "rotary", "d_model": 12, "tie_word_embeddings": False},
    },
    "gemma": {
        **{"normalization": "rms", "activation": "geglu", "num_heads": 4, "num_kv_heads": 2},
        **{"position_encoding": "rotary", "d_k": 6, "d_v": 7, "qk_norm": True},
        **{"attention_soft_cap": 1.5, "logits_soft_cap": 2.0},
        **{"attention_pattern": ["local", None], "attention_window": 3},
    },
    "grouped_t5": {"position_encoding": "t5", "num_heads": 4, "num_kv_heads": 2, "d_k": 5},
    "padding_in_vocabulary": {"pad_id": 0},
}


def new_model(variant="learned", **changes):
    """A model with random weights; its norms have the epsilon of the NumPy reference."""
    sizes = {"num_layers": LAYERS, "d_model": D, "num_heads": H, "d_ff": F, "max_length": LONGEST}
    options = {**sizes, "norm_epsilon": 1e-6, "pad_id": -1, **VARIANTS[variant], **changes}
    return randomize(LanguageModel(V, **options))


small_model = functools.cache(new_model)


def prompts_of(model, lengths):
    """Random prompts, and the same as an array padded at the end."""
    generator = np.random.default_rng(7)
    prompts = [generator.integers(1, V, length).tolist() for length in lengths]
    padded = np.full((len(prompts), max(lengths)), model.pad_id, "int32")
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = prompt
    return prompts, padded


def next_logits(model, pad_id, ids):
    """The logits of the token after `ids`, without a cache, in the shape of the longest text."""
    padded = np.full((1, LONGEST), pad_id, "int32")
    padded[0, : len(ids)] = ids
    return to_numpy(model(padded))[0, len(ids) - 1]


def assert_steps_equal_call(model):
    """Hypotheses change places, and a prompt leaves the batch, before the cache is extended."""
    prompts, source_ids = prompts_of(model, LENGTHS)
    beams = np.random.default_rng(3).integers(1, V, (len(prompts), N, STEPS)).astype("int32")
    cache, order, rows = model.init_cache(source_ids, 2, beam_size=N), [2, 0, 0], [2, 0]
    step, whole = compiled(model.step), compiled(model)
    for position in range(STEPS):
        if position == 2:
            beams = np.concatenate([beams[:, order, :2], beams[:, :, 2:]], axis=-1)[rows]
            prompts = [prompts[row] for row in rows]
            cache = cache.reorder(keras.ops.convert_to_tensor([order] * len(LENGTHS), "int32"))
            cache = cache.take_sentences(keras.ops.convert_to_tensor(rows), len(LENGTHS))
            cache = model.extend_cache(cache, STEPS)
        # The tokens at position 0 are bos, which the model does not read.
        before = beams[:, :, position - 1] if position else np.full(beams.shape[:2], -1, "int32")
        logits, cache = step(before, cache, position)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        for row, prompt in enumerate(prompts):
            for n in range(N if position else 1):
                expected = next_logits(whole, model.pad_id, [*prompt, *beams[row, n, :position]])
                np.testing.assert_allclose(to_numpy(logits[row, n]), expected, atol=1e-5)


class Letters:
    """Token 1 is "a", token 2 is "b", and so on."""

    def encode(self, text):
        return [ord(letter) - 96 for letter in text]

    def decode(self, ids):
        return "".join(chr(id + 96) for id in ids)
