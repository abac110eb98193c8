"""Writes a Transformer as a CTranslate2 model."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.exchange.source_model import (
    PLAIN_LAYERS,
    Rule,
    array,
    check_model,
    check_supported,
    position_table,
)
from keras_transformer.layers import Decoder, DecoderLayer, Encoder, RotaryPositionalEncoding
from keras_transformer.models.base import in_float32
from keras_transformer.models.transformer import Transformer

# Maps activations of Keras to those of CTranslate2. "GELU" is the exact function, as in Keras.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_approximate": "GELUTanh",
    "silu": "SWISH",
    "swish": "SWISH",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}
RULES: tuple[Rule, ...] = (
    ("activation", lambda x: x.activation not in ACTIVATIONS, f"the activations {[*ACTIVATIONS]}"),
    *PLAIN_LAYERS,
)
# Bias on the logits of forbidden tokens: a probability of 0, and within the range of float16.
FORBIDDEN = -1e4


def write_ctranslate2(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    quantization: str | None = None,
) -> None:
    """Writes a model and its tokenizer to a new folder that `ctranslate2.Translator` loads.

    For the arguments and errors, see `export_ctranslate2`.
    """
    from ctranslate2 import specs

    check_model(model, tokenizer)
    check_supported(model, "CTranslate2", RULES)
    if "bfloat16" in (quantization or "") and not find_spec("torch"):
        raise ImportError(
            f"CTranslate2 needs PyTorch to write {quantization}: "
            "pip install 'keras3-transformer[torch]'"
        )
    spec = _specification(in_float32(model), tokenizer, specs)
    spec.validate()
    spec.optimize(quantization)
    directory = Path(directory)
    directory.mkdir(parents=True)
    spec.save(str(directory))
    tokenizer.save(directory / "tokenizer")


def _specification(model: Transformer, tokenizer: Tokenizer, specs: Any) -> Any:
    """Returns the CTranslate2 specification, with weights, vocabularies and settings."""
    sizes = {
        "num_heads": model.num_heads,
        "pre_norm": model.norm_first,
        "activation": specs.Activation[ACTIVATIONS[model.activation]],
    }
    if isinstance(model.positions, RotaryPositionalEncoding):
        # `rotary_dim` 0 rotates all features of a head. Features 2i and 2i + 1 form a pair.
        sizes = {**sizes, "rotary_dim": 0, "rotary_interleave": True}
    encoder = specs.TransformerEncoderSpec(num_layers=model.encoder.num_layers, **sizes)
    decoder = specs.TransformerDecoderSpec(num_layers=model.decoder.num_layers, **sizes)
    spec = specs.TransformerSpec(encoder, decoder)
    matrix, bias = model.output_weights()
    spec.encoder.embeddings[0].weight = array(model.source_embedding.embeddings)
    spec.decoder.embeddings.weight = array(model.target_embedding.embeddings)
    spec.decoder.projection.weight = array(matrix)
    zeros = np.zeros(matrix.shape[0], "float32")
    spec.decoder.projection.bias = zeros if bias is None else array(bias).copy()
    spec.decoder.projection.bias[[tokenizer.pad_id, tokenizer.bos_id]] = FORBIDDEN
    _set_stack(spec.encoder, model.encoder, model)
    _set_stack(spec.decoder, model.decoder, model)
    spec.register_source_vocabulary(tokenizer.source_pieces)
    spec.register_target_vocabulary(tokenizer.target_pieces)
    pieces = tokenizer.target_pieces
    spec.config.unk_token = pieces[tokenizer.unk_id]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[tokenizer.bos_id]
    spec.config.eos_token = pieces[tokenizer.eos_id]
    spec.config.add_source_eos = tokenizer.source_eos
    spec.config.layer_norm_epsilon = model.norm_epsilon
    # For `CTranslate2Translator`; CTranslate2 ignores it.
    spec.config.add_attribute("max_length", model.max_length)
    return spec


def _set_stack(spec: Any, stack: Encoder | Decoder, model: Transformer) -> None:
    if hasattr(spec, "position_encodings"):  # The decoder has none with rotary positions.
        table = position_table(model)
        if table is None:
            table = np.zeros((model.max_length, model.d_model), "float32")
        spec.position_encodings.encodings = table
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        attention = layer.self_attention
        _set_attention(layer_spec.self_attention, attention, layer.self_attention_residual)
        if isinstance(layer, DecoderLayer):
            attention = layer.cross_attention
            _set_attention(layer_spec.attention, attention, layer.cross_attention_residual)
        _set_linear(layer_spec.ffn.linear_0, layer.feed_forward.inner)
        _set_linear(layer_spec.ffn.linear_1, layer.feed_forward.outer)
        _set_norm(layer_spec.ffn.layer_norm, layer.feed_forward_residual.norm)
    if model.norm_first:
        _set_norm(spec.layer_norm, stack.norm)


def _set_attention(spec: Any, attention: Any, residual: Any) -> None:
    """Sets the linear layers: query, key and value in one or in two, and the output."""
    query, key = attention.query_projection, attention.key_projection
    value, output = attention.value_projection, attention.output_projection
    is_self = len(spec.linear) == 2
    groups = ([query, key, value], [output]) if is_self else ([query], [key, value], [output])
    for linear, layers in zip(spec.linear, groups, strict=True):
        _set_linear(linear, *layers)
    if not attention.use_scale:  # The default of CTranslate2 is 1 / sqrt(d_k).
        spec.queries_scale = np.float32(1)
    _set_norm(spec.layer_norm, residual.norm)


def _set_linear(spec: Any, *layers: Any) -> None:
    """Joins the weights of `layers` along the output axis, and stores them in `spec`."""
    spec.weight = np.concatenate([array(layer.kernel).T for layer in layers])
    spec.bias = np.concatenate([array(layer.bias) for layer in layers])


def _set_norm(spec: Any, layer: Any) -> None:
    spec.gamma, spec.beta = array(layer.gamma), array(layer.beta)
