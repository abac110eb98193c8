"""Trains the SentencePiece models of a tokenizer."""

import io
import re
from collections.abc import Iterator
from typing import Any

import sentencepiece
from sentencepiece import SentencePieceNormalizer

from keras_transformer.data.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import UserError

SPECIAL_IDS: dict[str, Any] = dict(pad_id=PAD_ID, unk_id=UNK_ID, bos_id=BOS_ID, eos_id=EOS_ID)


class VocabularySizeError(UserError):
    """Raised if a text allows no vocabulary of this size. `bound` is the nearest possible size."""

    def __init__(self, message: str, bound: int) -> None:
        super().__init__(message)
        self.bound = bound


def train_model(lines: Iterator[str], normalization: str, **options: Any) -> bytes:
    """Returns a SentencePiece model of lines. `options` are those of its trainer."""
    failures: list[BaseException] = []  # SentencePiece hides exceptions that `lines` raises
    model = io.BytesIO()

    def readable() -> Iterator[str]:
        try:
            # SentencePiece leaves out lines with its sign for unknown characters.
            yield from (line.replace("▅", " ") for line in lines)
        except BaseException as error:
            failures.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=readable(),
            model_writer=model,
            character_coverage=1.0,
            max_sentence_length=2**30,  # bytes; SentencePiece leaves out longer lines
            minloglevel=2,
            normalization_rule_name=normalization,
            **SPECIAL_IDS,
            **options,
        )
    except (RuntimeError, ValueError) as error:
        raise failures[0] if failures else _explain(error, options["vocab_size"]) from None
    return model.getvalue()


def normalizer(rule: str, spaces: bool) -> SentencePieceNormalizer:
    """Returns a normalizer that changes spaces as the encoder does, or leaves them."""
    names = ("add_dummy_prefix", "escape_whitespaces", "remove_extra_whitespaces")
    options: dict[str, Any] = dict.fromkeys(names, spaces)
    try:
        return SentencePieceNormalizer(rule_name=rule, **options)
    except RuntimeError:
        received = f"Received: normalization={rule!r}"
        raise UserError(f"normalization must be a rule of SentencePiece. {received}") from None


def _explain(error: Exception, vocabulary_size: int) -> UserError:
    message = str(error)
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return UserError("a tokenizer cannot be trained on empty text")
    if bound := re.search(r"Please set it to a value <= (\d+)", message):
        rule = f"at most {bound[1]}"
    elif bound := re.search(r"required_chars\. \d+ vs (\d+)", message):
        rule = f"at least {bound[1]}, one for each character,"
    else:
        return UserError(f"SentencePiece cannot train on this text: {message}")
    return VocabularySizeError(
        f"vocabulary_size must be {rule} for this text. Received: "
        f"vocabulary_size={vocabulary_size}",
        int(bound[1]),
    )
