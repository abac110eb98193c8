"""Small models in the formats of other toolkits."""

import json
import math
import struct
from pathlib import Path

import keras
import numpy as np
import yaml

from keras_transformer import SearchOptions, Tokenizer, Transformer
from keras_transformer.formats import export_hugging_face
from keras_transformer.formats.foreign_model import MARIAN, named_weights
from support.contract import randomize
from support.parallel_text import SENTENCES

V = 60
SIZES = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 24, "max_length": 64}


def hugging_face_folder(folder: Path, **arguments) -> Path:
    """A MarianMT model with random weights, its tokenizer and its model card."""
    keras.utils.set_random_seed(0)
    usual = {"use_logits_bias": True, "position_encoding": "sinusoidal_half_split"}
    model = Transformer(V, **{**SIZES, **usual, **arguments})
    randomize(model)
    options = SearchOptions(beam_size=4, length_penalty=1.0, length_penalty_form="power")
    tokenizer = Tokenizer.train(SENTENCES, V, joint="target_vocabulary_size" not in arguments)
    export_hugging_face(model, tokenizer, folder, options, ("en", "de"))
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    return folder


def marian_files(folder: Path, kind: str = "npz") -> Path:
    """A model of Marian with random weights as `model.npz` or `model.bin`, and its vocabulary.

    With "yaml", as OPUS-MT publishes it: the vocabulary has lines, beside two tokenizers.
    """
    keras.utils.set_random_seed(0)
    model = Transformer(V, **SIZES, use_logits_bias=True, position_encoding="sinusoidal_marian")
    randomize(model)
    names = {"source": "Wemb", "target": "Wemb", "bias": "decoder_ff_logit_out_b"}
    weights = named_weights(model, MARIAN, names)
    arrays = {
        key: np.ascontiguousarray(x if key == "Wemb" else np.atleast_2d(x.T))
        for key, x in weights.items()
    }
    settings = {"enc-depth": 1, "dec-depth": 1, "transformer-heads": 3, "type": "transformer"}
    content = yaml.safe_dump(settings).encode() + b"\0"
    arrays["special:model.yml"] = np.frombuffer(content, "i1")
    folder.mkdir()
    tokenizer = Tokenizer.train(SENTENCES, V)
    (folder / "vocab.spm").write_bytes(tokenizer.source_model)
    if kind == "bin":
        (folder / "model.bin").write_bytes(marian_bin(arrays))
    else:
        np.savez(folder / "model.npz", **arrays)
    if kind == "yaml":
        pieces = enumerate(tokenizer.source_pieces)
        lines = (f"{json.dumps(piece, ensure_ascii=False)}: {id}\n" for id, piece in pieces)
        (folder / "vocab.yml").write_text("".join(lines), "utf-8")
        settings = "models: [model.npz]\nvocabs: [vocab.yml, vocab.yml]\n"
        (folder / "decoder.yml").write_text(f"{settings}beam-size: 6\nnormalize: 1\n")
        for side in ("source", "target"):
            (folder / f"{side}.spm").write_bytes(tokenizer.source_model)
    return folder


def marian_bin(arrays: dict[str, np.ndarray]) -> bytes:
    """The content of a `.bin` file of Marian, whose arrays take multiples of 256 bytes."""
    headers, names, shapes, data = b"", b"", b"", b""
    for name, x in arrays.items():
        size = math.ceil(x.nbytes / 256) * 256
        kind = 0x404 if x.dtype == "float32" else 0x101
        headers += struct.pack("<QQQQ", len(name) + 1, kind, x.ndim, size)
        names += name.encode() + b"\0"
        shapes += struct.pack(f"<{x.ndim}i", *x.shape)
        data += x.tobytes().ljust(size, b"\0")
    start = struct.pack("<QQ", 1, len(arrays)) + headers + names + shapes
    padding = -(len(start) + 8) % 256
    return start + struct.pack("<Q", padding) + bytes(padding) + data
