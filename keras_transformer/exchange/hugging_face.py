"""Reads and writes MarianMT models in the format of Hugging Face, without transformers or torch.

A pre-norm model is written as Pegasus, whose network is that of MarianMT with pre-norm.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import Vocabulary
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.exchange.foreign_model import ForeignModel, name_of, name_positions
from keras_transformer.exchange.model_files import (
    Arrays,
    in_order,
    read_bytes,
    read_safetensors,
    read_torch,
    read_value,
    reading,
)
from keras_transformer.exchange.source_model import (
    PLAIN_LAYERS,
    Rule,
    array,
    check_model,
    check_supported,
    position_table,
)
from keras_transformer.models.base import in_float32
from keras_transformer.models.transformer import Transformer

_FILES = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "vocab.json"),
    *("target_vocab.json", "source.spm", "target.spm"),
)
ACTIVATIONS = {
    "relu": "relu",
    **dict.fromkeys(("swish", "silu"), "silu"),
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), "gelu_approximate"),
}
_WRITTEN = {own: theirs for theirs, own in reversed(ACTIVATIONS.items())}
_SUBLAYERS = {
    "self_attention/query": "self_attn.q_proj",
    "self_attention/key": "self_attn.k_proj",
    "self_attention/value": "self_attn.v_proj",
    "self_attention/output": "self_attn.out_proj",
    "self_attention_residual/norm": "self_attn_layer_norm",
    "cross_attention/query": "encoder_attn.q_proj",
    "cross_attention/key": "encoder_attn.k_proj",
    "cross_attention/value": "encoder_attn.v_proj",
    "cross_attention/output": "encoder_attn.out_proj",
    "cross_attention_residual/norm": "encoder_attn_layer_norm",
    "feed_forward/inner": "fc1",
    "feed_forward/outer": "fc2",
    "feed_forward_residual/norm": "final_layer_norm",
}
_MARKS = {"unk": "unk", "eos": "/s", "bos": "s", "pad": "pad"}
_WEIGHTS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
_SHARED, _HEAD, _BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
_EMBEDDINGS = {side: f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")}
_POSITIONS = "model.{}.embed_positions.weight"
_EPSILON = 1e-5  # A MarianMT model of Hugging Face has no other.
_NORM_EPSILON = "norm_epsilon"  # what ours has; transformers ignores it
_CLASSES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}
RULES: tuple[Rule, ...] = (
    ("activation", lambda x: x.activation not in _WRITTEN, f"the activations {[*_WRITTEN]}"),
    *PLAIN_LAYERS,
    ("use_scale", lambda x: not x.use_scale, "scaled scores"),
    ("position_encoding", lambda x: position_table(x) is None, "added positions"),
    (
        "norm_first",
        lambda x: x.norm_first and x.target_vocabulary_size,
        "post-norm with two vocabularies",
    ),
)


def name_in_layer(stack: str, number: int | None, sublayer: str, weight: str) -> str:
    """Returns Hugging Face's name of a weight, see `ForeignModel`."""
    if number is None:
        return f"model.{stack}.layer_norm.{_WEIGHTS[weight]}"
    return f"model.{stack}.layers.{number}.{_SUBLAYERS[sublayer]}.{_WEIGHTS[weight]}"


def write_hugging_face(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: Path,
    options: SearchOptions,
    languages: tuple[str, str],
) -> None:
    """Writes a new folder that `transformers` opens. `options` become those of `generate`.

    Raises `ValueError` if Hugging Face has no such model.
    """
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
    directory.mkdir(parents=True)
    weights = _written_weights(in_float32(model))
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    (directory / "source.spm").write_bytes(tokenizer.source_model)
    (directory / "target.spm").write_bytes(tokenizer.target_model)
    for name, value in _written_settings(model, tokenizer, options, languages).items():
        (directory / name).write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")


def _written_settings(
    model: Transformer, tokenizer: Tokenizer, options: SearchOptions, languages: tuple[str, str]
) -> dict[str, Any]:
    """Returns the contents of the JSON files."""
    kind = "pegasus" if model.norm_first else "marian"
    ids = {
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "decoder_start_token_id": tokenizer.bos_id,
        "forced_eos_token_id": None,
    }
    sides = {"encoder": model.encoder, "decoder": model.decoder}
    vocabularies = {"vocab.json": tokenizer.source_pieces}
    if not tokenizer.joint:
        vocabularies["target_vocab.json"] = tokenizer.target_pieces
    return {
        "config.json": {
            "model_type": kind,
            "architectures": [_CLASSES[kind]],
            "vocab_size": model.vocabulary_size,
            "decoder_vocab_size": model.target_vocabulary_size or model.vocabulary_size,
            "share_encoder_decoder_embeddings": model.target_vocabulary_size is None,
            "tie_word_embeddings": model.tie_word_embeddings,
            "d_model": model.d_model,
            **{f"{side}_layers": stack.num_layers for side, stack in sides.items()},
            **{f"{side}_attention_heads": model.num_heads for side in sides},
            **{f"{side}_ffn_dim": model.d_ff for side in sides},
            "dropout": model.dropout_rate,
            "attention_dropout": model.attention_dropout_rate,
            "activation_function": _WRITTEN[model.activation],
            "max_position_embeddings": model.max_length,
            "scale_embedding": True,
            "is_encoder_decoder": True,
            _NORM_EPSILON: model.norm_epsilon,
            **ids,
        },
        "generation_config.json": {
            "num_beams": options.beam_size,
            "length_penalty": options.length_penalty,
            "early_stopping": True,
            "max_length": model.max_length,
            # Never predicted, as in our search.
            "bad_words_ids": [[tokenizer.pad_id], [tokenizer.bos_id]],
            **ids,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            **dict(zip(("source_lang", "target_lang"), languages, strict=True)),
            **{f"{name}_token": f"<{mark}>" for name, mark in _MARKS.items()},
            "model_max_length": model.max_length,
            "separate_vocabs": not tokenizer.joint,
            "clean_up_tokenization_spaces": False,
        },
        **{name: {x: id for id, x in enumerate(pieces)} for name, pieces in vocabularies.items()},
    }


def _written_weights(model: Transformer) -> Arrays:
    """Returns the weights by the names of Hugging Face."""
    names = {"source": _EMBEDDINGS["encoder"], "target": _EMBEDDINGS["decoder"]}
    if model.target_vocabulary_size is None:
        names = dict.fromkeys(names, _SHARED)
    names |= {"output_embeddings": _HEAD, "bias": _BIAS}
    weights = {}
    for weight in model.weights:
        name = name_of(weight.path, names, name_in_layer)
        if name:
            value = array(weight)
            is_kernel = weight.path.endswith("kernel")
            weights[name] = np.ascontiguousarray(value.T if is_kernel else value)
    target_size = model.target_vocabulary_size or model.vocabulary_size
    weights[_BIAS] = weights.get(_BIAS, np.zeros(target_size, "float32")).reshape(1, -1)
    if model.position_encoding != "sinusoidal_half_split":
        table = position_table(model)
        assert table is not None
        weights |= dict.fromkeys(map(_POSITIONS.format, ("encoder", "decoder")), table)
    return weights


def read_hugging_face(folder: Path) -> ForeignModel:
    """Reads the folder of a MarianMT model: weights, `config.json` and the tokenizer.

    Raises `UserError` if the model has another type, or if a file is missing or damaged.
    """
    config = read_value(folder / "config.json")
    if (kind := config.get("model_type")) not in _CLASSES:
        raise UserError(
            f"{folder}: of Hugging Face's models, only those of the type marian (such as OPUS-MT) "
            f"can be imported. Received: model_type={kind!r}"
        )
    generation = {**config, **read_value(folder / "generation_config.json", missing={})}
    tokenizer = read_value(folder / "tokenizer_config.json", missing={})
    path, weights = _weights(folder)
    with reading(folder / "config.json"):
        arguments = _arguments(config)
        names = _names(config, weights)
        name_positions(arguments, weights, names, _POSITIONS, "sinusoidal_half_split")
        return ForeignModel(
            path,
            [path, *(folder / name for name in _FILES)],
            arguments,
            weights,
            names,
            name_in_layer,
            _sides(folder, config, generation, tokenizer),
            kernels_are_transposed=True,
            evaluation={
                "beam_size": int(generation.get("num_beams", 1)),
                "length_penalty": float(generation.get("length_penalty", 1.0)),
                "length_penalty_form": "power",
            },
            languages=tuple(tokenizer.get(f"{x}_lang", "und") for x in ("source", "target")),
        )


def _weights(folder: Path) -> tuple[Path, Arrays]:
    for name, read in (("model.safetensors", read_safetensors), ("pytorch_model.bin", read_torch)):
        if (path := folder / name).is_file():
            return path, read(path)
    raise UserError(f"{folder} has neither model.safetensors nor pytorch_model.bin")


def _arguments(config: dict[str, Any]) -> dict[str, Any]:
    same = [
        config[f"encoder_{x}"] == config[f"decoder_{x}"] for x in ("ffn_dim", "attention_heads")
    ]
    if not config.get("scale_embedding") or not all(same):
        raise ValueError("scale_embedding must be true, and encoder and decoder have one width")
    return {
        "num_layers": int(config["encoder_layers"]),
        "num_decoder_layers": int(config["decoder_layers"]),
        "d_model": int(config["d_model"]),
        "num_heads": int(config["encoder_attention_heads"]),
        "d_ff": int(config["encoder_ffn_dim"]),
        "dropout_rate": float(config.get("dropout", 0.1)),
        "attention_dropout_rate": float(config.get("attention_dropout", 0.0)),
        "activation": ACTIVATIONS[config.get("activation_function", "gelu")],
        "norm_first": config["model_type"] == "pegasus",
        "norm_epsilon": float(config.get(_NORM_EPSILON, _EPSILON)),
        "max_length": int(config.get("max_position_embeddings", 1024)),
    }


def _names(config: dict[str, Any], weights: Arrays) -> dict[str, str]:
    """Returns the names of the embeddings, and removes copies of weights."""
    if config.get("share_encoder_decoder_embeddings", True):
        name = _SHARED if _SHARED in weights else _EMBEDDINGS["encoder"]
        names = {"source": name, "target": name}
    else:
        names = {"source": _EMBEDDINGS["encoder"], "target": _EMBEDDINGS["decoder"]}
    if not config.get("tie_word_embeddings", True):
        names["output_embeddings"] = _HEAD
    if _BIAS in weights:
        names["bias"] = _BIAS
    kept = [weights[x] for x in names.values() if x in weights]
    for copy in {_SHARED, _HEAD, *_EMBEDDINGS.values()} - {*names.values()}:
        if copy in weights and any(np.array_equal(weights[copy], x) for x in kept):
            del weights[copy]
    return names


def _sides(
    folder: Path, config: dict[str, Any], generation: dict[str, Any], tokenizer: dict[str, Any]
) -> list[Vocabulary]:
    """Returns the vocabularies of source and target."""
    is_separate = not config.get("share_encoder_decoder_embeddings", True)
    target = "target_vocab.json" if is_separate else "vocab.json"
    unk = tokenizer.get("unk_token") or "<unk>"
    sides = []
    for name, model in (("vocab.json", "source.spm"), (target, "target.spm")):
        file = folder / name if (folder / name).is_file() else folder / "vocab.json"
        ids = read_value(file)
        pieces = in_order(file, ids)
        vocabulary = Vocabulary(
            pieces,
            read_bytes(folder / model),
            ids[unk["content"] if isinstance(unk, dict) else unk],
            int(np.ravel(generation["eos_token_id"])[0]),
            int(generation["pad_token_id"]),
            int(generation["decoder_start_token_id"]),
        )
        if not {*vocabulary[2:]} <= {*range(len(pieces))}:
            raise UserError(f"{folder}: ids of special tokens must be below {len(pieces)}")
        sides.append(vocabulary)
    return sides
