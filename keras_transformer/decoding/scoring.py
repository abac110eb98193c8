"""How probable a model finds translations that are already there."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import compile_function
from keras_transformer.decoding.buckets import pair_batches
from keras_transformer.errors import UserError


class PairScores(NamedTuple):
    """The log-probabilities that a model gives the targets of pairs.

    Attributes:
        token_log_probabilities: float32 `(B, T)`, nats, of each label after those before it; 0
            where the label is padding.
        log_probabilities: float32 `(B,)`, their sums: nats per sentence.
        lengths: int32 `(B,)`, labels that are not padding, eos included.
    """

    token_log_probabilities: Any
    log_probabilities: Any
    lengths: Any


def score_pairs(
    model: Any, source_ids: Any, target_ids: Any, labels: Any, *, pad_id: int = 0
) -> PairScores:
    """Scores given translations, all tokens at once (teacher forcing).

    A function of tensors alone, for any backend; `compile_function` makes it fast. It needs the
    memory of the logits and of one more float32 tensor of their size at most.

    Example:

    >>> score = compile_function(score_pairs, model)
    >>> scores = score(source_ids, target_ids, labels)
    >>> perplexity = np.exp(-np.sum(scores.log_probabilities) / np.sum(scores.lengths))

    Args:
        model: A `Transformer`, or any Keras model of its inputs and output.
        source_ids: int tensor `(B, S)`, padded at the end: pieces and eos.
        target_ids: int tensor `(B, T)`, padded at the end: bos and pieces.
        labels: int tensor `(B, T)`, padded at the end: pieces and eos.
        pad_id: Id of padding. Defaults to 0.

    Returns:
        `PairScores`. A `SearchResult`'s log-probabilities are these of its `ids`, up to rounding.
    """
    labels = ops.convert_to_tensor(labels, dtype="int32")
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    inputs = {name: ops.convert_to_tensor(ids, dtype="int32") for name, ids in inputs.items()}
    logits = ops.cast(model(inputs, training=False), "float32")
    of_labels = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    is_token = labels != pad_id
    log_probabilities = ops.where(is_token, of_labels - ops.logsumexp(logits, axis=-1), 0.0)
    return PairScores(
        token_log_probabilities=log_probabilities,
        log_probabilities=ops.sum(log_probabilities, axis=-1),
        lengths=ops.sum(ops.cast(is_token, "int32"), axis=-1),
    )


class PairScore(NamedTuple):
    """How probable a model finds a translation.

    Attributes:
        log_probability: In nats, eos included.
        length: In tokens, eos included.
    """

    log_probability: float
    length: int


class Scorer:
    """Says how probable a trained model finds translations that are already there.

    Pairs go through the model in batches of few shapes, as sentences do in `Translator`. A
    translation that beam search has found scores as it did there, if the tokenizer encodes its
    text by the same pieces.

    Example:

    >>> scores = Scorer(model, tokenizer).score(["A man sleeps."], ["Ein Mann schläft."])
    >>> perplexity = np.exp(-sum(s.log_probability for s in scores) / sum(s.length for s in scores))

    Args:
        model: A `Transformer`, or any Keras model of its inputs and output, with `max_length`.
        tokenizer: The `Tokenizer` that the model was trained with.
        tokens_per_batch: Tokens of one batch on each side, padding included. Defaults to 1024.
    """

    def __init__(self, model: Any, tokenizer: Any, tokens_per_batch: int = 1024) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.tokens_per_batch = tokens_per_batch
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
            translations: As many strings, in the same order.
            progress: Called with each number of pairs that are done. Defaults to None.

        Returns:
            As many scores, in the same order.

        Raises:
            UserError: If a sentence or a translation is longer than the model takes.
            ValueError: If there are not as many translations as sentences.
        """
        tokenizer = self.tokenizer
        sources = [[*ids, tokenizer.eos_id] for ids in self._encode("source", sentences)]
        targets = [
            [[tokenizer.bos_id, *ids], [*ids, tokenizer.eos_id]]
            for ids in self._encode("target", translations)
        ]
        scores = [PairScore(0.0, 0)] * len(sources)
        for indices, source_ids, target_ids in pair_batches(
            sources, targets, self.tokens_per_batch, self.model.max_length, tokenizer.pad_id
        ):
            found = self._score(source_ids, target_ids[:, 0], target_ids[:, 1])
            for row, index in enumerate(indices):
                log_probability = float(found.log_probabilities[row])
                scores[index] = PairScore(log_probability, int(found.lengths[row]))
            if progress:
                progress(len(indices))
        return scores

    def _encode(self, side: str, texts: Sequence[str]) -> list[list[int]]:
        encoded = getattr(self.tokenizer, f"encode_{side}")([text.strip() for text in texts])
        most = self.model.max_length - 1
        for text, ids in zip(texts, encoded, strict=True):
            if len(ids) > most:
                raise UserError(
                    f"a {side} must have at most {most:,} pieces. "
                    f"Received: {len(ids):,} pieces of {text[:40]!r}..."
                )
        return encoded

    def _score(self, *arrays: np.ndarray) -> PairScores:
        scores = self._score_pairs(*arrays, pad_id=self.tokenizer.pad_id)
        return PairScores(*map(ops.convert_to_numpy, scores))
