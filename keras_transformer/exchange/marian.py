"""Reads models of Marian: `.npz`, and `.bin` with float32 weights. OPUS-MT publishes the former.

Hugging Face and CTranslate2 convert such models with other sinusoids; here they are Marian's.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.data.vocabulary import Vocabulary, pieces_of
from keras_transformer.errors import UserError
from keras_transformer.exchange.foreign_model import ForeignModel
from keras_transformer.exchange.model_files import (
    Arrays,
    in_order,
    read_bytes,
    read_marian_bin,
    read_npz,
    reading,
)
from keras_transformer.recipe.files import parse_yaml

_MODEL_YML = "special:model.yml"
_MOST_YAML_BYTES = 1 << 20
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
_POST_NORM, _PRE_NORM = ("", "dan", ""), ("n", "da", "n")
# Settings that change the network, and the values that a `Transformer` can have.
_NEEDED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-ffn-activation": tuple(_ACTIVATIONS),
    "transformer-tied-layers": ([],),
    "factors-dim-emb": (0,),
    "lemma-dim-emb": (0,),
    **dict.fromkeys(
        (
            *("transformer-no-projection", "transformer-no-affine", "transformer-no-bias"),
            *("transformer-train-positions", "transformer-train-position-embeddings"),
            *("transformer-disable-position-embeddings", "transformer-alibi-shift"),
            *("transformer-pool", "transformer-rnn-projection", "ulr", "lsh-output"),
        ),
        (False,),
    ),
}
_ATTENTIONS = {"self_attention": "self", "cross_attention": "context"}
_EPSILON = 1e-6


def read_marian(path: Path, vocabularies: tuple[Path, ...] = ()) -> ForeignModel:
    """Reads a model and its vocabularies.

    Args:
        path: A `.npz` or `.bin` file, or a folder with one, or with a `decoder.yml` that names one.
        vocabularies: A SentencePiece model, or one for each language. Defaults to those that the
            `decoder.yml` names.

    Raises:
        UserError: If a file is missing or damaged, or a `Transformer` cannot be such a model.
    """
    decoder = _decoder_settings(path)
    path = _weights_file(path, decoder)
    weights = (read_marian_bin if path.suffix == ".bin" else read_npz)(path)
    with reading(path):
        settings = _settings(weights.pop(_MODEL_YML).tobytes())
        arguments = _arguments(path, settings)
        norm = "_pre" if arguments["norm_first"] else ""
        beam_size, power = decoder.get("beam-size", 4), decoder.get("normalize", 0)
        files = [*vocabularies] or decoder.get("vocabs") or sorted(path.parent.glob("*vocab*.spm"))
        return ForeignModel(
            path,
            [path, *dict.fromkeys(files)],
            arguments,
            weights,
            _names(weights),
            lambda *place: _name_in_layer(norm, *place),
            _sides(path.parent, files),
            evaluation={
                "beam_size": int(beam_size),
                "length_penalty": float(power),
                "length_penalty_form": "power",
            },
        )


def _decoder_settings(path: Path) -> dict[str, Any]:
    """Returns the file that Marian writes beside its model, or {}. Paths in it become absolute."""
    files = [path.with_name(f"{path.name}.decoder.yml"), path.with_name("decoder.yml")]
    for file in sorted(path.glob("*decoder.yml")) if path.is_dir() else files:
        if file.is_file():
            with reading(file):
                found = _settings(file.read_bytes())
                for key in ("models", "vocabs"):
                    found[key] = [file.parent / str(name) for name in found.get(key, [])]
                return found
    return {}


def _weights_file(path: Path, decoder: dict[str, Any]) -> Path:
    if path.is_file():
        return path
    found = [x for x in decoder.get("models", []) if x.is_file()]
    found = found or [*path.glob("*.npz")] or [*path.glob("*.bin")]
    if len(found) != 1:
        raise UserError(f"{path} must have one model. Received: {[x.name for x in found]}")
    return found[0]


def _settings(content: bytes) -> dict[str, Any]:
    if len(content) > _MOST_YAML_BYTES:
        raise ValueError(f"its settings must have at most {_MOST_YAML_BYTES:,} bytes")
    return dict(parse_yaml(content.replace(b"\0", b"").decode()))


def _arguments(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    for key, values in _NEEDED.items():
        if (found := settings.get(key, values[0])) not in values:
            rule = " or ".join(map(str, values))
            raise UserError(f"{path} cannot be imported: {key} must be {rule}. Received: {found}")
    steps = ("preprocess", "postprocess", "postprocess-top")
    norms = tuple(settings.get(f"transformer-{step}", "") for step in steps)
    if norms not in (_POST_NORM, _PRE_NORM):
        raise UserError(
            f"{path} cannot be imported: transformer-{', -'.join(steps)} must be {_POST_NORM} "
            f"(post-norm) or {_PRE_NORM} (pre-norm). Received: {norms}"
        )
    return {
        "num_layers": int(settings["enc-depth"]),
        "num_decoder_layers": int(settings["dec-depth"]),
        "d_model": int(settings["dim-emb"]),
        "num_heads": int(settings["transformer-heads"]),
        "d_ff": int(settings["transformer-dim-ffn"]),
        "activation": _ACTIVATIONS[settings.get("transformer-ffn-activation", "relu")],
        "norm_first": norms == _PRE_NORM,
        "norm_epsilon": _EPSILON,
        "position_encoding": "sinusoidal_marian",
    }


def _names(weights: Arrays) -> dict[str, str]:
    """Returns the names of the embeddings, and transposes an output matrix `(D, V)`."""
    name = "decoder_ff_logit_out_W"
    if name in weights:
        weights[f"{name}t"] = weights.pop(name).T
    names = {"source": "Wemb", "target": "Wemb", "output_embeddings": f"{name}t"}
    names["bias"] = "decoder_ff_logit_out_b"
    if "Wemb" not in weights:
        names |= {"source": "encoder_Wemb", "target": "decoder_Wemb"}
    return {x: y for x, y in names.items() if y in weights or y.endswith("Wemb")}


def _name_in_layer(norm: str, stack: str, number: int | None, sublayer: str, weight: str) -> str:
    """Returns Marian's name of a weight, see `ForeignModel`."""
    part = {"gamma": "scale", "beta": "bias"}.get(weight)
    if number is None:
        return f"{stack}_top_ln_{part}"
    layer, letter = f"{stack}_l{number + 1}", "W" if weight == "kernel" else "b"
    block, _, place = sublayer.partition("/")
    if block == "feed_forward":
        return f"{layer}_ffn_{letter}{1 if place == 'inner' else 2}"
    if block == "feed_forward_residual":
        return f"{layer}_ffn_ffn_ln_{part}{norm}"
    name = f"{layer}_{_ATTENTIONS[block.removesuffix('_residual')]}"
    return f"{name}_Wo_ln_{part}{norm}" if part else f"{name}_{letter}{place[0]}"


def _sides(folder: Path, files: Sequence[Path]) -> list[Vocabulary]:
    if len(files) not in (1, 2):
        raise UserError(
            f"{folder}: name the vocabulary, or those of source and target (--vocabulary). "
            f"Received: {[file.name for file in files]}"
        )
    sides = []
    for file, model in zip((files[0], files[-1]), ("source.spm", "target.spm"), strict=True):
        if file.suffix in (".yml", ".yaml", ".json"):
            pieces, content = _yaml_pieces(file), read_bytes(folder / model)
        else:
            content = read_bytes(file)
            pieces = pieces_of(content)
        with reading(file):
            sides.append(Vocabulary(pieces, content, pieces.index("<unk>"), pieces.index("</s>")))
    return sides


def _yaml_pieces(file: Path) -> list[str]:
    """Reads lines such as `"▁the": 7`. A YAML parser would take some pieces for other types."""
    ids = {}
    with reading(file):
        for line in read_bytes(file).decode().split("\n"):
            piece, _, number = line.rstrip("\r").rpartition(":")
            if not piece:
                continue
            if piece[:1] == piece[-1:] == '"' and len(piece) > 1:
                piece = json.loads(re.sub(r"\\x([0-9A-Fa-f]{2})", r"\\u00\1", piece))
            elif piece[:1] == piece[-1:] == "'" and len(piece) > 1:
                piece = piece[1:-1].replace("''", "'")
            ids[piece] = int(number)
    return in_order(file, ids)
