"""Exports a Transformer as a CTranslate2 model, for fast translation on CPUs without Keras."""

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._files import atomic_write, check_is_free
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.export.packages import check_installed
from keras_transformer.export.source_model import (
    Comparison,
    array,
    check_attention,
    check_model,
    compare,
    position_table,
)
from keras_transformer.layers import DecoderLayer, EncoderLayer, RotaryPositionalEncoding
from keras_transformer.models import Transformer
from keras_transformer.models.base import in_float32
from keras_transformer.translation.base_translator import EXTRA_LENGTH
from keras_transformer.translation.translator import Translator

# Maps activations of Keras to those of CTranslate2. "GELU" is the exact function, as in Keras.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "swish": "SWISH",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}
# Bias on the logits of forbidden tokens. In float32, their probability becomes 0. Float16 can
# represent this number.
FORBIDDEN = -1e4
# Translations tie if their log-probabilities differ by at most this number of nats per token.
TOLERANCE = 1e-2


def export_ctranslate2(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    quantization: str | None = None,
    sentences: Sequence[str] | None = None,
) -> Comparison | None:
    """Writes a model as a folder that `ctranslate2.Translator` loads.

    The folder also contains the tokenizer, in `tokenizer/`. CTranslate2 takes and returns subword
    pieces. It adds eos to the source and bos to the target. As in this package, the exported model
    never predicts padding or bos. CTranslate2 divides the probabilities of all other tokens by
    1 - p(padding) - p(bos), so that their sum is 1. This package does not divide them.

    The search options of CTranslate2 differ from those of this package. CTranslate2 divides the
    log-probability of a hypothesis by n ** length_penalty (default 1), where n is the number of
    tokens without eos. For the same translations as `length_penalty=0` in this package, set
    `length_penalty=1e-9` and `min_decoding_length=0` in CTranslate2. Also use the same beam size
    and maximum length. Then the translations differ only if hypotheses have equal scores, or if
    the model gives padding or bos a considerable probability, as before training. With
    `length_penalty=0`, CTranslate2 would not stop after `beam_size` finished hypotheses. It would
    search until the most probable hypothesis is finished.

    Example:

    >>> export_ctranslate2(open_model(run), run.tokenizer(), "runs/quickstart/ctranslate2", "int8")
    >>> translator = ctranslate2.Translator("runs/quickstart/ctranslate2")
    >>> translator.translate_batch([["▁A", "▁dog", "▁runs", "."]], beam_size=4)[0].hypotheses[0]

    Args:
        model: A `Transformer` with full attention. The position encodings `alibi`, `t5` and
            `*_concatenated` are not supported.
        tokenizer: The `Tokenizer` that the model was trained with.
        directory: A new or empty folder. If the export fails, nothing is written.
        quantization: Type of the stored weights: `"float32"`, `"float16"`, `"bfloat16"` (needs
            PyTorch), `"int16"` or `"int8"`. Only the weights of linear layers and embeddings are
            stored as integers. `"int8_float32"`, `"int8_float16"` and `"int8_bfloat16"` also set
            the type of the other weights. Defaults to None, which means float32. When
            `ctranslate2.Translator` loads the weights, it converts them to its `compute_type`, or
            to a type that the processor supports.
        sentences: Source sentences. CTranslate2 and the model translate them by greedy search, and
            the translations are compared. Defaults to None, which means no comparison.

    Returns:
        A `Comparison`, or None if `sentences` is None or empty.

    Raises:
        ImportError: If ctranslate2 is not installed, or if `quantization` needs PyTorch and PyTorch
            is not installed.
        UserError: If `directory` is not empty, or the disk is full. If a translation by the float32
            export differs from the model's translation in text and in score.
        ValueError: If CTranslate2 does not support `quantization` or a part of the model. If the
            model is already quantized. If the tokenizer belongs to another model.
    """
    check_installed("ctranslate2")
    from ctranslate2 import specs

    _check(model, tokenizer, specs, quantization)
    check_is_free(directory)
    model = in_float32(model)
    spec = _specification(model, tokenizer, specs)
    spec.validate()
    spec.optimize(quantization)
    with atomic_write(directory) as partial:
        partial.mkdir()
        spec.save(str(partial))
        tokenizer.save(partial / "tokenizer")
        if not sentences:
            return None
        is_exact = quantization in (None, "float32")
        return _compare(partial, model, tokenizer, sentences, is_exact)


def _check(model: Transformer, tokenizer: Tokenizer, specs: Any, quantization: str | None) -> None:
    check_model(model, tokenizer)
    check_attention(model, "CTranslate2")
    if model.activation not in ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 supports only the activations {list(ACTIVATIONS)}. "
            f"Received: model.activation={model.activation!r}"
        )
    if model.d_k not in (None, model.d_model // model.num_heads):
        raise ValueError(
            "CTranslate2 supports only keys as wide as the values, d_model / num_heads; a "
            f"SavedModel and ONNX support all. Received: model.d_k={model.d_k}"
        )
    if model.normalization != "layer":
        raise ValueError(
            "CTranslate2 supports only layer normalization; a SavedModel and ONNX support batch "
            f"normalization too. Received: model.normalization={model.normalization!r}"
        )
    if getattr(model.positions, "concatenate", False):
        raise ValueError(
            "CTranslate2 adds positions to embeddings and cannot concatenate them. "
            f"Received: model.position_encoding={model.position_encoding!r}"
        )
    quantizations = specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization not in (None, *quantizations):
        raise ValueError(
            f"`quantization` must be None or one of {list(quantizations)}. "
            f"Received: quantization={quantization!r}"
        )
    if "bfloat16" in (quantization or "") and not find_spec("torch"):
        raise ImportError(
            f"CTranslate2 needs PyTorch to write {quantization}: "
            "pip install 'keras3-transformer[torch]'"
        )


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
    _set_encoder(spec.encoder, model)
    _set_decoder(spec.decoder, model, tokenizer)
    spec.register_source_vocabulary(tokenizer.source_pieces)
    spec.register_target_vocabulary(tokenizer.target_pieces)
    pieces = tokenizer.target_pieces
    spec.config.unk_token = pieces[tokenizer.unk_id]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[tokenizer.bos_id]
    spec.config.eos_token = pieces[tokenizer.eos_id]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.norm_epsilon
    # For `CTranslate2Translator`; CTranslate2 ignores it.
    spec.config.add_attribute("max_length", model.max_length)
    return spec


def _set_encoder(spec: Any, model: Transformer) -> None:
    spec.embeddings[0].weight = array(model.source_embedding.embeddings)
    spec.position_encodings.encodings = _encodings(model)
    for layer_spec, layer in zip(spec.layer, model.encoder.layers, strict=True):
        _set_self_attention(layer_spec, layer)
        _set_feed_forward(layer_spec, layer)
    if model.norm_first:
        _set_norm(spec.layer_norm, model.encoder.norm)


def _set_decoder(spec: Any, model: Transformer, tokenizer: Tokenizer) -> None:
    embeddings = array(model.target_embedding.embeddings)
    spec.embeddings.weight = spec.projection.weight = embeddings
    spec.projection.bias = np.zeros(len(embeddings), "float32")
    spec.projection.bias[[tokenizer.pad_id, tokenizer.bos_id]] = FORBIDDEN
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _encodings(model)
    for layer_spec, layer in zip(spec.layer, model.decoder.layers, strict=True):
        _set_self_attention(layer_spec, layer)
        _set_cross_attention(layer_spec, layer)
        _set_feed_forward(layer_spec, layer)
    if model.norm_first:
        _set_norm(spec.layer_norm, model.decoder.norm)


def _encodings(model: Transformer) -> np.ndarray:
    """Returns the position table for CTranslate2. If the model has no table, returns zeros."""
    table = position_table(model)
    return np.zeros((model.max_length, model.d_model), "float32") if table is None else table


def _set_self_attention(spec: Any, layer: EncoderLayer) -> None:
    attention, linear = layer.self_attention, spec.self_attention.linear
    projections = (attention.query_projection, attention.key_projection, attention.value_projection)
    _set_linear(linear[0], *projections)
    _set_linear(linear[1], attention.output_projection)
    _set_scale(spec.self_attention, attention)
    _set_norm(spec.self_attention.layer_norm, layer.self_attention_residual.norm)


def _set_cross_attention(spec: Any, layer: DecoderLayer) -> None:
    attention, linear = layer.cross_attention, spec.attention.linear
    _set_linear(linear[0], attention.query_projection)
    _set_linear(linear[1], attention.key_projection, attention.value_projection)
    _set_linear(linear[2], attention.output_projection)
    _set_scale(spec.attention, attention)
    _set_norm(spec.attention.layer_norm, layer.cross_attention_residual.norm)


def _set_feed_forward(spec: Any, layer: EncoderLayer) -> None:
    _set_linear(spec.ffn.linear_0, layer.feed_forward.inner)
    _set_linear(spec.ffn.linear_1, layer.feed_forward.outer)
    _set_norm(spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def _set_scale(spec: Any, attention: Any) -> None:
    """Sets the factor of the queries if it is not the default of CTranslate2, 1 / sqrt(d_k)."""
    if not attention.use_scale:
        spec.queries_scale = np.float32(1)


def _set_linear(spec: Any, *layers: Any) -> None:
    """Joins the weights of `layers` along the output axis, and stores them in `spec`."""
    spec.weight = np.concatenate([array(layer.kernel).T for layer in layers])
    spec.bias = np.concatenate([array(layer.bias) for layer in layers])


def _set_norm(spec: Any, layer: Any) -> None:
    spec.gamma, spec.beta = array(layer.gamma), array(layer.beta)


def _compare(
    directory: Path, model: Transformer, tokenizer: Tokenizer, sentences: Sequence[str], exact: bool
) -> Comparison:
    """Compares greedy translations by the export and the model.

    Scores are log-probabilities in nats per token.
    """
    import ctranslate2

    sentences = [sentence.strip() for sentence in sentences]  # as `Translator` does
    texts = [
        text for text, ids in zip(sentences, tokenizer.encode_source(sentences), strict=True) if ids
    ]
    encoded = tokenizer.encode_source(texts)
    longest = min(max(map(len, encoded), default=0) + 1 + EXTRA_LENGTH, model.max_length)
    pieces = tokenizer.source_pieces
    target_ids = {piece: id for id, piece in enumerate(tokenizer.target_pieces)}
    level = ctranslate2.get_log_level()
    ctranslate2.set_log_level(logging.ERROR)  # This CPU need not have the type of the export.
    try:
        exported = ctranslate2.Translator(
            str(directory), compute_type="float32" if exact else "default"
        )
    finally:
        ctranslate2.set_log_level(level)
    results = exported.translate_batch(
        [[pieces[id] for id in ids[: model.max_length - 1]] for ids in encoded],
        beam_size=1,
        length_penalty=0.0,
        min_decoding_length=0,
        max_input_length=0,
        max_decoding_length=longest,
        return_scores=True,
    )
    found = [[target_ids[piece] for piece in result.hypotheses[0]] for result in results]
    pairs = zip(results, found, strict=True)
    scores = [result.scores[0] / min(len(ids) + 1, longest) for result, ids in pairs]
    per_token = {"length_penalty": 1.0, "length_penalty_form": "power"}
    options = SearchOptions(beam_size=1, max_length=longest, **per_token)
    translator = Translator(model, tokenizer, options, overlong="truncate")
    return compare(
        "CTranslate2 model",
        translator,
        texts,
        [[pair] for pair in zip(tokenizer.decode_target(found), scores, strict=True)],
        tolerance=TOLERANCE,
        is_exact=exact,
        # Scores differ if padding or bos are probable, as in an untrained model: the export gives
        # their probability to the other tokens (see `export_ctranslate2`).
        compares_scores=False,
    )
