"""Reads MarianMT models in the format of Hugging Face, without transformers or torch.

A pre-norm model has the type Pegasus, whose network is that of MarianMT with pre-norm.
"""

from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import UserError
from keras_transformer.exchange.foreign_model import ForeignModel, Format
from keras_transformer.exchange.model_files import (
    Arrays,
    in_order,
    read_safetensors,
    read_torch,
    read_value,
)
from keras_transformer.exchange.vocabulary import Vocabulary

CLASSES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}
ACTIVATIONS = {
    "relu": "relu",
    **dict.fromkeys(("swish", "silu"), "silu"),
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), "gelu_approximate"),
}
NORM_EPSILON = "norm_epsilon"  # What our exports have. transformers ignores it, and takes
_EPSILON = 1e-5
_LAYER = "model.{stack}.layers.{index}"
_ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
FORMAT = Format(
    matrices={
        "source": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
        "target": ("model.shared.weight", "model.decoder.embed_tokens.weight"),
        "output_embeddings": ("lm_head.weight",),
        "bias": ("final_logits_bias",),
        "position_embeddings": (
            "model.encoder.embed_positions.weight",
            "model.decoder.embed_positions.weight",
        ),
    },
    sublayers={
        **{
            f"{ours}/{part}": f"{_LAYER}.{theirs}.{projection}.{{weight}}"
            for ours, theirs in _ATTENTIONS.items()
            for part, projection in _PROJECTIONS.items()
        },
        **{
            f"{ours}_residual/norm": f"{_LAYER}.{theirs}_layer_norm.{{weight}}"
            for ours, theirs in {**_ATTENTIONS, "feed_forward": "final"}.items()
        },
        "feed_forward/inner": f"{_LAYER}.fc1.{{weight}}",
        "feed_forward/outer": f"{_LAYER}.fc2.{{weight}}",
        "norm": "model.{stack}.layer_norm.{weight}",
    },
    weights={"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"},
)


def read_hugging_face(folder: Path) -> ForeignModel:
    """Reads the folder of a MarianMT model: weights, `config.json` and the tokenizer.

    Raises `UserError` if the model has another type, or if a file is missing or damaged.
    """
    config = read_value(folder / "config.json")
    if (kind := config.get("model_type")) not in CLASSES:
        raise UserError(
            f"{folder}: of Hugging Face's models, only those of the type marian (such as OPUS-MT) "
            f"can be imported. Received: model_type={kind!r}"
        )
    heads = config["encoder_attention_heads"], config["decoder_attention_heads"]
    if not config.get("scale_embedding") or heads[0] != heads[1]:
        raise UserError(
            f"{folder}: scale_embedding must be true, and encoder and decoder have as many heads. "
            f"Received: {config.get('scale_embedding')} and {heads}"
        )
    generation = {**config, **read_value(folder / "generation_config.json", missing={})}
    tokenizer = read_value(folder / "tokenizer_config.json", missing={})
    path, weights = _weights(folder)
    return ForeignModel(
        path,
        FORMAT,
        weights,
        {
            "num_layers": config["encoder_layers"],
            "num_decoder_layers": config["decoder_layers"],
            "d_model": config["d_model"],
            "num_heads": heads[0],
            "d_ff": config["encoder_ffn_dim"],
            "dropout_rate": config.get("dropout", 0.1),
            "attention_dropout_rate": config.get("attention_dropout", 0.0),
            "position_encoding": "sinusoidal_half_split",
            "activation": ACTIVATIONS[config.get("activation_function", "gelu")],
            "norm_first": kind == "pegasus",
            "norm_epsilon": config.get(NORM_EPSILON, _EPSILON),
            "max_length": config.get("max_position_embeddings", 1024),
        },
        _vocabularies(folder, generation, tokenizer),
        evaluation={
            "beam_size": generation.get("num_beams", 1),
            "length_penalty": generation.get("length_penalty", 1.0),
            "length_penalty_form": "power",
        },
        languages=tuple(tokenizer.get(f"{x}_lang", "und") for x in ("source", "target")),
    )


def _weights(folder: Path) -> tuple[Path, Arrays]:
    for name, read in (("model.safetensors", read_safetensors), ("pytorch_model.bin", read_torch)):
        if (path := folder / name).is_file():
            return path, read(path)
    raise UserError(f"{folder} has neither model.safetensors nor pytorch_model.bin")


def _vocabularies(
    folder: Path, settings: dict[str, Any], tokenizer: dict[str, Any]
) -> list[Vocabulary]:
    """Returns those of source and target. `target_vocab.json` is there if they differ."""
    unk = tokenizer.get("unk_token") or "<unk>"
    found = []
    for side, name in (("source", "vocab.json"), ("target", "target_vocab.json")):
        file = folder / name if (folder / name).is_file() else folder / "vocab.json"
        ids = read_value(file)
        special = (
            ids[unk["content"] if isinstance(unk, dict) else unk],
            int(np.ravel(settings["eos_token_id"])[0]),
            settings["pad_token_id"],
            settings["decoder_start_token_id"],
        )
        model = (folder / f"{side}.spm").read_bytes()
        found.append(Vocabulary(in_order(file, ids), model, *special))
    return found
