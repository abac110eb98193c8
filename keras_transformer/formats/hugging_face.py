"""Reads, writes and compares models of Hugging Face, without transformers or torch.

MarianMT, M2M100 and NLLB are read, MarianMT is written. A pre-norm model has the type Pegasus,
whose network is that of MarianMT with pre-norm.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from keras_transformer._files import atomic_write, check_is_free, read_bytes
from keras_transformer.data.tokenizer import DEFAULT_FRAMES, Tokenizer, frames_in
from keras_transformer.data.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import check_ids
from keras_transformer.formats.comparison import (
    Agreement,
    compare_translations,
    scored_translations,
)
from keras_transformer.formats.exported_model import (
    PLAIN_LAYERS,
    Rule,
    check_supported,
    position_table,
)
from keras_transformer.formats.foreign_model import HUGGING_FACE, ForeignModel, named_weights
from keras_transformer.formats.model_files import (
    INDEX,
    Arrays,
    in_order,
    read_safetensors,
    read_torch,
    read_value,
    shards,
    unique,
)
from keras_transformer.formats.tokenizer_json import tokenizer_json
from keras_transformer.models.base import in_float32
from keras_transformer.models.transformer import Transformer
from keras_transformer.translation.translator import Translator

CLASSES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}
ACTIVATIONS = {
    "relu": "relu",
    **dict.fromkeys(("swish", "silu"), "silu"),
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), "gelu_approximate"),
}
_TOKENIZER_BYTES = 64 * 1024 * 1024  # tokenizer.json of NLLB has more than 16 MiB.
_OTHERS = {  # Other types, and why they are refused.
    **dict.fromkeys(("bart", "mbart"), "normalizes embeddings, and has positions for each side"),
    **dict.fromkeys(("t5", "mt5"), "has RMS norms, no biases and relative positions"),
}
# Types that are read, with the positions of their models, and whether norms come first.
_READ = {
    "marian": ("sinusoidal_half_split", False),
    "pegasus": ("sinusoidal_half_split", True),
    "m2m_100": ("sinusoidal_fairseq", True),
}
# The languages of M2M100 in the order of their ids, which follow those of the other pieces.
_M2M100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
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
_IDS = {
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "decoder_start_token_id": BOS_ID,
    "forced_eos_token_id": None,
}
_OUR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
RULES: tuple[Rule, ...] = (
    (
        "activation",
        lambda x: x.activation not in _OUR_ACTIVATIONS,
        f"activations {[*_OUR_ACTIVATIONS]}",
    ),
    *PLAIN_LAYERS,
    ("use_scale", lambda x: not x.use_scale, "scaled scores"),
    ("position_encoding", lambda x: position_table(x) is None, "added positions"),
    (
        "norm_first",
        lambda x: x.norm_first and x.target_vocabulary_size,
        "post-norm with two vocabularies",
    ),
)


def read_hugging_face(folder: Path) -> ForeignModel:
    """Reads the folder of a model: weights, `config.json` and the tokenizer.

    Raises an error, see `reading`, if it has another type, or if a file is missing or damaged.
    """
    config = read_value(folder / "config.json")
    if (kind := config.get("model_type")) not in _READ:
        reason = _OTHERS.get(str(kind), "is not known")
        rule = "its type must be marian, as of OPUS-MT, or m2m_100, as of M2M100 and NLLB"
        raise ValueError(f"{rule}. Received: {kind}, which {reason}")
    heads = config["encoder_attention_heads"], config["decoder_attention_heads"]
    scale = config.get("scale_embedding")
    if not scale or heads[0] != heads[1]:
        raise ValueError(
            "it must scale embeddings, and have the same heads. "
            f"Received: scale_embedding={scale}, heads {heads}"
        )
    generation = {**config, **read_value(folder / "generation_config.json", missing={})}
    tokenizer = read_value(folder / "tokenizer_config.json", missing={})
    path, weights = _weights(folder)
    positions, norm_first = _READ[str(kind)]
    vocabularies = _vocabularies if kind in CLASSES else _multilingual
    return ForeignModel(
        path,
        HUGGING_FACE,
        weights,
        {
            **{ours: config[theirs] for ours, theirs in SETTINGS.items()},
            "position_encoding": positions,
            "activation": ACTIVATIONS[config["activation_function"]],
            "norm_first": norm_first,
            # Only our exports have it. transformers ignores it, and takes 1e-5.
            "norm_epsilon": config.get("norm_epsilon", 1e-5),
        },
        vocabularies(folder, generation, tokenizer),
        frames=frames_in(tokenizer),
        evaluation={
            "beam_size": generation.get("num_beams", 1),
            "length_penalty": generation.get("length_penalty", 1.0),
            "length_penalty_form": "power",
        },
        is_multilingual=kind not in CLASSES or bool(generation.get("forced_bos_token_id")),
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
    unk = unk["content"] if isinstance(unk, dict) else unk
    found = []
    for side, name in (("source", "vocab.json"), ("target", "target_vocab.json")):
        file = folder / name if (folder / name).exists() else folder / "vocab.json"
        found.append(_vocabulary(file, read_value(file), f"{side}.spm", unk, settings))
    return found


def _multilingual(
    folder: Path, settings: dict[str, Any], tokenizer: dict[str, Any]
) -> list[Vocabulary]:
    """Returns the vocabulary of M2M100 or NLLB, in which each language is a piece.

    The pieces of NLLB are in `tokenizer.json`. Those of M2M100 are in `vocab.json`, and its
    languages follow.
    """
    if (folder / "vocab.json").exists():
        file = folder / "vocab.json"
        ids = read_value(file)
        if tokenizer.get("language_codes", "m2m100") != "m2m100":
            raise ValueError(f"languages must be m2m100. Received: {tokenizer['language_codes']}")
        ids |= {f"__{code}__": len(ids) + n for n, code in enumerate(_M2M100.split())}
    else:
        if tokenizer.get("legacy_behaviour"):
            raise ValueError(
                "legacy_behaviour, a language after eos, must be false. Received: true"
            )
        file = folder / "tokenizer.json"
        saved = read_value(file, most=_TOKENIZER_BYTES)
        ids = saved["model"]["vocab"] | {x["content"]: x["id"] for x in saved["added_tokens"]}
    return [_vocabulary(file, ids, "sentencepiece.bpe.model", "<unk>", settings)] * 2


def _vocabulary(
    file: Path, ids: dict[str, int], model: str, unk: str, settings: dict[str, Any]
) -> Vocabulary:
    eos, pad, start = (settings[f"{x}_token_id"] for x in ("eos", "pad", "decoder_start"))
    special = ids[unk], int(np.ravel(eos)[0]), pad, start
    check_ids(len(ids), token_ids=np.array([x for x in special if x is not None]))
    return Vocabulary(in_order(file, ids), read_bytes(file.with_name(model)), *special)


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
    the norms, whatever `norm_epsilon` is. A pre-norm model has the type Pegasus. The tokenizer adds
    prefixes and eos as `tokenizer` does.

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
        ValueError: If Hugging Face has no such model or tokenizer, or the model is quantized.
    """
    check_is_free(directory)
    options = options or SearchOptions(beam_size=1, length_penalty=0)
    check_supported(model, tokenizer, "Hugging Face", RULES)
    model = in_float32(model)
    if options.length_penalty and options.length_penalty_form != "power":
        raise ValueError(
            "Hugging Face's `generate` divides scores by n ** length_penalty: set "
            "`length_penalty_form` to power, or `length_penalty` to 0. Received: "
            f"{options.length_penalty_form} and {options.length_penalty}"
        )
    files = {
        "config.json": _configuration(model),
        "generation_config.json": {
            "num_beams": options.beam_size,
            "length_penalty": options.length_penalty,
            "early_stopping": True,
            "max_length": model.max_length + 1,  # with bos
            "bad_words_ids": [[PAD_ID], [BOS_ID]],  # Never predicted, as in our search.
            **_IDS,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            **dict(zip(("source_lang", "target_lang"), languages, strict=True)),
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": model.max_length,
            "separate_vocabs": not tokenizer.joint,
            "clean_up_tokenization_spaces": False,
        },
        "vocab.json": {piece: id for id, piece in enumerate(tokenizer.source_pieces)},
    }
    if not tokenizer.joint:
        pieces = enumerate(tokenizer.target_pieces)
        files["target_vocab.json"] = {piece: id for id, piece in pieces}
    if tokenizer.frames != DEFAULT_FRAMES:
        files["tokenizer.json"] = tokenizer_json(tokenizer)
        files["tokenizer_config.json"]["tokenizer_class"] = "PreTrainedTokenizerFast"
        files["tokenizer_config.json"] |= tokenizer.frames  # for our own import
        for id in tokenizer.target_prefix_ids:
            files["generation_config.json"]["forced_bos_token_id"] = id
    with atomic_write(directory) as partial:
        partial.mkdir()
        for name, value in files.items():
            (partial / name).write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")
        (partial / "source.spm").write_bytes(tokenizer.source_model)
        (partial / "target.spm").write_bytes(tokenizer.target_model)
        save_file(_exported_weights(model), partial / "model.safetensors", {"format": "pt"})
        if not sentences:
            return None
        copy, framed = read_hugging_face(partial).convert()
        return compare_translations(
            "export",
            Translator(model, tokenizer, options),
            sentences,
            scored_translations(Translator(copy, framed, options), sentences),
            tolerance=1e-3,
        )


def _configuration(model: Transformer) -> dict[str, Any]:
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
        "activation_function": _OUR_ACTIVATIONS[model.activation],
        "scale_embedding": True,
        "norm_epsilon": model.norm_epsilon,
        **_IDS,
    }


def _exported_weights(model: Transformer) -> dict[str, np.ndarray]:
    """Returns the weights by the names of Hugging Face."""
    which = 0 if model.target_vocabulary_size is None else -1
    matrices = {role: names[which] for role, names in HUGGING_FACE.matrices.items()}
    target_size = model.target_vocabulary_size or model.vocabulary_size
    zeros = np.zeros(target_size, "float32")
    found = {matrices["bias"]: zeros, **named_weights(model, HUGGING_FACE, matrices)}
    found[matrices["bias"]] = found[matrices["bias"]].reshape(1, -1)
    if which == 0 and not model.tie_word_embeddings:  # transformers does not tie the sides either.
        names = [HUGGING_FACE.matrices[side][-1] for side in ("source", "target")]
        found |= dict.fromkeys(names, found[matrices["source"]])
    table = position_table(model)
    if table is not None and model.position_encoding != "sinusoidal_half_split":
        found |= dict.fromkeys(HUGGING_FACE.matrices["position_embeddings"], table)
    return {name: np.ascontiguousarray(value) for name, value in found.items()}
