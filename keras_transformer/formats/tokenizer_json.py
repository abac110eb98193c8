"""Writes tokenizer.json, Hugging Face's form of a tokenizer with pieces before each text.

`MarianTokenizer` reads a SentencePiece model, but adds no language to a text.
"""

import base64
from typing import Any

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import LANGUAGE, UNK_ID, model_proto

_AS_WRITTEN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the content of the file for sources, from text to the ids with prefix and eos.

    Raises `ValueError` if the target has other pieces or a prefix of several, or if Hugging Face's
    tokenizers would split a text otherwise.
    """
    proto, pieces = model_proto(tokenizer.source_model), tokenizer.source_pieces
    kind, spec = type(proto).SentencePiece, proto.trainer_spec
    types = {x.type for x in proto.pieces}
    scores = {x.piece: x.score for x in proto.pieces if x.type == kind.NORMAL}
    is_bpe = spec.model_type == spec.BPE
    merges = _merges(scores) if is_bpe else []
    merged = {left + right for left, right in merges}
    rules = {
        "one vocabulary for both languages": tokenizer.joint,
        "at most one piece before targets": len(tokenizer.target_prefix_ids) <= 1,
        "the kinds bpe and unigram": is_bpe or spec.model_type == spec.UNIGRAM,
        "no bytes, and no pieces of the user": types.isdisjoint((kind.BYTE, kind.USER_DEFINED)),
        "spaces before words": not spec.treat_whitespace_as_suffix,
        "no added words": not is_bpe or all(len(x) == 1 or x in merged for x in scores),
    }
    if broken := [rule for rule, is_kept in rules.items() if not is_kept]:
        raise ValueError(
            f"With prefixes or without eos in sources, Hugging Face supports {broken[0]}. "
            f"Received: {tokenizer.frames}"
        )
    scheme = "always" if proto.normalizer_spec.add_dummy_prefix else "never"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme}
    metaspace |= {"split": spec.split_by_whitespace}
    before = [pieces[id] for id in tokenizer.source_prefix_ids]
    after = [pieces[tokenizer.eos_id]] * tokenizer.source_eos
    special = [id for id, x in enumerate(pieces) if id <= tokenizer.eos_id or LANGUAGE.fullmatch(x)]
    model: dict[str, Any]
    if is_bpe:
        ids = {piece: id for id, piece in enumerate(pieces)}
        model = {"type": "BPE", "vocab": ids, "merges": merges}
    else:
        lowest = min(scores.values()) - 1e6  # No text is split into other pieces.
        rows = [[x, scores.get(x, lowest)] for x in pieces]
        model = {"type": "Unigram", "vocab": rows, "unk_id": UNK_ID}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": id, "content": pieces[id], "special": True, **_AS_WRITTEN} for id in special
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(proto.normalizer_spec)},
        "pre_tokenizer": metaspace,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*map(_token, before), _text("A"), *map(_token, after)],
            "pair": [*map(_token, before), _text("A"), _text("B"), *map(_token, after)],
            "special_tokens": {
                x: {"id": x, "ids": [pieces.index(x)], "tokens": [x]} for x in {*before, *after}
            },
        },
        "decoder": metaspace,
        "model": {"unk_token": pieces[UNK_ID], "fuse_unk": True, "byte_fallback": False, **model},
    }


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Returns the pairs that BPE merges, the first to be merged first."""
    order = {piece: number for number, piece in enumerate(scores)}
    pairs = [
        (piece[:end], piece[end:])
        for piece in scores
        for end in range(1, len(piece))
        if piece[:end] in scores and piece[end:] in scores
    ]
    return sorted(pairs, key=lambda x: (-scores[x[0] + x[1]], order[x[0]], order[x[1]]))


def _normalizers(spec: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if charsmap := spec.precompiled_charsmap:
        text = base64.b64encode(charsmap).decode()
        found.append({"type": "Precompiled", "precompiled_charsmap": text})
    if spec.remove_extra_whitespaces:
        found.append({"type": "Strip", "strip_left": True, "strip_right": True})
        found.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return found


def _token(piece: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": piece, "type_id": 0}}


def _text(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}
