"""Tokenizer: converts sentences to ids, and ids to sentences."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sentencepiece import SentencePieceProcessor

from keras_transformer._files import atomic_write, parse_json, read_bytes
from keras_transformer.data.languages import closest_language
from keras_transformer.data.tokenizer_training import SPECIAL_IDS, normalizer, train_model
from keras_transformer.data.vocabulary import BOS_ID, EOS_ID, LANGUAGE, PAD_ID, UNK_ID, with_own_ids
from keras_transformer.errors import UserError, check_is_list

ModelType = Literal["bpe", "unigram", "word"]
Side = Literal["source", "target"]

_SUMMARY, _NAMES = "tokenizer.json", ("source.model", "target.model")
# SentencePiece starts threads for a list, which takes longer than this many short texts.
_FEW = 32
# A word at the beginning of a source that names the target language, such as ">>fra<<".
TAG = re.compile(r"\s*(>>.*?<<)", re.DOTALL)
DEFAULT_FRAMES: dict[str, Any] = {"source_prefix": [], "target_prefix": [], "source_eos": True}


def frames_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the frames of a tokenizer that a file has."""
    return {name: content[name] for name in DEFAULT_FRAMES if name in content}


class Tokenizer:
    """SentencePiece tokenizer with a joint vocabulary or a vocabulary for each language (§5.1).

    In a TensorFlow graph, use `keras_hub.tokenizers.SentencePieceTokenizer`, which returns the same
    ids.

    Example:

    >>> tokenizer = Tokenizer.train(read_parallel("train.en", "train.de"), vocabulary_size=8_000)
    >>> ids = tokenizer(["A dog runs."])
    >>> tokenizer.decode(ids)
    >>> tokenizer.save("tokenizer")

    Args:
        source_model: Bytes of a SentencePiece model with the ids pad 0, unk 1, bos 2, eos 3.
        target_model: Bytes of the target language's model. Defaults to None, which means the source
            model.
        source_prefix: Pieces before those of every source, such as `[">>por<<"]`, which tells a
            multilingual model the target language. Defaults to none. A source that begins with
            such a tag has this tag instead.
        target_prefix: Pieces that every target begins with, after bos. Search forces them, and
            `decode_target` omits them. Defaults to none.
        source_eos: Whether a source ends with eos. Defaults to True.

    Attributes:
        joint: Whether both languages have the same pieces with the same ids. Two models can share
            a vocabulary, and differ in the normalization of text.
        source_vocabulary_size, target_vocabulary_size: Number of ids, including pad, unk, bos and
            eos.
        pad_id, unk_id, bos_id, eos_id: 0, 1, 2 and 3.
        source_prefix_ids, target_prefix_ids: The ids of the prefixes.
        tag_ids: The ids of the source pieces such as `">>por<<"`, without `"▁"`.
        frames: The arguments `source_prefix`, `target_prefix` and `source_eos`.

    Raises:
        UserError: If a model is damaged, has other ids for pad, unk, bos or eos, or lacks a piece
            of a prefix.
    """

    pad_id, unk_id, bos_id, eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID

    def __init__(
        self,
        source_model: bytes,
        target_model: bytes | None = None,
        *,
        source_prefix: Sequence[str] = (),
        target_prefix: Sequence[str] = (),
        source_eos: bool = True,
    ) -> None:
        self._models = [source_model] if target_model is None else [source_model, target_model]
        self.source_model, self.target_model = self._models[0], self._models[-1]
        processors = [_processor(model) for model in self._models]
        self._source, self._target = processors[0], processors[-1]
        self.source_vocabulary_size: int = self._source.get_piece_size()
        self.target_vocabulary_size: int = self._target.get_piece_size()
        self.joint: bool = target_model is None or self.source_pieces == self.target_pieces
        self.source_prefix_ids = _prefix_ids(self._source, "source_prefix", source_prefix)
        self.target_prefix_ids = _prefix_ids(self._target, "target_prefix", target_prefix)
        self.source_eos = source_eos
        names = (piece.removeprefix("▁") for piece in self.source_pieces)
        self.tag_ids = {name: id for id, name in enumerate(names) if TAG.fullmatch(name)}
        prefixes = {"source_prefix": [*source_prefix], "target_prefix": [*target_prefix]}
        self.frames: dict[str, Any] = {**prefixes, "source_eos": source_eos}

    def __repr__(self) -> str:
        return f"<Tokenizer of {self.source_vocabulary_size} and {self.target_vocabulary_size} ids>"

    @classmethod
    def train(
        cls,
        pairs: Iterable[Any],
        vocabulary_size: int,
        model_type: ModelType = "bpe",
        joint: bool = True,
        normalization: str = "nmt_nfkc",
        target_normalization: str | None = None,
        tags: Iterable[str] = (),
        keep_spaces: bool = False,
    ) -> "Tokenizer":
        """Trains a tokenizer on parallel text, or on text of one language.

        The same text always gives the same pieces. With subwords, every character of the text is in
        the vocabulary, but for "▁" (a space to SentencePiece), "▅" and U+0000. With whole words,
        all words but the most frequent are unknown.

        Args:
            pairs: (source, target) sentences, such as the result of `read_parallel`, or sentences,
                such as the result of `read_lines`. If `joint` is False, these must be pairs that
                are iterable twice.
            vocabulary_size: Number of ids per vocabulary, including pad, unk, bos and eos.
            model_type: "bpe" or "unigram" for subwords, or "word" for the most frequent words, as
                spaces separate them. Defaults to "bpe".
            joint: Whether both languages share one vocabulary, as in the paper. Defaults to True.
            normalization: SentencePiece normalization rule, such as "nmt_nfkc" (the default),
                "nmt_nfkc_cf" (which also lowercases) or "identity" (for tokenized text).
            target_normalization: Normalization of target text. A translation never has a character
                that it replaces. With "identity", all of a sentence comes back from its ids, but a
                space at an end or after a space. Defaults to None, which means `normalization`.
            tags: Words at the beginning of sources, each of which becomes one piece. Defaults to
                none.
            keep_spaces: Whether all spaces and line ends come back from the ids, as a language
                model needs it. The line end is then a piece. Defaults to False.

        Raises:
            UserError: If the text is empty, or SentencePiece cannot train on it.
            VocabularySizeError: If `vocabulary_size` is too large for the words of the text, or
                smaller than the number of different characters. This `UserError` has a possible
                size in its message and in the attribute `bound`.
        """
        check_is_list(pairs=pairs)
        options: dict[str, Any] = {"vocab_size": vocabulary_size, "model_type": model_type}
        rules = normalization, target_normalization or normalization
        spaced = normalizer(rules[0], spaces=True)
        symbols = {"user_defined_symbols": [spaced.normalize(tag) for tag in tags]} if tags else {}
        if not joint:
            source_model = train_model((x for x, _ in pairs), rules[0], **options, **symbols)
            return cls(source_model, train_model((x for _, x in pairs), rules[1], **options))
        if keep_spaces:
            options |= {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
            symbols = {"user_defined_symbols": ["\n"]}
        options |= symbols
        if rules[0] == rules[1]:
            lines = (line for x in pairs for line in ((x,) if isinstance(x, str) else x))
            return cls(train_model(lines, rules[0], **options))
        # The model learns from text that is already normalized. Each side gets a copy of it.
        normalize = [normalizer(rule, spaces=False).normalize for rule in rules]
        both = ((x, x) if isinstance(x, str) else x for x in pairs)
        lines = (each(line) for pair in both for each, line in zip(normalize, pair, strict=True))
        model = train_model(lines, "identity", **options)
        # A reader merges protocol buffers that follow each other: the fields of the last one hold.
        return cls(*(model + normalizer(x, spaces=True).serialized_model_proto() for x in rules))

    @classmethod
    def from_sentencepiece(
        cls, source: str | Path, target: str | Path | None = None, **frames: Any
    ) -> "Tokenizer":
        """Reads the SentencePiece files of source and target that another program has trained.

        The text is split as there, but pad, unk, bos and eos get the ids 0 to 3, and the other
        pieces follow in their order. `target` defaults to `source`, and `**frames` are arguments of
        `Tokenizer`. For a pretrained model with its tokenizer, use `import_run`.
        """
        files = [Path(path) for path in (source, target) if path is not None]
        return cls(*(with_own_ids(read_bytes(file)) for file in files), **frames)

    @classmethod
    def load(cls, directory: str | Path) -> "Tokenizer":
        """Reads a tokenizer from a folder that `save` has written.

        Raises:
            UserError: If a file is missing or damaged.
        """
        paths = [Path(directory) / name for name in (_SUMMARY, *_NAMES)]
        return cls.from_files({x.name: read_bytes(x) for x in paths if x.exists()}, directory)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], place: str | Path) -> "Tokenizer":
        """Makes a tokenizer of its `files`, as `load`. Errors name the `place` of the files."""
        try:
            summary = parse_json(files[_SUMMARY])
            digests = summary["sha256"]
            frames = DEFAULT_FRAMES | frames_in(summary)
            is_named = tuple(digests) in (_NAMES, _NAMES[:1])
            if not is_named or [*map(type, frames.values())] != [list, list, bool]:
                rule = (
                    f"must name {' and '.join(_NAMES)}, and have two lists, and true or false, in"
                )
                raise ValueError(f"{_SUMMARY} {rule} {frames}")
            models = [files[name] for name in digests]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{place} has no complete tokenizer: {error}") from None
        for (name, digest), model in zip(digests.items(), models, strict=True):
            if hashlib.sha256(model).hexdigest() != digest:
                raise UserError(f"{Path(place) / name} is damaged: its SHA-256 is not {digest}")
        return cls(*models, **frames)

    @property
    def files(self) -> dict[str, bytes]:
        """The files that `save` writes, by name. Equal tokenizers have equal files."""
        models = dict(zip(_NAMES, self._models, strict=False))
        summary = {
            "sha256": {name: hashlib.sha256(x).hexdigest() for name, x in models.items()},
            "source_vocabulary_size": self.source_vocabulary_size,
            "target_vocabulary_size": self.target_vocabulary_size,
            **SPECIAL_IDS,
            **self.frames,
        }
        return {**models, _SUMMARY: (json.dumps(summary, indent=2) + "\n").encode()}

    def save(self, directory: str | Path) -> None:
        """Writes `tokenizer.json`, `source.model` and, if it is another model, `target.model`.

        Args:
            directory: A new or empty folder. If writing fails, the folder is unchanged.
        """
        with atomic_write(directory) as partial:
            partial.mkdir()
            for name, content in self.files.items():
                (partial / name).write_bytes(content)

    @property
    def source_pieces(self) -> list[str]:
        """The source pieces in the order of their ids, including pad, unk, bos and eos."""
        return self._source.id_to_piece(list(range(self.source_vocabulary_size)))

    @property
    def target_pieces(self) -> list[str]:
        """The target pieces in the order of their ids, including pad, unk, bos and eos."""
        return self._target.id_to_piece(list(range(self.target_vocabulary_size)))

    def scores(self, side: str) -> list[float]:
        """Returns the logarithm of the probability of each piece of a unigram model.

        Pieces that are not segments of text, such as unk, have 0.
        """
        processor = self._source if side == "source" else self._target
        ids = range(processor.get_piece_size())
        return [0.0 if processor.is_unused(id) else processor.get_score(id) for id in ids]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the SentencePiece models, in hex."""
        digests = (hashlib.sha256(model).digest() for model in self._models)
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def encode(self, texts: str | Sequence[str], side: Side | None = None) -> Any:
        """Returns a list of ids for a string, and a list of lists for a list of strings.

        There is no bos, eos or padding: `frame_source` and `frame_target` add bos and eos, and
        `ParallelDataset` makes padded batches. `side` is "source" or "target"; only two
        vocabularies need it.
        """
        encode = self.encode_source if self._is_source(side, True) else self.encode_target
        return encode([texts])[0] if isinstance(texts, str) else encode(texts)

    __call__ = encode

    def decode(self, ids: Any, side: Side | None = None) -> Any:
        """Returns the text of a list or array of ids, or a list of texts of several.

        Omits pad, bos and eos, and writes "⁇" for unk. For `side`, see `encode`.
        """
        rows = ids if len(ids) and np.ndim(ids[0]) else [ids]
        decode = self._source.decode if self._is_source(side, False) else self.decode_target
        texts = decode([[int(id) for id in row] for row in rows])
        return texts if rows is ids else texts[0]

    def _is_source(self, side: Side | None, default: bool) -> bool:
        if side is None and not self.joint:
            raise ValueError("two vocabularies need a `side`, source or target")
        return default if side is None else side == "source"

    def encode_source(self, sentences: Sequence[str]) -> list[list[int]]:
        """Returns the ids of the pieces of each source sentence, without bos and eos.

        If the vocabulary has pieces such as `">>por<<"`, a tag of this form at the beginning is
        one piece, unk if the vocabulary lacks it.

        Source: `MarianTokenizer` of Hugging Face transformers
        """
        check_is_list(sentences=sentences)
        split = [self.split_tag(sentence) for sentence in sentences]
        encoded = _encode(self._source, [text for _, text in split])
        return [[*tag, *ids] for (tag, _), ids in zip(split, encoded, strict=True)]

    def split_tag(self, sentence: str) -> tuple[list[int], str]:
        """Returns the id of the tag at the beginning of a source, if it has one, and the rest."""
        tag = TAG.match(sentence) if self.tag_ids else None
        if tag is None:
            return [], sentence
        return [self.tag_ids.get(tag[1], UNK_ID)], sentence[tag.end() :]

    @property
    def begins_with_language(self) -> bool:
        """Whether sources or targets begin with the piece of a language."""
        pieces = [*self.frames["source_prefix"], *self.frames["target_prefix"]]
        return any(map(LANGUAGE.fullmatch, pieces))

    def with_languages(self, source: str | None, target: str | None) -> "Tokenizer":
        """Returns this tokenizer for two languages of a multilingual vocabulary.

        The piece of the target language begins a source if it is a tag such as `">>fra<<"`, which
        says nothing about the source language. Otherwise each text begins with the piece of its own
        language, `"__fr__"` or `"fra_Latn"`. Without `source` or `target`, the language stays.
        Raises `UserError` if there is no such piece.
        """
        if not (source or target):
            return self
        named = ((x, LANGUAGE.fullmatch(x.removeprefix("▁"))) for x in self.source_pieces)
        pieces = {next(filter(None, found.groups())): piece for piece, found in named if found}
        places = {"source": {} if self.tag_ids else pieces, "target": pieces}
        frames = dict(self.frames)
        for (side, known), name in zip(places.items(), (source, target), strict=True):
            if not name:
                continue
            if (code := closest_language(name, known)) is None:
                few = "".join(f", {x}" for x in [*known][:8])
                raise UserError(
                    f"the vocabulary has {len(known)} {side} languages{few}. Received: {name}"
                )
            frames["source_prefix" if self.tag_ids else f"{side}_prefix"] = [pieces[code]]
        return Tokenizer(*self._models, **frames)

    def source_surfaces(self, sentence: str) -> list[str]:
        """Returns the normalized text of each piece of a source sentence, unknown or not."""
        tag, text = self.split_tag(sentence)
        pieces = self._source.encode(text, out_type=str)
        return [""] * len(tag) + [x.replace("▁", " ").strip() for x in pieces]

    def source_offsets(self, sentence: str) -> list[tuple[int, int]]:
        """Returns the first character of each piece of a source, and that after its last.

        The sentence must have no tag.
        """
        return self._source.encode(sentence, return_type="offset_mapping")["offsets"]

    def target_offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the characters of each piece, as `source_offsets`, in the text of a target."""
        return self._target.decode([*ids], return_type="offset_mapping")["offsets"]

    def encode_target(self, sentences: Sequence[str]) -> list[list[int]]:
        """Returns the ids of the pieces of each target sentence, without bos and eos."""
        return _encode(self._target, sentences)

    def frame_source(self, pieces: Sequence[int]) -> list[int]:
        """Returns the encoder's input: the source prefix or a tag, the pieces, then eos."""
        is_tagged = {*pieces[:1]} & {*self.tag_ids.values()}
        before = [] if is_tagged else self.source_prefix_ids
        return [*before, *pieces, *([EOS_ID] if self.source_eos else [])]

    def frame_target(self, pieces: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the decoder's input (bos, then pieces) and the labels (pieces, then eos).

        The pieces follow the target prefix.
        """
        pieces = [*self.target_prefix_ids, *pieces]
        return [BOS_ID, *pieces], [*pieces, EOS_ID]

    def decode_target(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Converts ids to target sentences, without the target prefix at the beginning.

        Omits pad, bos and eos, and writes "⁇" for unk.
        """
        rows, first = [[int(id) for id in row] for row in ids], len(self.target_prefix_ids)
        rows = [row[first:] if row[:first] == self.target_prefix_ids else row for row in rows]
        return _of_each(self._target.decode, rows)


def most_pieces(tokenizer: Tokenizer, side: str, max_length: int) -> int:
    """Returns how many pieces of a "source" or a "target" fit into `max_length` tokens."""
    framed = tokenizer.frame_source([]) if side == "source" else tokenizer.frame_target([])[0]
    return max_length - len(framed)


def _of_each(function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Calls a function of SentencePiece with a list, or with each item of a short one."""
    return function(items) if len(items) > _FEW else [function(x) for x in items]


def _encode(processor: SentencePieceProcessor, sentences: Sequence[str]) -> list[list[int]]:
    check_is_list(sentences=sentences)
    try:
        return _of_each(processor.encode, list(sentences))
    except (TypeError, RuntimeError):
        for text in map(str, sentences):  # A byte of argv can become half of a surrogate pair.
            if re.search("[\ud800-\udfff]", text):
                raise UserError(f"a sentence must be UTF-8 text. Received: {text!r:.80}") from None
        raise


def _prefix_ids(processor: SentencePieceProcessor, name: str, pieces: Sequence[str]) -> list[int]:
    check_is_list(**{name: pieces})
    ids = [processor.piece_to_id(piece) for piece in pieces]
    if [processor.id_to_piece(id) for id in ids] != [*pieces]:
        raise UserError(f"{name} must be pieces of the tokenizer. Received: {name}={pieces}")
    return ids


def _processor(model: bytes) -> SentencePieceProcessor:
    processor = SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except RuntimeError as error:
        raise UserError(f"not a complete SentencePiece model: {error}") from None
    received = {name: getattr(processor, name)() for name in SPECIAL_IDS}
    if received != SPECIAL_IDS:
        advice = "`Tokenizer.from_sentencepiece` gives the pieces of other models these ids"
        raise UserError(f"special ids must be {SPECIAL_IDS}. Received: {received}. {advice}")
    return processor
