"""Reads models of Marian: `.npz`, which OPUS-MT publishes, and `.bin`, which Firefox has.

Hugging Face and CTranslate2 convert such models with other sinusoids; here they are Marian's.
"""

import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer._files import open_regular, read_bytes
from keras_transformer.data.vocabulary import Vocabulary, pieces_of
from keras_transformer.formats.foreign_model import MARIAN, ForeignModel
from keras_transformer.formats.model_files import (
    in_order,
    read_marian_bin,
    read_npz,
    reading,
    unique,
)
from keras_transformer.recipe.files import parse_yaml

_ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
_POST_NORM = {"transformer-preprocess": "", "transformer-postprocess": "dan"}
_SSRU: dict[str, Any] = {"dec-cell": "ssru", "transformer-rnn-projection": False}
_DECODER_LAYERS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "self-attention": (None, {}),
    "rnn": ("keras_transformer>SSRUDecoderLayer", _SSRU),
}
_PRE_NORM = {"transformer-postprocess": "da", "transformer-postprocess-top": "n"}
# Settings that change the network, but not its weights, and what they are in a `Transformer`.
_NEEDED: dict[str, Any] = {
    "type": "transformer",
    "transformer-disable-position-embeddings": False,
    "transformer-alibi-shift": False,
    "right-left": False,
}


def is_marian_bin(path: Path) -> bool:
    """Returns whether a file begins as Marian's binary models do. Those of CTranslate2 do not."""
    with open_regular(path) as file:
        return file.read(8) == struct.pack("<Q", 1)


def read_marian(path: Path, vocabularies: Sequence[Path] = ()) -> ForeignModel:
    """Reads a model and its vocabularies.

    Args:
        path: A `.npz` or `.bin` file, or a folder with one, or with a `decoder.yml` that names one.
        vocabularies: A SentencePiece model, or one for each language. Defaults to those that the
            `decoder.yml` names.

    Raises an error, see `reading`, if a file is damaged, or a `Transformer` cannot be such a model.
    """
    folder = path if path.is_dir() else path.parent
    names = ["*decoder.yml"] if path.is_dir() else [f"{path.name}.decoder.yml", "decoder.yml"]
    beside = [x for name in names for x in sorted(folder.glob(name))]
    decoder = _settings(read_bytes(beside[0])) if beside else {}
    if path.is_dir():
        named = [folder / str(name) for name in decoder.get("models", [])]
        places = (named, path.glob("*.npz"), path.glob("*.bin"))
        found = next(filter(None, ([x for x in place if x.is_file()] for place in places)), [])
        if len(found) != 1:
            raise ValueError(f"it must have one model. Received: {[x.name for x in found]}")
        (path,) = found
    weights = (read_marian_bin if path.suffix == ".bin" else read_npz)(path)
    # One name for the norms before and after a sublayer, and after attention and recurrence.
    # Factors of activations are for 8 bits only. Kernels, unlike embeddings, are (in, out).
    weights = unique(
        (
            name.removesuffix("_pre").replace("_rnn_ffn_ln_", "_self_Wo_ln_"),
            weight if name.endswith(("Wemb", "_Wt")) else weight.T,
        )
        for name, weight in weights.items()
        if not name.endswith("QuantMultA")
    )
    arguments = _arguments(_settings(weights.pop("special:model.yml").tobytes()))
    files = vocabularies or [folder / str(name) for name in decoder.get("vocabs", [])]
    return ForeignModel(
        path,
        MARIAN,
        weights,
        arguments,
        _vocabularies(folder, files or sorted(folder.glob("*vocab*.spm"))),
        evaluation={
            "beam_size": decoder.get("beam-size", 4),
            "length_penalty": decoder.get("normalize", 0),
            "length_penalty_form": "power",
        },
    )


def _settings(content: bytes) -> dict[str, Any]:
    return dict(parse_yaml(content.replace(b"\0", b"").decode()))


def _arguments(settings: dict[str, Any]) -> dict[str, Any]:
    norm_first = settings.get("transformer-preprocess") == "n"
    norms = _PRE_NORM if norm_first else _POST_NORM
    autoregression = settings.get("transformer-decoder-autoreg", "self-attention")
    layer, own = _DECODER_LAYERS[autoregression]
    for key, value in {**_NEEDED, **norms, **own}.items():
        if (found := settings.get(key, value)) != value:
            raise ValueError(f"{key} must be {value!r}. Received: {found!r}")
    return {
        "num_layers": settings["enc-depth"],
        "num_decoder_layers": settings["dec-depth"],
        "num_heads": settings["transformer-heads"],
        "decoder_layer": layer,
        "position_encoding": "sinusoidal_marian",
        "activation": _ACTIVATIONS[settings.get("transformer-ffn-activation", "relu")],
        "norm_first": norm_first,
        "norm_epsilon": 1e-6,
    }


def _vocabularies(folder: Path, files: Sequence[Path]) -> list[Vocabulary]:
    if len(files) not in (1, 2):
        names = [file.name for file in files]
        raise ValueError(f"name one or two vocabularies (--vocabulary). Received: {names}")
    found = []
    for file, model in zip((files[0], files[-1]), ("source.spm", "target.spm"), strict=True):
        if file.suffix in (".yml", ".yaml", ".json"):
            pieces, content = _yaml_pieces(file), read_bytes(folder / model)
        else:
            content = read_bytes(file)
            pieces = pieces_of(content)
        found.append(Vocabulary(pieces, content, pieces.index("<unk>"), pieces.index("</s>")))
    return found


def _yaml_pieces(file: Path) -> list[str]:
    """Reads lines such as `"▁the": 7`. A YAML parser would take some pieces for other types."""
    ids = {}
    with reading(file):
        for line in read_bytes(file).decode().split("\n"):
            piece, _, number = line.rpartition(":")
            if piece[:1] == piece[-1:] == '"' and len(piece) > 1:
                piece = json.loads(re.sub(r"\\x([0-9A-Fa-f]{2})", r"\\u00\1", piece))
            elif piece[:1] == piece[-1:] == "'" and len(piece) > 1:
                piece = piece[1:-1].replace("''", "'")
            if piece:
                ids[piece] = int(number)
    return in_order(file, ids)
