"""Converts the vocabularies of other toolkits to this package's ids: pad 0, unk 1, bos 2, eos 3."""

from collections.abc import Sequence
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

    def gathered(self, matrix: np.ndarray) -> np.ndarray:
        """Returns the embeddings `(V, D)` in the new order."""
        found = matrix[np.maximum(self.rows, 0)]
        return np.where((self.rows >= 0)[:, None], found, np.float32(0))

    def bias(self, bias: np.ndarray | None) -> np.ndarray:
        """Returns the bias of the logits, float32 `(V,)`."""
        old = np.zeros(self.rows.max() + 1, "float32") if bias is None else bias.reshape(-1)
        return np.where(self.is_absent, np.float32(ABSENT), old[np.maximum(self.rows, 0)])


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


def converted(model: bytes, pieces: Sequence[str]) -> bytes:
    """Returns a SentencePiece model with the same segmentation, whose ids are those of `pieces`.

    Pieces that the model does not have are never produced, but can be decoded.
    """
    proto = _proto(model)
    known = {x.piece: (x.score, x.type) for x in proto.pieces}
    kind = type(proto).SentencePiece
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


def with_own_ids(model: bytes) -> bytes:
    """Returns a SentencePiece model of any origin with this package's ids, and equal pieces."""
    pieces, processor = pieces_of(model), SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    special = (getattr(processor, f"{name}_id")() for name in ("unk", "eos", "pad", "bos"))
    return converted(model, new_ids(Vocabulary(pieces, model, *special), []).pieces)


def word_model(pieces: Sequence[str]) -> bytes:
    """Returns a SentencePiece model of words with "▁", for texts whose pieces spaces separate."""
    proto = _proto(b"")
    proto.trainer_spec.model_type = proto.trainer_spec.WORD
    proto.normalizer_spec.name = "identity"
    for piece in pieces:
        proto.pieces.add(piece=piece, score=0.0)
    return proto.SerializeToString()


def pieces_of(model: bytes) -> list[str]:
    """Returns the pieces of a SentencePiece model in the order of their ids."""
    return [x.piece for x in _proto(model).pieces]


def kind_of(model: bytes) -> tuple[str, str]:
    """Returns the kind of pieces and the normalization of a model, as a recipe names them."""
    proto = _proto(model)
    kinds = {proto.trainer_spec.BPE: "bpe", proto.trainer_spec.WORD: "word"}
    return kinds.get(proto.trainer_spec.model_type, "unigram"), proto.normalizer_spec.name


def _proto(model: bytes) -> Any:
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(model)
