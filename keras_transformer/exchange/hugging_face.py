"""Reads and writes MarianMT models in the format of Hugging Face, without transformers or torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._files import read_json
from keras_transformer.errors import UserError
from keras_transformer.exchange.foreign_model import ForeignModel, Side, position_encoding_of
from keras_transformer.exchange.vocabulary import Vocabulary
from keras_transformer.exchange.weight_files import (
    Arrays,
    read_safetensors,
    read_torch,
    reading,
)

_MOST_VOCABULARY_BYTES = 1 << 28
_REASONS = {
    **dict.fromkeys(("bart", "mbart"), "it normalizes embeddings and has positions for each side"),
    **dict.fromkeys(("t5", "mt5", "umt5"), "it has RMS norms, no biases and other positions"),
    **dict.fromkeys(("m2m_100", "nllb-moe"), "its texts begin with the name of a language"),
    "fsmt": "it needs the tokenizer of Moses",
}
ACTIVATIONS = {
    "relu": "relu",
    **dict.fromkeys(("swish", "silu"), "silu"),
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), "gelu_approximate"),
}
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
_WEIGHTS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
_SHARED, _HEAD, _BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
_EMBEDDINGS = {side: f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")}
_POSITIONS = {side: f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
_EPSILON = 1e-5  # A MarianMT model has no other.


def name_in_layer(stack: str, number: int | None, sublayer: str, weight: str) -> str:
    """Returns Hugging Face's name of a weight, see `ForeignModel`."""
    if number is None:
        return f"model.{stack}.layer_norm.{_WEIGHTS[weight]}"
    return f"model.{stack}.layers.{number}.{_SUBLAYERS[sublayer]}.{_WEIGHTS[weight]}"


def read_hugging_face(folder: Path) -> ForeignModel:
    """Reads the folder of a MarianMT model: weights, `config.json` and the tokenizer.

    Raises `UserError` if the model has another type, or if a file is missing or damaged.
    """
    config = read_object(folder / "config.json")
    if (kind := config.get("model_type")) != "marian":
        reason = f": {_REASONS[kind]}" if kind in _REASONS else ""
        raise UserError(
            f"{folder}: of Hugging Face's models, only those of the type marian (such as OPUS-MT) "
            f"can be imported. Received: model_type={kind!r}{reason}"
        )
    generation = {**config, **read_object(folder / "generation_config.json", missing={})}
    tokenizer = read_object(folder / "tokenizer_config.json", missing={})
    path, weights = _weights(folder)
    with reading(folder / "config.json"):
        arguments = _arguments(folder, config)
        names = _names(config, weights)
        tables = {x: weights.pop(x) for x in _POSITIONS.values() if x in weights}
        arguments["position_encoding"] = "sinusoidal_half_split"
        if tables:
            arguments["position_encoding"] = position_encoding_of(tables)
            arguments["max_length"] = len(next(iter(tables.values())))
        if arguments["position_encoding"] == "learned":
            names["position_embeddings"] = _POSITIONS["encoder"]
            weights[_POSITIONS["encoder"]] = next(iter(tables.values()))
        return ForeignModel(
            path,
            arguments,
            weights,
            names,
            name_in_layer,
            *_sides(folder, config, generation, tokenizer),
            kernels_are_transposed=True,
            evaluation={
                "beam_size": int(generation.get("num_beams") or 1),
                "length_penalty": float(generation.get("length_penalty") or 1.0),
                "length_penalty_form": "power",
            },
            languages=(
                str(tokenizer.get("source_lang") or "und"),
                str(tokenizer.get("target_lang") or "und"),
            ),
        )


def _weights(folder: Path) -> tuple[Path, Arrays]:
    for name, read in (("model.safetensors", read_safetensors), ("pytorch_model.bin", read_torch)):
        if (path := folder / name).is_file():
            return path, read(path)
    raise UserError(f"{folder} has neither model.safetensors nor pytorch_model.bin")


def _arguments(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    activation = config.get("activation_function", "gelu")
    needed = {"scale_embedding": [True], "activation_function": [*ACTIVATIONS]}
    for size in ("ffn_dim", "attention_heads"):
        needed[f"decoder_{size}"] = [config[f"encoder_{size}"]]
    for key, values in needed.items():
        if config.get(key) not in values:
            rule = " or ".join(map(str, values))
            raise UserError(
                f"{folder}: {key} must be {rule} in config.json. Received: {config.get(key)}"
            )
    return {
        "num_layers": int(config["encoder_layers"]),
        "num_decoder_layers": int(config["decoder_layers"]),
        "d_model": int(config["d_model"]),
        "num_heads": int(config["encoder_attention_heads"]),
        "d_ff": int(config["encoder_ffn_dim"]),
        "dropout_rate": float(config.get("dropout", 0.1)),
        "attention_dropout_rate": float(config.get("attention_dropout", 0.0)),
        "activation": ACTIVATIONS[activation],
        "norm_epsilon": _EPSILON,
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
    matrix = weights.get(names["target"])
    for copy in {_SHARED, _HEAD, *_EMBEDDINGS.values()} - {*names.values()}:
        for original in (matrix, weights.get(names["source"])):
            if copy in weights and np.array_equal(weights[copy], original):
                del weights[copy]
    return names


def _sides(
    folder: Path, config: dict[str, Any], generation: dict[str, Any], tokenizer: dict[str, Any]
) -> tuple[Side, Side]:
    """Returns the vocabularies of source and target."""
    is_separate = not config.get("share_encoder_decoder_embeddings", True)
    target = folder / "target_vocab.json"
    files = [folder / "vocab.json"] * 2
    if is_separate and target.is_file():
        files[1] = target
    sides = []
    for file, name in zip(files, ("source.spm", "target.spm"), strict=True):
        ids = read_object(file)
        pieces = sorted(ids, key=ids.__getitem__)
        if [ids[piece] for piece in pieces] != [*range(len(pieces))]:
            raise UserError(f"{file} must map pieces to the ids from 0 to {len(pieces) - 1}")
        unk = tokenizer.get("unk_token") or "<unk>"
        eos = generation["eos_token_id"]
        vocabulary = Vocabulary(
            pieces,
            ids[unk["content"] if isinstance(unk, dict) else unk],
            eos[0] if isinstance(eos, list) else int(eos),
            int(generation["pad_token_id"]),
            int(generation["decoder_start_token_id"]),
        )
        if max(vocabulary[1:]) >= len(pieces):
            raise UserError(f"{folder}: ids of special tokens must be below {len(pieces)}")
        sides.append(Side(vocabulary, read_bytes(folder / name)))
    return sides[0], sides[1]


def read_bytes(path: Path) -> bytes:
    """Returns the content of a SentencePiece model."""
    with reading(path):
        if path.stat().st_size > _MOST_VOCABULARY_BYTES:
            raise ValueError("it is too large for a SentencePiece model")
        return path.read_bytes()


def read_value(path: Path, most: int = _MOST_VOCABULARY_BYTES) -> Any:
    """Returns the value in a JSON file."""
    with reading(path), path.open("rb") as file:
        return read_json(file, most)


def read_object(path: Path, missing: Any = None) -> dict[str, Any]:
    """Returns the object in a JSON file, or `missing` if there is no file and it is not None."""
    if missing is not None and not path.is_file():
        return missing
    found = read_value(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold an object. Received: {found!r:.60}")
    return found
