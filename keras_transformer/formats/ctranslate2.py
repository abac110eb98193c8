"""Reads, writes and compares models of CTranslate2.

The reader needs no ctranslate2. It serves users of OpenNMT-py, OpenNMT-tf, fairseq and Argos, whose
models CTranslate2 converts.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._files import atomic_write, check_is_free, read_bytes
from keras_transformer.data.tokenizer import Tokenizer, frames_in
from keras_transformer.data.vocabulary import ABSENT, Vocabulary, word_model
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import imported
from keras_transformer.formats.comparison import (
    Agreement,
    compare_translations,
    scored_translations,
)
from keras_transformer.formats.ctranslate2_translator import CTranslate2Translator
from keras_transformer.formats.exported_model import (
    PLAIN_LAYERS,
    Rule,
    array,
    check_supported,
    position_table,
)
from keras_transformer.formats.foreign_model import CTRANSLATE2, ForeignModel, named_weights
from keras_transformer.formats.model_files import (
    Arrays,
    Bytes,
    as_float32,
    check_count,
    read_value,
    reading,
    unique,
)
from keras_transformer.layers import RotaryPositionalEncoding
from keras_transformer.models.base import in_float32
from keras_transformer.models.transformer import Transformer
from keras_transformer.translation.translator import Translator

# CTranslate2's numbers of activations. That of "gelu" is the exact function, as in Keras.
ACTIVATIONS = {
    **{"relu": 0, "gelu_approximate": 1, "swish": 2, "silu": 2, "gelu": 3},
    **{"tanh": 5, "sigmoid": 6},
}
RULES: tuple[Rule, ...] = (
    ("activation", lambda x: x.activation not in ACTIVATIONS, f"the activations {[*ACTIVATIONS]}"),
    *PLAIN_LAYERS,
)
# Translations tie if their log-probabilities differ by at most this number of nats per token.
TOLERANCE = 1e-2
_JOINED = {
    "self_attention/linear_0": ("q", "k", "v"),
    "attention/linear_1": ("k", "v"),
}
_TYPES = ("<f4", "i1", "<i2", "<i4", "<f2", "<u2")  # by CTranslate2's number; the last is bfloat16
_BFLOAT16 = 5
_OLD_TYPES = {4: 0, 1: 1, 2: 2}  # numbers by item size, in versions 1 to 3
_OLD_INT16_SCALE = 1000.0
_OLD_HEADS = {"": 8, "TransformerBase": 8, "TransformerBig": 16}
_OLD_NAMES = (  # of version 1, which are those of OpenNMT-tf
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
# Flags that are read or have no effect here, and those that need a value.
_KNOWN = {
    *("num_heads", "pre_norm", "activation", "with_source_eos", "start_from_zero_embedding"),
    *("embeddings_merge", "alignment_heads", "alignment_layer", "alibi_use_positive_positions"),
    *("scale_alibi",),
}
_NEEDED = {
    **dict.fromkeys(("scale_embeddings", "multiply_by_sqrt_depth", "queries_scale"), 1),
    **dict.fromkeys(("with_source_bos", "with_relative_position", "alibi", "scale_outputs"), 0),
    **dict.fromkeys(("layernorm_embedding", "user_decoder_start_tokens"), 0),
    **{"with_target_bos": 1, "multi_query_attention": 0},
}


def read_ctranslate2(folder: Path, vocabularies: Sequence[Path] = ()) -> ForeignModel:
    """Reads a converted model. Its binary version is 1 to 6, of which 3 was not tried.

    Args:
        folder: The folder with `model.bin` and the vocabulary.
        vocabularies: The SentencePiece model of the texts, or one for each language. Defaults to
            those in the folder. Without one, texts must have spaces between the model's tokens.

    Raises an error, see `reading`, if a file is damaged, or a `Transformer` cannot be such a model.
    """
    path = folder / "model.bin"
    spec, tokens, variables = _read(path)
    arrays, notes = _as_floats(variables)
    config = {**tokens, **read_value(folder / "config.json", missing={})}
    is_scaled = _take_scale(arrays)
    flags = _flags(arrays, config)
    return ForeignModel(
        path,
        CTRANSLATE2,
        arrays,
        {
            "num_heads": flags.get("num_heads", _OLD_HEADS.get(spec)),
            "position_encoding": "sinusoidal_opennmt",
            "activation": {x: name for name, x in ACTIVATIONS.items()}[flags.get("activation", 0)],
            "norm_first": bool(flags.get("pre_norm", True)),
            "use_scale": "queries_scale" not in flags,
            "norm_epsilon": config.get("layer_norm_epsilon") or 1e-5,
        },
        _vocabularies(folder, config, vocabularies, flags.get("start_from_zero_embedding", False)),
        frames={"source_eos": is_scaled or bool(flags.get("with_source_eos", False))}
        | frames_in(read_value(folder / "tokenizer" / "tokenizer.json", missing={})),
        notes=notes,
    )


def _read(path: Path) -> tuple[str, dict[str, str], Arrays]:
    """Returns the name of the specification, special tokens (of version 5), and all variables.

    Adds the scales of int16 weights, which versions 1 to 3 leave out.
    """
    with reading(path):
        file = Bytes(path)

        def text() -> str:
            return file.text(*file.numbers("H")).rstrip(b"\0").decode()

        (version,) = file.numbers("I")
        if not 1 <= version <= 6:
            raise ValueError(f"its version must be from 1 to 6. Received: {version}")
        spec = ""
        if version >= 2:
            spec, _ = text(), file.numbers("I")
        arrays = []
        for _ in range(*file.numbers("I")):
            name = text()
            shape = file.numbers(f"{file.numbers('B')[0]}I")
            kind, size = file.numbers("BI")
            if version < 4:
                kind, size = _OLD_TYPES[kind], kind * size
            value = file.take(_TYPES[kind], shape, size)
            for pattern, new in _OLD_NAMES if version == 1 else ():
                name = re.sub(pattern, new, name)
            arrays.append((name, as_float32(value) if kind == _BFLOAT16 else value))
        variables = unique(arrays)
        count = range(*file.numbers("I")) if version >= 3 else ()
        aliases = {text(): text() for _ in count}
        found = unique([*arrays, *((alias, variables[name]) for alias, name in aliases.items())])
        for alias, name in aliases.items():  # An alias has the scale of its array, too.
            if f"{name}_scale" in variables:
                found.setdefault(f"{alias}_scale", variables[f"{name}_scale"])
        file.finish()
        check_count(path, sum(value.size for value in found.values()))
        for name, value in [*found.items()] if version < 4 else ():
            if value.ndim and value.dtype == "int16":
                found.setdefault(f"{name}_scale", np.array(_OLD_INT16_SCALE, "f4"))
        texts = [x for x in found if x.endswith("_token")]
        return spec, {x: found.pop(x).tobytes().decode() for x in texts}, found


def _as_floats(found: Arrays) -> tuple[Arrays, tuple[str, ...]]:
    """Returns the arrays as floats, with those of joined layers apart, and what they have lost."""
    arrays: Arrays = {}
    notes = {}
    rounded = [x for x in found if found[x].dtype.kind == "i" and f"{x}_scale" in found]
    scales = {name: found.pop(f"{name}_scale") for name in rounded}
    for name, value in found.items():
        if name in scales:
            bits = 8 * value.itemsize
            notes[bits] = (
                f"the weights are rounded to int{bits}, so scores differ from the original's"
            )
            rows = np.broadcast_to(scales[name].reshape(-1), value.shape[:1])
            value = (value.T / rows).T.astype("f4")
        layer, _, weight = name.rpartition("/")
        parts = next((_JOINED[x] for x in _JOINED if layer.endswith(f"/{x}")), ())
        for part, own in zip(parts, np.split(value, len(parts)) if parts else (), strict=True):
            arrays[f"{layer}#{part}/{weight}"] = own
        if not parts:
            arrays[name] = value
    return arrays, tuple(notes.values())


def _take_scale(arrays: Arrays) -> bool:
    """Takes out a scale of embeddings of sqrt(d_model), which others write as a flag.

    The converters of transformers and fairseq write it. Their tokenizers end sources with eos.
    """
    root = arrays["decoder/embeddings/weight"].shape[-1] ** 0.5
    found = [x for x in arrays if x.endswith("/scale_embeddings") and arrays[x].dtype.kind == "f"]
    for name in found:
        arrays[name] = np.round(arrays[name] / root, 2)  # It may have 16 bits.
    return bool(found)


def _flags(arrays: Arrays, config: dict[str, Any]) -> dict[str, Any]:
    """Takes the flags out of the variables. Encoder and decoder must have the same."""
    flags: dict[str, set[Any]] = {}
    for name in [x for x in arrays if arrays[x].ndim == 0]:
        flags.setdefault(name.rpartition("/")[2], set()).add(arrays.pop(name).item())
    for flag in ("source_bos", "source_eos"):
        if (key := f"add_{flag}") in config:
            flags[f"with_{flag}"] = {int(config[key])}
    wrong = {
        flag: values
        for flag, values in flags.items()
        if len(values) > 1 or (flag not in _KNOWN and values != {_NEEDED.get(flag)})
    }
    if wrong:
        raise ValueError(f"a Transformer has no such {wrong}")
    return {flag: value for flag, (value,) in flags.items()}


def _vocabularies(
    folder: Path, config: dict[str, Any], models: Sequence[Path], starts_from_zero: bool
) -> list[Vocabulary]:
    places = (("source.spm", "target.spm"), ("tokenizer/source.model", "tokenizer/target.model"))
    for names in (*places, ("sentencepiece.model",), ("tokenizer/source.model",)):
        if not models and all((folder / name).is_file() for name in names):
            models = [folder / name for name in names]
    unk, eos, start = (
        config.get(f"{name}_token", usual)
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
            return [str(piece) for piece in read_value(path)]
        if (path := folder / f"{name}.txt").is_file():
            return read_bytes(path).decode().removesuffix("\n").split("\n")
    raise ValueError(f"there is no {side}_vocabulary.json or shared_vocabulary.json")


def export_ctranslate2(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    quantization: str | None = None,
    sentences: Sequence[str] | None = None,
) -> Agreement | None:
    """Writes a model as a folder that `ctranslate2.Translator` loads.

    The folder also contains the tokenizer, in `tokenizer/`. CTranslate2 takes and returns subword
    pieces. It adds eos to the source and bos to the target. As in this package, the exported model
    never predicts padding or bos. CTranslate2 divides the probabilities of all other tokens by
    1 - p(padding) - p(bos), so that their sum is 1. This package does not divide them.

    CTranslate2 divides the log-probability of a hypothesis by n ** length_penalty (default 1),
    where n is the number of tokens without eos. For the translations of `length_penalty=0` in this
    package, set `length_penalty=1e-9` (with 0, CTranslate2 would search longer),
    `min_decoding_length=0`, and the same beam size and maximum length. Then translations differ
    only if hypotheses have equal scores, or if the model gives padding or bos a considerable
    probability, as before training.

    Example:

    >>> export_ctranslate2(open_model(run), run.tokenizer(), "exports/quickstart/int8", "int8")
    >>> translator = ctranslate2.Translator("exports/quickstart/int8")
    >>> translator.translate_batch([["▁A", "▁dog", "▁runs", "."]], beam_size=4)[0].hypotheses[0]

    Args:
        model: A `Transformer` with full attention. The position encodings `alibi`, `t5` and
            `*_concatenated` are not supported.
        tokenizer: The `Tokenizer` that the model was trained with.
        directory: A new or empty folder. If the export fails, nothing is written.
        quantization: Type of the stored weights: `"float32"`, `"float16"`, `"bfloat16"` (needs
            PyTorch), `"int16"` or `"int8"`. Only the weights of linear layers and embeddings are
            stored as integers. `"int8_float32"`, `"int8_float16"` and `"int8_bfloat16"` also set
            the type of the other weights. Defaults to None, which means float32. When
            `ctranslate2.Translator` loads the weights, it converts them to its `compute_type`, or
            to a type that the processor supports.
        sentences: Source sentences. CTranslate2 and the model translate them by greedy search, and
            the translations are compared. Defaults to None, which means no comparison.

    Returns:
        An `Agreement`, or None if `sentences` is None or empty.

    Raises:
        UserError: If ctranslate2, or PyTorch for `quantization`, is not installed. Otherwise as
            for `export_onnx`, where another translation has another text and another score.
        ValueError: As for `export_onnx`.
    """
    specs = imported("ctranslate2.specs", "ctranslate2", "the format ctranslate2 needs")
    if "bfloat16" in (quantization or ""):
        imported("torch", "torch", f"CTranslate2's type {quantization} needs")
    check_is_free(directory)
    check_supported(model, tokenizer, "CTranslate2", RULES)
    model = in_float32(model)
    spec = _specification(model, tokenizer, specs)
    spec.validate()
    spec.optimize(quantization)
    with atomic_write(directory) as partial:
        partial.mkdir()
        spec.save(str(partial))
        tokenizer.save(partial / "tokenizer")
        if not sentences:
            return None
        # Scores, in nats per token, differ if padding or bos are probable, as in an untrained
        # model. So equal texts or equal scores are enough.
        options = SearchOptions(beam_size=1, length_penalty=1.0, length_penalty_form="power")
        return compare_translations(
            "CTranslate2 model",
            Translator(model, tokenizer, options, "truncate"),
            sentences,
            scored_translations(CTranslate2Translator(partial, options, "truncate"), sentences),
            tolerance=TOLERANCE,
            is_exact=quantization in (None, "float32"),
            compares_scores=False,
        )


def _specification(model: Transformer, tokenizer: Tokenizer, specs: Any) -> Any:
    """Returns the CTranslate2 specification, with weights, vocabularies and settings."""
    sizes = {
        "num_heads": model.num_heads,
        "pre_norm": model.norm_first,
        "activation": specs.Activation(ACTIVATIONS[model.activation]),
    }
    if isinstance(model.positions, RotaryPositionalEncoding):
        # `rotary_dim` 0 rotates all features of a head. Features 2i and 2i + 1 form a pair.
        sizes = {**sizes, "rotary_dim": 0, "rotary_interleave": True}
    encoder = specs.TransformerEncoderSpec(num_layers=model.encoder.num_layers, **sizes)
    # 0 means the mean of all heads of the last layer, which aligns words best.
    decoder = specs.TransformerDecoderSpec(
        num_layers=model.decoder.num_layers, alignment_heads=0, **sizes
    )
    spec = specs.TransformerSpec(encoder, decoder)
    matrix, bias = model.output_weights()
    spec.encoder.embeddings[0].weight = array(model.source_embedding.embeddings)
    spec.decoder.embeddings.weight = array(model.target_embedding.embeddings)
    spec.decoder.projection.weight = array(matrix)
    zeros = np.zeros(matrix.shape[0], "float32")
    spec.decoder.projection.bias = zeros if bias is None else array(bias).copy()
    spec.decoder.projection.bias[[tokenizer.pad_id, tokenizer.bos_id]] = ABSENT
    _set_layers(spec, model, specs)
    spec.register_source_vocabulary(tokenizer.source_pieces)
    spec.register_target_vocabulary(tokenizer.target_pieces)
    pieces = tokenizer.target_pieces
    spec.config.unk_token = pieces[tokenizer.unk_id]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[tokenizer.bos_id]
    spec.config.eos_token = pieces[tokenizer.eos_id]
    spec.config.add_source_eos = tokenizer.source_eos
    spec.config.layer_norm_epsilon = model.norm_epsilon
    # For `CTranslate2Translator`; CTranslate2 ignores it.
    spec.config.add_attribute("max_length", model.max_length)
    return spec


def _set_layers(spec: Any, model: Transformer, specs: Any) -> None:
    joined: dict[str, list[np.ndarray]] = {}
    for name, value in named_weights(model, CTRANSLATE2, {}).items():
        joined.setdefault(re.sub("#[qkv]", "", name), []).append(value)
    for name, values in joined.items():
        layer, _, weight = name.rpartition("/")
        setattr(specs.model_spec.index_spec(spec, layer), weight, np.concatenate(values))
    table = position_table(model)
    if table is None:
        table = np.zeros((model.max_length, model.d_model), "float32")
    for stack in (spec.encoder, spec.decoder):
        if hasattr(stack, "position_encodings"):  # The decoder has none with rotary positions.
            stack.position_encodings.encodings = table
        for layer in () if model.use_scale else stack.layer:
            layer.self_attention.queries_scale = np.float32(1)  # Its default is 1 / sqrt(d_k).
            if stack is spec.decoder:
                layer.attention.queries_scale = np.float32(1)
