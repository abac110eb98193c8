"""One small Transformer for every switch of the model, and inputs for them."""

import functools
from typing import Any

import ablation_layers  # noqa: F401  registers positions and patterns
import keras
import numpy as np

from keras_transformer.layers.positions.positional_encoding import POSITION_ENCODINGS
from keras_transformer.models import Transformer
from support.contract import randomize, to_numpy

B, S, T, V, TARGET_V, LENGTH = 2, 7, 5, 13, 17, 11
SIZES = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": LENGTH}

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"position_encoding": name} for name in POSITION_ENCODINGS},
    "pre_norm": {"norm_first": True},
    "gelu": {"activation": "gelu"},
    "unscaled": {"use_scale": False},
    "d_k": {"d_k": 5},
    "batch_normalization": {"normalization": "batch", "norm_first": True},
    "llama": {
        **dict(normalization="rms", activation="swiglu", use_bias=False, norm_first=True),
        **dict(position_encoding="rotary", num_heads=6, num_kv_heads=2),
    },
    "gemma": {
        **dict(normalization="rms", activation="geglu", num_kv_heads=1),
        **dict(qk_norm=True, attention_soft_cap=1.5),
    },
    "ssru": {"num_layers": 2, "decoder_layer": "keras_transformer>SSRUDecoderLayer"},
    "two_layers": {"num_layers": 2},
    "other_depth": {"num_layers": 2, "num_decoder_layers": 1},
    "separate_vocabularies": {"target_vocabulary_size": TARGET_V},
    "logits_bias": {"use_logits_bias": True},
    "own_output_matrix": {"tie_word_embeddings": False},
    "full_attention": {"attention_pattern": "full"},
    "local_attention": {"attention_pattern": "local", "attention_window": 2},
    "strided_attention": {"attention_pattern": "strided", "attention_window": 3},
    "fixed_attention": {"attention_pattern": "fixed", "attention_window": 3},
    "all_at_once": {
        "num_layers": 2,
        "target_vocabulary_size": TARGET_V,
        "norm_first": True,
        "activation": "gelu",
        "position_encoding": "rotary",
        "d_k": 6,
        "pad_id": 5,
    },
    # As in the Marian models of OPUS-MT, and those of OpenNMT.
    "all_of_opennmt": {
        "num_layers": 2,
        "target_vocabulary_size": TARGET_V,
        "norm_first": True,
        "position_encoding": "sinusoidal_opennmt",
        "tie_word_embeddings": False,
        "use_logits_bias": True,
    },
}


def new_model(variant: str = "sinusoidal", **overrides: Any) -> Transformer:
    """A model with random weights, the same on every backend."""
    return randomize(Transformer(V, **{**SIZES, **VARIANTS[variant], **overrides}))


@functools.cache
def small_model(variant: str = "sinusoidal") -> Transformer:
    """A model that tests share, and therefore must not change."""
    keras.utils.set_random_seed(0)
    return new_model(variant)


def inputs_of(model: Transformer, batch: int = B, source: int = S, target: int = T) -> dict:
    """Random ids; the first sentence is two tokens shorter than the others."""
    generator = np.random.default_rng(1)
    target_size = model.target_vocabulary_size or model.vocabulary_size
    sizes = {"source_ids": (source, model.vocabulary_size), "target_ids": (target, target_size)}
    inputs = {}
    for name, (length, vocabulary_size) in sizes.items():
        real = np.delete(np.arange(vocabulary_size), model.pad_id)
        ids = generator.choice(real, (batch, length)).astype("int32")
        ids[0, max(length - 2, 1) :] = model.pad_id
        inputs[name] = ids
    return inputs


def make_token_likelier(model, id, amount):
    """Adds about `amount` to the logits of a token: the last norm's shift points at it."""
    norm = model.decoder.norm
    if not model.norm_first:
        norm = model.decoder.layers[-1].feed_forward_residual.norm
    shift = to_numpy(norm.beta)
    embeddings = to_numpy(model.target_embedding.embeddings).copy()
    embeddings[id] += amount * shift / np.sum(shift**2)
    model.target_embedding.embeddings.assign(embeddings)
