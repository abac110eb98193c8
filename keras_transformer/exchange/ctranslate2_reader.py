"""Reads CTranslate2's `model.bin`, versions 1 to 6, without ctranslate2.

It serves users of OpenNMT-py, OpenNMT-tf, fairseq and Argos, whose models CTranslate2 converts.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.data.vocabulary import Vocabulary, word_model
from keras_transformer.errors import UserError
from keras_transformer.exchange.foreign_model import ForeignModel, name_positions
from keras_transformer.exchange.model_files import (
    Arrays,
    Bytes,
    read_bytes,
    read_value,
    reading,
)

_NEWEST = 6
_TYPES = ("<f4", "i1", "<i2", "<i4", "<f2", "<u2")  # by CTranslate2's number; the last is bfloat16
_BFLOAT16 = 5
_OLD_TYPES = {4: 0, 1: 1, 2: 2}  # numbers by item size, in versions 1 to 3
_OLD_INT16_SCALE = 1000.0
_OLD_HEADS = {"": 8, "TransformerBase": 8, "TransformerBig": 16}
_ACTIVATIONS = {0: "relu", 1: "gelu_approximate", 2: "silu", 3: "gelu", 5: "tanh", 6: "sigmoid"}
_EPSILON = 1e-5
# Names of version 1, which are those of OpenNMT-tf.
_OLD_NAMES = (
    (r"^transformer/", ""),
    (r":0", ""),
    (r"/w_embs", "/embeddings/weight"),
    (r"/dense/", "/projection/"),
    (r"/masked_multi_head/", "/self_attention/"),
    (r"^(encoder/.*)/multi_head/", r"\1/self_attention/"),
    (r"/multi_head/", "/attention/"),
    (r"/LayerNorm/", "/layer_norm/"),
    (r"/conv1d/", "/linear_0/"),
    (r"/conv1d_(\d)/", r"/linear_\1/"),
    (r"/kernel", "/weight"),
)
# Layers whose weights are those of several layers, one after another.
_JOINED = re.compile(r"(\w+/layer_\d+/(self_attention/linear_0|attention/linear_1))/(weight|bias)")
_PARTS = {
    "self_attention/linear_0": ("query", "key", "value"),
    "attention/linear_1": ("key", "value"),
}
_SUBLAYERS = {
    **{f"self_attention/{x}": f"self_attention/linear_0/{x}" for x in ("query", "key", "value")},
    "self_attention/output": "self_attention/linear_1",
    "self_attention_residual/norm": "self_attention/layer_norm",
    "cross_attention/query": "attention/linear_0",
    **{f"cross_attention/{x}": f"attention/linear_1/{x}" for x in ("key", "value")},
    "cross_attention/output": "attention/linear_2",
    "cross_attention_residual/norm": "attention/layer_norm",
    "feed_forward/inner": "ffn/linear_0",
    "feed_forward/outer": "ffn/linear_1",
    "feed_forward_residual/norm": "ffn/layer_norm",
}
_SUFFIXES = (".json", ".txt", ".spm", ".model")
_POSITIONS = "{}/position_encodings/encodings"
# Flags of a stack without an effect here, and those that need a value.
_WITHOUT_EFFECT = (
    *("embeddings_merge", "alignment_heads", "alignment_layer", "alibi_use_positive_positions"),
    *("scale_alibi", "with_source_bos"),
)
_NEEDED = {"scale_embeddings": 1, "alibi": 0, "multi_query_attention": 0, "scale_outputs": 0}


def read_ctranslate2(folder: Path, vocabularies: tuple[Path, ...] = ()) -> ForeignModel:
    """Reads a converted model.

    Args:
        folder: The folder with `model.bin` and the vocabulary.
        vocabularies: The SentencePiece model of the texts, or one for each language. Defaults to
            those in the folder. Without one, texts must have spaces between the model's tokens.

    Raises:
        UserError: If a file is missing or damaged, or a `Transformer` cannot be such a model.
    """
    path = folder / "model.bin"
    spec, arrays, notes = _read(path)
    config = read_value(folder / "config.json", missing={})
    with reading(path):
        flags = {name: arrays.pop(name).item() for name in [*arrays] if arrays[name].ndim == 0}
        arguments, starts_from_zero = _arguments(path, spec, flags, arrays, config)
        names = _names(arrays)
        name_positions(arguments, arrays, names, _POSITIONS, "sinusoidal_opennmt")
        eos = config.get("add_source_eos", flags.get("with_source_eos", False))
        return ForeignModel(
            path,
            [path, *vocabularies, *(x for x in folder.iterdir() if x.suffix in _SUFFIXES)],
            arguments,
            _split(arrays),
            names,
            _name_in_layer,
            _sides(folder, config, vocabularies, starts_from_zero),
            source_eos=bool(eos),
            kernels_are_transposed=True,
            notes=notes,
        )


def _read(path: Path) -> tuple[str, Arrays, tuple[str, ...]]:
    """Returns the name of the specification, all variables as floats, and what they have lost."""
    with reading(path):
        file = Bytes(path)

        def text() -> str:
            return file.text(*file.numbers("H")).rstrip(b"\0").decode()

        (version,) = file.numbers("I")
        if not 1 <= version <= _NEWEST:
            raise ValueError(f"its version must be from 1 to {_NEWEST}. Received: {version}")
        spec = ""
        if version >= 2:
            spec, _ = text(), file.numbers("I")
        found: Arrays = {}
        for _ in range(*file.numbers("I")):
            name = text()
            shape = file.numbers(f"{file.numbers('B')[0]}I")
            kind, _ = file.numbers("BI")
            if version < 4:
                kind = _OLD_TYPES[kind]
            array = file.take(_TYPES[kind], shape)
            if kind == _BFLOAT16:
                array = (array.astype("u4") << 16).view("f4")
            if version == 1:
                for pattern, new in _OLD_NAMES:
                    name = re.sub(pattern, new, name)
            found[name] = array
        if version >= 3:
            for _ in range(*file.numbers("I")):
                alias = text()
                found[alias] = found[text()]
        return spec, *_as_floats(found)


def _as_floats(found: Arrays) -> tuple[Arrays, tuple[str, ...]]:
    notes = {}
    for name in [x for x in found if not x.endswith("_scale")]:
        array = found[name]
        scale = found.pop(f"{name}_scale", np.array([_OLD_INT16_SCALE], "f4"))
        if array.ndim and array.dtype.kind == "i":
            bits = 8 * array.itemsize
            notes[bits] = (
                f"the weights are rounded to int{bits}, so scores differ from the original's"
            )
            found[name] = (array / scale.reshape(-1, *[1] * (array.ndim - 1))).astype("f4")
    return found, tuple(notes.values())


def _arguments(
    path: Path, spec: str, flags: dict[str, Any], arrays: Arrays, config: dict[str, Any]
) -> tuple[dict[str, Any], bool]:
    """Returns arguments of `Transformer`, and whether the decoder starts from zeros."""
    sides = []
    starts_from_zero = False
    for side in ("encoder", "decoder"):
        own = {key.partition("/")[2]: x for key, x in flags.items() if key.startswith(f"{side}/")}
        starts_from_zero |= bool(own.pop("start_from_zero_embedding", False))
        norm_first = bool(own.pop("pre_norm", True))
        activation = _ACTIVATIONS.get(own.pop("activation", 0))
        heads = int(own.pop("num_heads", _OLD_HEADS.get(spec, 0)))
        scales = {own.pop(key) for key in [*own] if key.endswith("/queries_scale")}
        wrong = {key: x for key, x in own.items() if _NEEDED.get(key, x) != x}
        wrong |= {key: x for key, x in own.items() if key not in {*_NEEDED, *_WITHOUT_EFFECT}}
        if wrong or not heads or not activation or scales - {1.0}:
            raise UserError(
                f"{path} cannot be imported: a Transformer has no such {side}. Received: "
                f"{wrong or (activation, heads, scales)}"
            )
        layers = {key.split("/")[1] for key in arrays if key.startswith(f"{side}/layer_")}
        depth = len(layers - {"layer_norm"})
        sides.append((norm_first, activation, heads, not scales, depth))
    (*first, num_layers), (*second, num_decoder_layers) = sides
    if first != second:
        raise UserError(
            f"{path} cannot be imported: encoder and decoder must have the same norms, activation "
            f"and heads. Received: {first} and {second}"
        )
    inner = arrays["encoder/layer_0/ffn/linear_0/weight"]
    return {
        "num_layers": num_layers,
        "num_decoder_layers": num_decoder_layers,
        "d_model": inner.shape[1],
        "num_heads": first[2],
        "d_ff": inner.shape[0],
        "activation": first[1],
        "norm_first": first[0],
        "use_scale": first[3],
        "norm_epsilon": float(config.get("layer_norm_epsilon") or _EPSILON),
    }, starts_from_zero


def _names(arrays: Arrays) -> dict[str, str]:
    """Returns the names of the embeddings, and removes copies of the target's."""
    target = "decoder/embeddings/weight"
    source = "encoder/embeddings_0/weight"
    if source not in arrays:
        source = "encoder/embeddings/weight"
    names = {"source": source, "target": target, "output_embeddings": "decoder/projection/weight"}
    for key in ("source", "output_embeddings"):
        if np.array_equal(arrays[names[key]], arrays[target]):
            del arrays[names[key]]
            names[key] = target
    if names["output_embeddings"] == target:
        del names["output_embeddings"]
    return {**names, "bias": "decoder/projection/bias"}


def _split(arrays: Arrays) -> Arrays:
    """Splits joined layers into those of query, key and value."""
    split: Arrays = {}
    for name, array in arrays.items():
        if match := _JOINED.fullmatch(name):
            parts = _PARTS[match[2]]
            for part, own in zip(parts, np.split(array, len(parts)), strict=True):
                split[f"{match[1]}/{part}/{match[3]}"] = own
        else:
            split[name] = array
    return split


def _name_in_layer(stack: str, number: int | None, sublayer: str, weight: str) -> str:
    """Returns CTranslate2's name of a weight, see `ForeignModel`."""
    part = "weight" if weight == "kernel" else weight
    if number is None:
        return f"{stack}/layer_norm/{part}"
    return f"{stack}/layer_{number}/{_SUBLAYERS[sublayer]}/{part}"


def _sides(
    folder: Path, config: dict[str, Any], models: tuple[Path, ...], starts_from_zero: bool
) -> list[Vocabulary]:
    places = (("source.spm", "target.spm"), ("tokenizer/source.model", "tokenizer/target.model"))
    for names in (*places, ("sentencepiece.model",), ("tokenizer/source.model",)):
        if not models and all((folder / name).is_file() for name in names):
            models = tuple(folder / name for name in names)
    unk, eos, start = (
        str(config.get(f"{name}_token", usual))
        for name, usual in (("unk", "<unk>"), ("eos", "</s>"), ("decoder_start", "<s>"))
    )
    found = []
    for side, number in (("source", 0), ("target", -1)):
        pieces = _pieces(folder, side)
        if unk not in pieces:
            pieces.append(unk)
        ids = {piece: id for id, piece in enumerate(pieces)}
        pad = next((ids[name] for name in ("<blank>", "<pad>") if name in ids), None)
        special = ids[unk], ids[eos], pad, None if starts_from_zero else ids[start]
        if models:
            content = read_bytes(models[number])
        else:  # Its pieces are words of texts.
            pieces = [x if id in special else f"▁{x}" for id, x in enumerate(pieces)]
            content = word_model(pieces)
        found.append(Vocabulary(pieces, content, *special))
    return found


def _pieces(folder: Path, side: str) -> list[str]:
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        if (path := folder / f"{name}.json").is_file():
            return [str(piece) for piece in read_value(path, kind=list)]
        if (path := folder / f"{name}.txt").is_file():
            with reading(path):
                return read_bytes(path).decode().removesuffix("\n").split("\n")
    raise UserError(f"{folder} has no {side}_vocabulary.json or shared_vocabulary.json")
