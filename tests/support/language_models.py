"""Small language models, prompts, and a tokenizer of letters."""

import functools

import ablation_layers  # noqa: F401  registers the fixed pattern
import numpy as np

from keras_transformer import LanguageModel
from support.contract import randomize, to_numpy

V, D, H, F, LAYERS, LONGEST = 29, 10, 2, 14, 2, 23
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


def next_logits(model, ids):
    """The logits of the token after `ids`, without a cache, in the shape of the longest text."""
    padded = np.full((1, LONGEST), model.pad_id, "int32")
    padded[0, : len(ids)] = ids
    return to_numpy(model(padded))[0, len(ids) - 1]


class Letters:
    """Token 1 is "a", token 2 is "b", and so on."""

    def encode(self, text):
        return [ord(letter) - 96 for letter in text]

    def decode(self, ids):
        return "".join(chr(id + 96) for id in ids)
