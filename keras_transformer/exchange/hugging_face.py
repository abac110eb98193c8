"""Reads MarianMT models in the format of Hugging Face, without transformers or torch.

A pre-norm model has the type Pegasus, whose network is that of MarianMT with pre-norm.
"""

from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._files import read_bytes
from keras_transformer.data.vocabulary import Vocabulary
from keras_transformer.errors import check_ids
from keras_transformer.exchange.foreign_model import ForeignModel
from keras_transformer.exchange.model_files import (
    INDEX,
    Arrays,
    in_order,
    read_safetensors,
    read_torch,
    read_value,
    shards,
    unique,
)
from keras_transformer.exchange.weight_names import HUGGING_FACE

CLASSES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}
ACTIVATIONS = {
    "relu": "relu",
    **dict.fromkeys(("swish", "silu"), "silu"),
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), "gelu_approximate"),
}
NORM_EPSILON = "norm_epsilon"  # What our exports have. transformers ignores it, and takes
_EPSILON = 1e-5
_OTHERS = {  # Other types, and why they are refused.
    **dict.fromkeys(("bart", "mbart"), "normalizes embeddings, and has positions for each side"),
    **dict.fromkeys(("t5", "mt5"), "has RMS norms, no biases and relative positions"),
    "m2m_100": "has another tokenizer",
}
SETTINGS = {
    "num_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "d_model": "d_model",
    "num_heads": "encoder_attention_heads",
    "d_ff": "encoder_ffn_dim",
    "dropout_rate": "dropout",
    "attention_dropout_rate": "attention_dropout",
    "max_length": "max_position_embeddings",
}


def read_hugging_face(folder: Path) -> ForeignModel:
    """Reads the folder of a MarianMT model: weights, `config.json` and the tokenizer.

    Raises an error, see `reading`, if it has another type, or if a file is missing or damaged.
    """
    config = read_value(folder / "config.json")
    if (kind := config.get("model_type")) not in CLASSES:
        reason = _OTHERS.get(str(kind), "is not known")
        raise ValueError(
            f"its type must be marian, as of OPUS-MT. Received: {kind}, which {reason}"
        )
    heads = config["encoder_attention_heads"], config["decoder_attention_heads"]
    if not config.get("scale_embedding") or heads[0] != heads[1]:
        raise ValueError(f"it must scale embeddings, and have the same heads. Received: {heads}")
    generation = {**config, **read_value(folder / "generation_config.json", missing={})}
    tokenizer = read_value(folder / "tokenizer_config.json", missing={})
    path, weights = _weights(folder)
    return ForeignModel(
        path,
        HUGGING_FACE,
        weights,
        {
            **{ours: config[theirs] for ours, theirs in SETTINGS.items()},
            "position_encoding": "sinusoidal_half_split",
            "activation": ACTIVATIONS[config["activation_function"]],
            "norm_first": kind == "pegasus",
            "norm_epsilon": config.get(NORM_EPSILON, _EPSILON),
        },
        _vocabularies(folder, generation, tokenizer),
        evaluation={
            "beam_size": generation.get("num_beams", 1),
            "length_penalty": generation.get("length_penalty", 1.0),
            "length_penalty_form": "power",
        },
        languages=tuple(str(tokenizer.get(f"{x}_lang", "und") or "") for x in ("source", "target")),
    )


def _weights(folder: Path) -> tuple[Path, Arrays]:
    """Returns the file of the weights, or of the list of their shards, and the weights."""
    for name, read in (("model.safetensors", read_safetensors), ("pytorch_model.bin", read_torch)):
        for path in (folder / name, folder / f"{name}{INDEX}"):
            if path.is_file():
                return path, unique(x for file in shards(path) for x in read(file).items())
    raise ValueError("there is neither model.safetensors nor pytorch_model.bin")


def _vocabularies(
    folder: Path, settings: dict[str, Any], tokenizer: dict[str, Any]
) -> list[Vocabulary]:
    """Returns those of source and target. `target_vocab.json` is there if they differ."""
    unk = tokenizer.get("unk_token") or "<unk>"
    found = []
    for side, name in (("source", "vocab.json"), ("target", "target_vocab.json")):
        file = folder / name if (folder / name).exists() else folder / "vocab.json"
        ids = read_value(file)
        special = (
            ids[unk["content"] if isinstance(unk, dict) else unk],
            int(np.ravel(settings["eos_token_id"])[0]),
            settings["pad_token_id"],
            settings["decoder_start_token_id"],
        )
        check_ids(len(ids), token_ids=np.array([x for x in special if x is not None]))
        model = read_bytes(folder / f"{side}.spm")
        found.append(Vocabulary(in_order(file, ids), model, *special))
    return found
