"""Exports a Transformer as a MarianMT model of Hugging Face."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from keras_transformer._files import atomic_write, check_is_free
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.exchange.exported_model import (
    PLAIN_LAYERS,
    Rule,
    check_model,
    check_supported,
    position_table,
)
from keras_transformer.exchange.hugging_face import (
    ACTIVATIONS,
    CLASSES,
    NORM_EPSILON,
    SETTINGS,
    read_hugging_face,
)
from keras_transformer.exchange.weight_names import HUGGING_FACE, named_weights
from keras_transformer.models.base import in_float32
from keras_transformer.models.transformer import Transformer
from keras_transformer.translation.comparison import (
    Agreement,
    compare_translations,
    scored_translations,
)
from keras_transformer.translation.translator import Translator

_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
RULES: tuple[Rule, ...] = (
    ("activation", lambda x: x.activation not in _ACTIVATIONS, f"activations {[*_ACTIVATIONS]}"),
    *PLAIN_LAYERS,
    ("use_scale", lambda x: not x.use_scale, "scaled scores"),
    ("position_encoding", lambda x: position_table(x) is None, "added positions"),
    (
        "norm_first",
        lambda x: x.norm_first and x.target_vocabulary_size,
        "post-norm with two vocabularies",
    ),
)


def export_hugging_face(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    options: SearchOptions | None = None,
    languages: tuple[str, str] = ("und", "und"),
    sentences: Sequence[str] | None = None,
) -> Agreement | None:
    """Writes a folder that `AutoTokenizer` and `AutoModelForSeq2SeqLM` of transformers open.

    Neither transformers nor PyTorch is needed. Models of Hugging Face add 1e-5 to the variance in
    the norms, whatever `norm_epsilon` is. A pre-norm model has the type Pegasus.

    Example:

    >>> export_hugging_face(open_model(run), run.tokenizer(), "exports/quickstart")
    >>> model = transformers.AutoModelForSeq2SeqLM.from_pretrained("exports/quickstart")

    Args:
        model: A `Transformer` with full attention and with positions that are added to embeddings.
        tokenizer: The `Tokenizer` that the model was trained with.
        directory: A new or empty folder. If the export fails, nothing is written.
        options: Beam size and length penalty of `generate`. Default to greedy search.
        languages: Codes of the source and the target language.
        sentences: Source sentences, which the model and the imported export translate.

    Returns:
        An `Agreement`, or None without `sentences`.

    Raises:
        UserError: If `directory` is not empty, or the disk is full. If a translation differs.
        ValueError: If Hugging Face has no such model, or the model is quantized.
    """
    check_is_free(directory)
    options = options or SearchOptions(beam_size=1, length_penalty=0)
    _check(model, tokenizer, options)
    files = {
        "config.json": _configuration(model, tokenizer),
        "generation_config.json": {
            "num_beams": options.beam_size,
            "length_penalty": options.length_penalty,
            "early_stopping": True,
            "max_length": model.max_length,
            # Never predicted, as in our search.
            "bad_words_ids": [[tokenizer.pad_id], [tokenizer.bos_id]],
            **_ids(tokenizer),
        },
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            **dict(zip(("source_lang", "target_lang"), languages, strict=True)),
            "bos_token": "<s>",
            "model_max_length": model.max_length,
            "separate_vocabs": not tokenizer.joint,
            "clean_up_tokenization_spaces": False,
        },
        "vocab.json": {piece: id for id, piece in enumerate(tokenizer.source_pieces)},
    }
    if not tokenizer.joint:
        pieces = enumerate(tokenizer.target_pieces)
        files["target_vocab.json"] = {piece: id for id, piece in pieces}
    with atomic_write(directory) as partial:
        partial.mkdir()
        for name, value in files.items():
            (partial / name).write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")
        (partial / "source.spm").write_bytes(tokenizer.source_model)
        (partial / "target.spm").write_bytes(tokenizer.target_model)
        save_file(_weights(in_float32(model)), partial / "model.safetensors", {"format": "pt"})
        if not sentences:
            return None
        copy = Translator(*read_hugging_face(partial).convert(), options)
        return compare_translations(
            "export",
            Translator(model, tokenizer, options),
            sentences,
            scored_translations(copy, sentences),
            tolerance=1e-3,
        )


def _check(model: Transformer, tokenizer: Tokenizer, options: SearchOptions) -> None:
    check_model(model, tokenizer)
    check_supported(model, "Hugging Face", RULES)
    if options.length_penalty and options.length_penalty_form != "power":
        raise ValueError(
            "Hugging Face's `generate` divides scores by n ** length_penalty: set "
            "`length_penalty_form` to power, or `length_penalty` to 0. Received: "
            f"{options.length_penalty_form} and {options.length_penalty}"
        )
    if tokenizer.source_prefix_ids or tokenizer.target_prefix_ids or not tokenizer.source_eos:
        raise ValueError(
            "The tokenizer of a MarianMT model adds no prefix, and always adds eos. Received: a "
            "tokenizer with a prefix, or with source_eos=False"
        )


def _ids(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "decoder_start_token_id": tokenizer.bos_id,
        "forced_eos_token_id": None,
    }


def _configuration(model: Transformer, tokenizer: Tokenizer) -> dict[str, Any]:
    kind = "pegasus" if model.norm_first else "marian"
    return {
        "model_type": kind,
        "architectures": [CLASSES[kind]],
        "vocab_size": model.vocabulary_size,
        "decoder_vocab_size": model.target_vocabulary_size or model.vocabulary_size,
        "share_encoder_decoder_embeddings": model.target_vocabulary_size is None,
        "tie_word_embeddings": model.tie_word_embeddings,
        **{theirs: getattr(model, ours) for ours, theirs in SETTINGS.items()},
        "decoder_layers": model.decoder.num_layers,
        "decoder_attention_heads": model.num_heads,
        "decoder_ffn_dim": model.d_ff,
        "activation_function": _ACTIVATIONS[model.activation],
        "scale_embedding": True,
        NORM_EPSILON: model.norm_epsilon,
        **_ids(tokenizer),
    }


def _weights(model: Transformer) -> dict[str, np.ndarray]:
    """Returns the weights by the names of Hugging Face."""
    which = 0 if model.target_vocabulary_size is None else -1
    matrices = {role: names[which] for role, names in HUGGING_FACE.matrices.items()}
    target_size = model.target_vocabulary_size or model.vocabulary_size
    zeros = np.zeros(target_size, "float32")
    found = {matrices["bias"]: zeros, **named_weights(model, HUGGING_FACE, matrices)}
    found[matrices["bias"]] = found[matrices["bias"]].reshape(1, -1)
    table = position_table(model)
    if table is not None and model.position_encoding != "sinusoidal_half_split":
        found |= dict.fromkeys(HUGGING_FACE.matrices["position_embeddings"], table)
    return {name: np.ascontiguousarray(value) for name, value in found.items()}
