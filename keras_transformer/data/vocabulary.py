"""Converts and changes vocabularies. The first ids are those of pad, unk, bos and eos."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, combinations, count, islice
from typing import Any, NamedTuple

import numpy as np
from sentencepiece import SentencePieceProcessor

PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)
# The softmax must not count a row that the original model does not have. exp(-100) is nothing
# beside any real logit, and in label smoothing -1e4 would add several nats to the loss.
ABSENT = -100.0
# The part of a SentencePiece model without ids from which on it belongs to another vocabulary. In
# models of OPUS-MT, it is at most 0.5 %, and for rare pieces in those of OpenNMT some 10 %.
_MOST_UNKNOWN = 0.2
_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
# Pieces that name a language: those of OPUS-MT, M2M100 and NLLB.
LANGUAGE = re.compile(r">>(.+)<<|__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})")
# How much more probable than its old pieces a new piece of a unigram model is, in nats.
_PREFERENCE = 0.01


class Vocabulary(NamedTuple):
    """The pieces of a model in the order of its ids, and the ids with a special meaning."""

    pieces: list[str]
    model: bytes  # SentencePiece's
    unk: int
    eos: int
    pad: int | None = None  # None if the model has no padding.
    start: int | None = None  # what the decoder starts with; None for a vector of zeros


class NewIds(NamedTuple):
    """The pieces of a vocabulary in the order of the new ids."""

    pieces: list[str]
    rows: np.ndarray  # int (V,), the old id of each new id, or -1 for a vector of zeros
    is_absent: np.ndarray  # bool (V,), whether the original model never predicts the id
    means: Mapping[int, Sequence[int]] = {}  # new ids that begin as the mean of old ids

    def gathered(self, matrix: np.ndarray) -> np.ndarray:
        """Returns the embeddings `(V, D)` in the new order."""
        found = matrix[self.rows]
        found[self.rows < 0] = 0
        for id, old in self.means.items():
            found[id] = matrix[old].mean(axis=0)
        return found

    def bias(self, bias: np.ndarray | None) -> np.ndarray:
        """Returns the bias of the logits, float32 `(V,)`."""
        old = np.zeros(self.rows.max() + 1, "float32") if bias is None else bias
        gathered = self.gathered(old.reshape(-1, 1))[:, 0]
        return np.where(self.is_absent, np.float32(ABSENT), gathered)


def new_ids(vocabulary: Vocabulary, models: Sequence[bytes], size: int = 0) -> NewIds:
    """Returns pad, unk, bos and eos, then all others in their order, then pieces without an id.

    Pieces of `models` that the vocabulary lacks have the vector of unk, as in the original. If the
    result would have less than `size` ids, it is filled up.
    """
    old = vocabulary
    start_is_own = old.start not in (None, old.pad, old.eos)
    first = [-1 if x is None else x for x in (old.pad, old.unk, old.start, old.eos)]
    absent = [old.pad is None, False, not start_is_own, False]
    others = [id for id in range(len(old.pieces)) if id not in first]
    # A SentencePiece model has each name once.
    renamed = {name: f"{name}#" for name in _SPECIAL}
    pieces = [*_SPECIAL, *(renamed.get(old.pieces[id], old.pieces[id]) for id in others)]
    known = {*pieces, *old.pieces}
    extra: dict[str, None] = {}
    for model in models:
        own = pieces_of(model)
        unknown = [piece for piece in own if piece not in known]
        if len(unknown) >= _MOST_UNKNOWN * len(own):
            raise ValueError(
                f"the vocabulary must have most of the pieces of the SentencePiece model. "
                f"Received: a model with {len(own):,} pieces, {len(unknown):,} of them unknown"
            )
        extra |= dict.fromkeys(unknown)
    missing = size - len(pieces) - len(extra)
    extra |= dict.fromkeys(f"<unused {number}>" for number in range(missing))
    rows = [*first, *others, *[old.unk] * len(extra)]
    is_absent = [*absent, *[False] * len(others), *[True] * len(extra)]
    return NewIds([*pieces, *extra], np.array(rows), np.array(is_absent))


def converted(model: bytes, pieces: Sequence[str], scores: Mapping[str, float] = {}) -> bytes:
    """Returns a SentencePiece model with the same segmentation, whose ids are those of `pieces`.

    Pieces that neither the model nor `scores` have are never produced, but can be decoded.
    """
    proto = model_proto(model)
    kind = type(proto).SentencePiece
    known = {piece: (score, kind.NORMAL) for piece, score in scores.items()}
    known |= {x.piece: (x.score, x.type) for x in proto.pieces}
    unknown = min((x.score for x in proto.pieces), default=0.0) - 1, kind.UNUSED
    known |= dict.fromkeys(_SPECIAL, (0.0, kind.CONTROL)) | {"<unk>": (0.0, kind.UNKNOWN)}
    del proto.pieces[:]
    for piece in pieces:
        score, of_type = known.get(piece, unknown)
        proto.pieces.add(piece=piece, score=score, type=of_type)
    spec = proto.trainer_spec
    spec.vocab_size = len(pieces)
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = _SPECIAL
    return proto.SerializeToString()


class _Added(NamedTuple):
    ids: list[int]  # those of the old pieces
    score: float | None  # None: it is never produced
    is_step: bool = False  # whether it is only a step of BPE to another


def changed(
    models: Sequence[bytes], words: Iterable[str], used: Collection[int] | None, size: int = 0
) -> tuple[NewIds, list[bytes]]:
    """Returns the new ids and models if `words` become pieces, and only `used` pieces stay.

    The `models` have the same pieces. Parts of a piece that stays, from which BPE makes it, and
    pieces that are no text, such as those of languages, stay too. `used` may be None: all stay. If
    the result would have less than `size` ids, it is filled up.
    """
    old = pieces_of(models[0])
    words, known = [*dict.fromkeys(filter(None, words))], {*old}
    added = [_added(model, words) for model in models]
    pairs = (item for each in reversed(added) for item in each.items())
    new = {piece: x for piece, x in pairs if piece not in known}
    if used is None:
        rows = [*range(len(old))]
    else:
        of_words = {id for each in added for x in each.values() for id in x.ids}
        names = {old[id] for id in {*used} | of_words}
        stay = {x[i:j] for x in names for i, j in combinations(range(len(x) + 1), 2)}
        stay |= {piece for model in models for piece in _without_text(model)}
        rows = [id for id, piece in enumerate(old) if id <= EOS_ID or piece in stay]
    missing = max(0, size - len(rows) - len(new))
    dropped = sorted({*range(len(old))} - {*rows})[:missing]
    unused = (x for x in map("<unused {}>".format, count()) if x not in known)
    extra = [*islice(unused, missing - len(dropped))]
    rows = sorted([*rows, *dropped])
    means = {id: x.ids for id, x in enumerate(new.values(), len(rows))}
    steps = [x.is_step for x in new.values()]
    is_absent = [*[False] * len(rows), *steps, *[True] * len(extra)]
    pieces = [*(old[id] for id in rows), *new, *extra]
    rows += [UNK_ID] * (len(new) + len(extra))
    scores = [
        {piece: x.score for piece, x in each.items() if x.score is not None} for each in added
    ]
    found = [converted(*x) for x in zip(models, [pieces] * len(models), scores, strict=True)]
    return NewIds(pieces, np.array(rows), np.array(is_absent), means), found


def _added(model: bytes, words: Sequence[str]) -> dict[str, _Added]:
    """Returns the pieces that `words` become in a model, or are already.

    The text of a word becomes its piece where the model split it as it splits the word alone.
    """
    processor, proto = SentencePieceProcessor(model_proto=model), model_proto(model)
    kind, added = kind_of(model)[0], dict[str, _Added]()
    last = min(x.score for x in proto.pieces) - 1
    for word in words:
        parts = processor.encode(word, out_type=str)
        ids, piece = [processor.piece_to_id(x) for x in parts], processor.normalize(word)
        if LANGUAGE.fullmatch(word):
            added[word] = _Added(ids, None)
            continue
        total = sum(processor.get_score(id) for id in ids) + _PREFERENCE
        added[piece] = _Added(ids, total if kind == "unigram" else last)
        if kind == "bpe":  # It merges two parts at a time; unknown ones may be bytes or characters.
            is_known = UNK_ID not in ids and "".join(parts) == piece
            for step in [*accumulate(parts if is_known else piece)][1:-1]:
                added.setdefault(step, _Added(ids, None, is_step=True))
    return added


def _without_text(model: bytes) -> list[str]:
    """Returns the pieces that are languages, bytes, or set by the user of SentencePiece."""
    proto = model_proto(model)
    kind = type(proto).SentencePiece
    text = {kind.NORMAL, kind.UNUSED, kind.UNKNOWN}
    return [x.piece for x in proto.pieces if x.type not in text or LANGUAGE.fullmatch(x.piece)]


def with_own_ids(model: bytes) -> bytes:
    """Returns a SentencePiece model of any origin with this package's ids, and equal pieces."""
    pieces, processor = pieces_of(model), SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    special = (getattr(processor, f"{name}_id")() for name in ("unk", "eos", "pad", "bos"))
    return converted(model, new_ids(Vocabulary(pieces, model, *special), []).pieces)


def word_model(pieces: Sequence[str]) -> bytes:
    """Returns a SentencePiece model of words with "▁", for texts whose pieces spaces separate."""
    proto = model_proto(b"")
    proto.trainer_spec.model_type = proto.trainer_spec.WORD
    proto.normalizer_spec.name = "identity"
    for piece in pieces:
        proto.pieces.add(piece=piece, score=0.0)
    return proto.SerializeToString()


def pieces_of(model: bytes) -> list[str]:
    """Returns the pieces of a SentencePiece model in the order of their ids."""
    return [x.piece for x in model_proto(model).pieces]


def kind_of(model: bytes) -> tuple[str, str]:
    """Returns the kind of pieces and the normalization of a model, as a recipe names them."""
    proto = model_proto(model)
    kinds = {proto.trainer_spec.BPE: "bpe", proto.trainer_spec.WORD: "word"}
    return kinds.get(proto.trainer_spec.model_type, "unigram"), proto.normalizer_spec.name


def model_proto(model: bytes) -> Any:
    """Returns the `ModelProto` of a SentencePiece model."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(model)
