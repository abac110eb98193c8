"""Scores existing translations by their log-probabilities under a model."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from keras import ops

from keras_transformer._backend.compile_function import compile_function
from keras_transformer._backend.operations import label_logits
from keras_transformer._backend.types import Ids
from keras_transformer.capabilities import Capabilities
from keras_transformer.data.tokenizer import Tokenizer, most_pieces
from keras_transformer.decoding.batches import pair_batches
from keras_transformer.errors import UserError, check_is_list

Rows = Sequence[Sequence[int]]


class PairScores(NamedTuple):
    """The log-probabilities of the targets of sentence pairs under a model."""

    token_log_probabilities: Any  # float32 `(B, T)`, nats per label; 0 where the label is padding
    log_probabilities: Any  # float32 `(B,)`, sum over the labels: nats per sentence
    lengths: Any  # int32 `(B,)`, number of labels that are not padding, eos included


def score_pairs(
    model: Any, source_ids: Ids, target_ids: Ids, labels: Ids, *, pad_id: int | None = None
) -> PairScores:
    """Scores all tokens of existing translations in a single pass (teacher forcing).

    Scoring needs memory for the logits and at most one more float32 tensor of the same size.

    Example:

    >>> score = compile_function(score_pairs, model)
    >>> scores = score(source_ids, target_ids, labels)
    >>> perplexity = np.exp(-np.sum(scores.log_probabilities) / np.sum(scores.lengths))

    Args:
        model: A `Transformer`, or any Keras model with the same inputs and output.
        source_ids: int tensor `(B, S)` of pieces and eos, padded at the end.
        target_ids: int tensor `(B, T)` of bos and pieces, padded at the end.
        labels: int tensor `(B, T)` of pieces and eos, padded at the end.
        pad_id: Id of padding. Defaults to `model.pad_id`, or 0 if the model has none.

    Returns:
        `PairScores`. A hypothesis of a `SearchResult` gets the same log-probability as in the
        search, except for rounding errors. But a repetition penalty, beam groups and a shortlist
        change those of beam search. A label outside the vocabulary gives NaN.
    """
    if pad_id is None:
        pad_id = Capabilities.of(model).pad_id
    given = (source_ids, target_ids, labels)
    source_ids, target_ids, labels = (ops.convert_to_tensor(x, dtype="int32") for x in given)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    logits = ops.cast(model(inputs, training=False), "float32")
    of_labels = label_logits(logits, labels)
    is_token = labels != pad_id
    log_probabilities = ops.where(is_token, of_labels - ops.logsumexp(logits, axis=-1), 0.0)
    return PairScores(
        token_log_probabilities=log_probabilities,
        log_probabilities=ops.sum(log_probabilities, axis=-1),
        lengths=ops.cast(ops.sum(ops.cast(is_token, "int32"), axis=-1), "int32"),
    )


def checked_pieces(
    tokenizer: Tokenizer, side: str, texts: Sequence[str], max_length: int, least: int = 0
) -> list[list[int]]:
    """Returns the pieces of each text. Raises `UserError` if the model cannot read their number."""
    check_is_list(**{f"{side} texts": texts})
    encode = tokenizer.encode_source if side == "source" else tokenizer.encode_target
    encoded: list[list[int]] = encode([text.strip() for text in texts])
    most = most_pieces(tokenizer, side, max_length)
    for text, ids in zip(texts, encoded, strict=True):
        if not least <= len(ids) <= most:
            raise UserError(
                f"a {side} must have {least} to {most:,} pieces. "
                f"Received: {len(ids):,} pieces of {text[:40]!r}..."
            )
    return encoded


class PairScore(NamedTuple):
    """The log-probability in nats and the length in tokens of a translation, eos included."""

    log_probability: float
    length: int


class Scorer:
    """Scores existing translations with a trained model.

    Sentence pairs are grouped into batches of a few different shapes, as in `Translator`. The
    tokenizer may encode a translation as other pieces than those that beam search chose. If they
    are the same, so is the log-probability (for exceptions, see `score_pairs`).

    Example:

    >>> scores = Scorer(model, tokenizer).score(["A man sleeps."], ["Ein Mann schläft."])
    >>> perplexity = np.exp(-sum(s.log_probability for s in scores) / sum(s.length for s in scores))

    Args:
        model: A `Transformer`, or any Keras model with the same inputs and output and an attribute
            `max_length`.
        tokenizer: The `Tokenizer` that the model was trained with.
        tokens_per_batch: Maximum number of source tokens in a batch, and of target tokens, padding
            included. Defaults to None, which means 1024.
    """

    def __init__(
        self, model: Any, tokenizer: Tokenizer, tokens_per_batch: int | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.tokens_per_batch = tokens_per_batch or 1024
        self._score_pairs = compile_function(score_pairs, model)

    def score(
        self,
        sentences: Sequence[str],
        translations: Sequence[str],
        progress: Callable[[int], Any] | None = None,
    ) -> list[PairScore]:
        """Scores one translation of each sentence.

        Args:
            sentences: Any number of strings.
            translations: One string per sentence, in the same order.
            progress: Is called after each batch with its number of pairs. Defaults to None.

        Returns:
            One `PairScore` per pair, in the same order.

        Raises:
            UserError: If a sentence or a translation is longer than the model accepts.
        """
        scores = [PairScore(0.0, 0)] * len(sentences)
        for indices, (_, *found) in self._batches(*self._encoded(sentences, translations)):
            for index, total, length in zip(indices, *found, strict=False):
                scores[index] = PairScore(float(total), int(length))
            if progress:
                progress(len(indices))
        return scores

    def token_log_probabilities(
        self, sentences: Sequence[str], translations: Sequence[str]
    ) -> list[list[float]]:
        """Returns the log-probabilities (nats) of the pieces of each translation, then of eos."""
        return self.of_pieces(*self._encoded(sentences, translations))

    def of_pieces(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """Does the same for framed sources and the pieces of targets, truncated if necessary."""
        scored: list[list[float]] = [[]] * len(sources)
        first = len(self.tokenizer.target_prefix_ids)
        for indices, (tokens, _, lengths) in self._batches(sources, targets):
            for row, index in enumerate(indices):
                scored[index] = tokens[row, first : lengths[row]].tolist()
        return scored

    def _encoded(self, sentences: Sequence[str], translations: Sequence[str]) -> tuple[Rows, Rows]:
        most = self.model.max_length
        sources = checked_pieces(self.tokenizer, "source", sentences, most)
        targets = checked_pieces(self.tokenizer, "target", translations, most)
        return [self.tokenizer.frame_source(ids) for ids in sources], targets

    def _batches(self, sources: Rows, targets: Rows) -> Iterator[tuple[list[int], PairScores]]:
        """Yields the indices of the pairs of each batch, and their scores as NumPy arrays."""
        most, pad_id = self.model.max_length, self.tokenizer.pad_id
        framed = [[x[:most] for x in self.tokenizer.frame_target(ids)] for ids in targets]
        batches = pair_batches(sources, framed, self.tokens_per_batch, most, pad_id)
        for indices, source_ids, target_ids in batches:
            found = self._score_pairs(source_ids, *target_ids.swapaxes(0, 1), pad_id=pad_id)
            yield indices, PairScores(*map(ops.convert_to_numpy, found))
