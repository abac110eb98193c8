"""A Transformer as a CTranslate2 model, for fast translation on CPUs without Keras."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._files import atomic_write
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.translator import EXTRA_LENGTH, Translator
from keras_transformer.errors import UserError
from keras_transformer.export.checks import check_attention, check_is_free, check_model
from keras_transformer.export.weights import array, in_float32, position_table
from keras_transformer.layers import DecoderLayer, EncoderLayer, RotaryPositionalEncoding
from keras_transformer.models import Transformer

# Keras's name of an activation to CTranslate2's. Keras's GELU is the exact one.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "swish": "SWISH",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}
# Finite, and fits into float16; after it a token's probability is 0 in float32.
FORBIDDEN = -1e4
# Nats per token by which the log-probability of one and the same translation may differ.
TOLERANCE = 1e-2


def export_ctranslate2(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    quantization: str | None = None,
    sentences: Sequence[str] | None = None,
) -> float | None:
    """Writes a model as a folder that `ctranslate2.Translator` loads.

    The folder holds the weights and the vocabularies as CTranslate2 wants them, and the tokenizer
    in `tokenizer/`. CTranslate2 takes pieces and gives pieces; it adds eos to the source and starts
    with bos by itself. The exported model never chooses padding or bos, as no search here does, but
    spreads their probability over the other tokens: each token's log-probability is the model's
    minus log(1 - p(padding) - p(bos)), which for a trained model is next to nothing.

    CTranslate2 searches by options of its own. `length_penalty=1e-9, min_decoding_length=0` and the
    same `beam_size` and `max_decoding_length` find what `length_penalty=0` finds here, except where
    hypotheses tie. Its `length_penalty=0` turns the penalty off as well, but then it searches on
    until the most probable hypothesis of all has ended, though `beam_size` others have. Any other
    value (its default is 1) divides by n ** length_penalty, where n does not count eos.

    Example:

    ```python
    export_ctranslate2(run.model(), run.tokenizer(), "runs/quickstart/ctranslate2", "int8")
    translator = ctranslate2.Translator("runs/quickstart/ctranslate2")
    pieces = [["▁A", "▁dog", "▁runs", "."]]
    translator.translate_batch(pieces, beam_size=4)[0].hypotheses[0]
    ```

    Args:
        model: A `Transformer` with any positions but concatenated ones, ALiBi and T5, without local
            or strided attention.
        tokenizer: The `Tokenizer` that it was trained with.
        directory: A new or empty folder; it appears complete or not at all.
        quantization: Type of the stored weights: `"float32"`, `"float16"`, `"bfloat16"` (needs
            PyTorch), `"int16"`, or `"int8"`, for those of linear maps and embeddings, alone or with
            the type of the others, `"int8_float32"`, `"int8_float16"`, `"int8_bfloat16"`. Defaults
            to None: as they are. `ctranslate2.Translator` converts at loading what the processor
            cannot compute in (CPUs as a rule float16 and bfloat16, to float32), and by
            `compute_type` to another type.
        sentences: Source sentences that CTranslate2 and the model translate greedily, to compare
            them. Defaults to None: the export is not compared.

    Returns:
        The share of the sentences whose translations have the same tokens; None without sentences.

    Raises:
        ImportError: If ctranslate2 is not installed, or PyTorch where it is needed.
        UserError: If `directory` is a folder with something in it, the disk is full, or the
            float32 export translates otherwise and not for a tie.
        ValueError: If CTranslate2 has no counterpart for something in the model or no such
            `quantization`, the model is quantized already, or the tokenizer is not the model's.
    """
    specs = _import_specs()
    _check(model, tokenizer, specs, quantization)
    check_is_free(directory)
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
        return _compare(partial, in_float32(model), tokenizer, sentences, is_exact)


def _import_specs() -> Any:
    try:
        from ctranslate2 import specs
    except ImportError as error:
        raise ImportError(
            "export_ctranslate2 needs ctranslate2: pip install 'keras3-transformer[ctranslate2]'"
        ) from error
    return specs


def _check(model: Transformer, tokenizer: Tokenizer, specs: Any, quantization: str | None) -> None:
    check_model(model, tokenizer)
    check_attention(model, "CTranslate2")
    if model.activation not in ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has no such activation, only {list(ACTIVATIONS)}. "
            f"Received: model.activation={model.activation!r}"
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
    """The weights and everything that CTranslate2 must know to use them."""
    sizes = {
        "num_heads": model.num_heads,
        "pre_norm": model.norm_first,
        "activation": specs.Activation[ACTIVATIONS[model.activation]],
    }
    if isinstance(model.positions, RotaryPositionalEncoding):
        # 0 = the whole head; features 2i and 2i + 1 form a pair.
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
    # CTranslate2's own default is 1e-5.
    spec.config.layer_norm_epsilon = model.norm_epsilon
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
    """CTranslate2 always adds something."""
    table = position_table(model)
    return np.zeros((model.max_length, model.d_model), "float32") if table is None else table


def _set_self_attention(spec: Any, layer: EncoderLayer) -> None:
    attention, linear = layer.self_attention, spec.self_attention.linear
    projections = (attention.query_projection, attention.key_projection, attention.value_projection)
    _set_linear(linear[0], *projections)
    _set_linear(linear[1], attention.output_projection)
    _set_norm(spec.self_attention.layer_norm, layer.self_attention_residual.norm)


def _set_cross_attention(spec: Any, layer: DecoderLayer) -> None:
    attention, linear = layer.cross_attention, spec.attention.linear
    _set_linear(linear[0], attention.query_projection)
    _set_linear(linear[1], attention.key_projection, attention.value_projection)
    _set_linear(linear[2], attention.output_projection)
    _set_norm(spec.attention.layer_norm, layer.cross_attention_residual.norm)


def _set_feed_forward(spec: Any, layer: EncoderLayer) -> None:
    _set_linear(spec.ffn.linear_0, layer.feed_forward.inner)
    _set_linear(spec.ffn.linear_1, layer.feed_forward.outer)
    _set_norm(spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def _set_linear(spec: Any, *layers: Any) -> None:
    """One linear map, or several of the same input, side by side."""
    spec.weight = np.concatenate([array(layer.kernel).T for layer in layers])
    spec.bias = np.concatenate([array(layer.bias) for layer in layers])


def _set_norm(spec: Any, layer: Any) -> None:
    spec.gamma, spec.beta = array(layer.gamma), array(layer.beta)


# --- Comparison ----------------------------------------------------------------------------------


def _compare(
    directory: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    is_exact: bool,
) -> float:
    """The share of equal greedy translations; where an exact export's differ, they must tie."""
    from ctranslate2 import Translator as CTranslator

    texts = [
        text for text, ids in zip(sentences, tokenizer.encode_source(sentences), strict=True) if ids
    ]
    encoded = tokenizer.encode_source(texts)
    # One less than the model can, since CTranslate2 scores them with bos in front.
    longest = min(max(map(len, encoded)) + 1 + EXTRA_LENGTH, model.max_length - 1)
    options = SearchOptions(beam_size=1, length_penalty=0.0, max_length=longest)
    translator = Translator(model, tokenizer, options, overlong="truncate")
    ours = [best for (best,) in translator.translate_nbest(texts)]
    pieces = tokenizer.source_pieces
    sources = [[pieces[id] for id in ids[: model.max_length - 1]] for ids in encoded]
    exported = CTranslator(str(directory), compute_type="float32" if is_exact else "default")
    results = exported.translate_batch(
        sources, beam_size=1, min_decoding_length=0, max_decoding_length=longest
    )
    targets = [[tokenizer.target_pieces[id] for id in best.ids] for best in ours]
    unlike = [i for i, result in enumerate(results) if result.hypotheses[0] != targets[i]]
    if is_exact and unlike:
        scored = exported.score_batch([sources[i] for i in unlike], [targets[i] for i in unlike])
        _check_ties([ours[i] for i in unlike], [result.log_probs for result in scored])
    return 1 - len(unlike) / len(texts)


def _check_ties(ours: Sequence[Hypothesis], theirs: Sequence[Sequence[float]]) -> None:
    """Translations that CTranslate2 did not find must be as probable to it as to the model."""
    for best, log_probabilities in zip(ours, theirs, strict=True):
        difference = abs(sum(log_probabilities[: best.length]) - best.log_probability)
        if not difference <= TOLERANCE * best.length:
            raise UserError(
                "the CTranslate2 model does not compute what the model computes, nothing was "
                f"written: it gives {best.text!r} a log-probability that differs by "
                f"{difference:.2g} nats"
            )
