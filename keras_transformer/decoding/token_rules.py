"""Token rules change the log-probabilities of the next token of a hypothesis.

All rules have the same call arguments and the same result.

Call arguments:
    log_probabilities: float32 `(B, N, V)`, log-probabilities of the next token, at most 0.
    ids: int32 `(B, N, 1 + L)`, bos first, padding where nothing is decoded yet.
    position: int32 `()`, number of tokens decoded so far.

Returns:
    The new log-probabilities, float32 `(B, N, V)`. Minus infinity forbids a token.

A rule makes at most one pass over the log-probabilities. It uses `ids` to find the tokens whose
log-probabilities must change.
"""

from dataclasses import dataclass
from typing import Any

from keras import ops

from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.steps import IMPOSSIBLE, Request, TokenRule, count_tokens

# Pads the sequences of `ForbiddenWords`; no token has this id.
NO_TOKEN = -1


@dataclass(frozen=True)
class RepetitionPenalty:
    """Token rule that multiplies the log-probabilities of all earlier tokens by a factor.

    Earlier tokens are the tokens that the hypothesis contains, except bos and padding. If a token
    occurs several times, the factor is applied once.

    Example:

    >>> result = search(model, source_ids, max_length=60, rules=(RepetitionPenalty(1.2),))

    Args:
        penalty: Factor above 0. Values above 1 make repetition less probable.

    Source: Keskar et al. 2019, §4.1. The penalty applies to log-probabilities, as in Hugging Face's
        beam search.
    """

    penalty: float

    def __call__(self, log_probabilities: Any, ids: Any, position: Any) -> Any:
        columns = ops.arange(ops.shape(ids)[-1], dtype="int32")
        is_decoded = ops.logical_and(columns >= 1, columns <= position)
        # A token that occurs several times is written several times, always with the same value.
        ids = _at_least_0(ops.where(is_decoded, ids, ids[..., 1:2]))
        before = ops.take_along_axis(log_probabilities, ids, axis=-1)
        after = ops.where(position > 0, self.penalty * before, before)
        return ops.scatter_update(log_probabilities, _indices(ids), ops.reshape(after, (-1,)))


@dataclass(frozen=True)
class NoRepeatNgrams:
    """Token rule that blocks repeated n-grams.

    Example:

    >>> result = search(model, source_ids, max_length=60, rules=(NoRepeatNgrams(3),))

    Args:
        size: Number n of tokens in an n-gram, at least 1. If n is 1, no token appears twice. Bos is
            ignored.

    Source: Paulus et al. 2018, §2.5.
    """

    size: int

    def __call__(self, log_probabilities: Any, ids: Any, position: Any) -> Any:
        num_ngrams = ops.shape(ids)[-1] - self.size
        if not isinstance(num_ngrams, int):
            num_ngrams = _at_least_0(num_ngrams)
        elif num_ngrams < 1:
            return log_probabilities
        first = ops.arange(1, 1 + num_ngrams, dtype="int32")  # Start of each n-gram.
        is_repeated = first + self.size - 1 <= position
        suffix = last_tokens(ids, position, self.size - 1)
        for offset in range(self.size - 1):
            token = ids[..., 1 + offset : 1 + offset + num_ngrams]
            is_equal = token == suffix[..., offset : offset + 1]
            is_repeated = ops.logical_and(is_repeated, is_equal)
        last = ids[..., self.size :]
        return _forbid(log_probabilities, last, ops.broadcast_to(is_repeated, ops.shape(last)))


@dataclass(frozen=True)
class MinLength:
    """Token rule that forbids eos until the hypothesis has the minimum length.

    Example:

    >>> result = search(model, source_ids, max_length=60, rules=(MinLength(5),))

    Args:
        length: Minimum number of tokens of a hypothesis, eos included, at least 1.
        eos_id: Id of the end of a sentence. Defaults to 3.
    """

    length: int
    eos_id: int = 3

    def __call__(self, log_probabilities: Any, ids: Any, position: Any) -> Any:
        tokens = ops.arange(ops.shape(log_probabilities)[-1], dtype="int32")
        is_forbidden = ops.logical_and(tokens == self.eos_id, position + 1 < self.length)
        return ops.where(is_forbidden, IMPOSSIBLE, log_probabilities)


@dataclass(frozen=True)
class ForbiddenWords:
    """Token rule that forbids the same token sequences in the translations of all sentences.

    To forbid a word, pass the token sequences of all its forms, with and without "▁" at the
    beginning, in lower and upper case. To forbid different sequences per sentence, use
    `Request.forbidden_ids`.

    Example:

    >>> words = tuple(tuple(ids) for ids in tokenizer.encode_target(["cat", "Cat"]))
    >>> result = search(model, source_ids, max_length=60, rules=(ForbiddenWords(words),))

    Args:
        sequences: Tuple of token sequences. Each sequence is a non-empty tuple of ids.
    """

    sequences: tuple[tuple[int, ...], ...]

    def __call__(self, log_probabilities: Any, ids: Any, position: Any) -> Any:
        width = max(map(len, self.sequences))
        padded = [[*ids, *[NO_TOKEN] * (width - len(ids))] for ids in self.sequences]
        forbidden_ids = ops.convert_to_tensor([padded], dtype="int32")
        return forbid_sequences(log_probabilities, ids, position, forbidden_ids, NO_TOKEN)


def rules_of_options(options: DecodingOptions, eos_id: int) -> tuple[TokenRule, ...]:
    """Returns the token rules that the options turn on."""
    rules: list[TokenRule] = []
    if options.repetition_penalty != 1:
        rules.append(RepetitionPenalty(options.repetition_penalty))
    if options.no_repeat_ngram_size:
        rules.append(NoRepeatNgrams(options.no_repeat_ngram_size))
    if options.min_length > 1:
        rules.append(MinLength(options.min_length, eos_id))
    return tuple(rules)


def rules_of_request(request: Request, pad_id: int) -> tuple[TokenRule, ...]:
    """Returns the prefixes and the forbidden sequences of a request as token rules."""
    rules = ((force_prefix, request.prefix_ids), (forbid_sequences, request.forbidden_ids))
    return tuple(
        lambda *state, rule=rule, constraint_ids=ids: rule(*state, constraint_ids, pad_id)
        for rule, ids in rules
        if ids is not None
    )


def force_prefix(
    log_probabilities: Any, ids: Any, position: Any, prefix_ids: Any, pad_id: int
) -> Any:
    """Allows only the next token of the prefix, and all tokens after its end.

    `prefix_ids`, int32 `(B, P)`, are without bos and padded at the end.
    """
    length = prefix_ids.shape[1]
    column = ops.minimum(position, ops.cast(length - 1, "int32"))
    forced = ops.take(prefix_ids, column, axis=1)[:, None, None]
    is_forced = ops.logical_and(forced != pad_id, position < length)
    tokens = ops.arange(log_probabilities.shape[-1], dtype="int32")
    is_forbidden = ops.logical_and(is_forced, tokens != forced)
    return ops.where(is_forbidden, IMPOSSIBLE, log_probabilities)


def forbid_sequences(
    log_probabilities: Any, ids: Any, position: Any, forbidden_ids: Any, pad_id: int
) -> Any:
    """Forbids each token that would complete a forbidden sequence of the sentence.

    `forbidden_ids`, int32 `(B, C, W)`, are C sequences of up to W tokens, padded at the end. If the
    shape is `(1, C, W)`, the sequences apply to every sentence. A sequence that contains only
    padding has no effect.
    """
    num_sequences, width = forbidden_ids.shape[1:]
    lengths = count_tokens(forbidden_ids, pad_id)  # (B, C)
    recent = last_tokens(ids, position, width - 1)
    is_complete = (lengths > 0)[:, None]
    for back in range(1, width):
        # The token that is `back` places before the last token of the sequence, if it exists.
        at = lengths - 1 - back
        token = _token_at(forbidden_ids, _at_least_0(at))[:, None]
        is_equal = ops.logical_or((at < 0)[:, None], token == recent[..., width - 1 - back, None])
        is_complete = ops.logical_and(is_complete, is_equal)  # (B, N, C)
    last = _token_at(forbidden_ids, _at_least_0(lengths - 1))[:, None]
    shape = (*ops.shape(ids)[:2], num_sequences)
    tokens = ops.broadcast_to(ops.where(is_complete, last, 0), shape)
    return _forbid(log_probabilities, tokens, ops.broadcast_to(is_complete, shape))


def _token_at(sequences: Any, indices: Any) -> Any:
    """Takes from `sequences` `(B, C, W)` the tokens at `indices` `(B, C)`."""
    return ops.take_along_axis(sequences, indices[..., None], axis=-1)[..., 0]


def last_tokens(ids: Any, position: Any, count: int) -> Any:
    """Returns the last `count` tokens, `(B, N, count)`.

    If a hypothesis has fewer tokens, bos is repeated at the beginning.
    """
    columns = position - count + 1 + ops.arange(count, dtype="int32")
    return ops.take(ids, _at_least_0(columns), axis=-1)


def _at_least_0(x: Any) -> Any:
    """Returns the maximum of int32 numbers and 0.

    On JAX, `ops.maximum(x, 0)` is float32 if Keras's `floatx` is a half precision.
    """
    return ops.maximum(x, ops.zeros_like(x))


def _forbid(log_probabilities: Any, tokens: Any, is_forbidden: Any) -> Any:
    """Forbids the `tokens` `(B, N, M)` where `is_forbidden` is True."""
    choices = (ops.convert_to_tensor(x, dtype="float32") for x in (IMPOSSIBLE, 0.0))
    added = ops.where(ops.reshape(is_forbidden, (-1,)), *choices)
    indices = _indices(_at_least_0(tokens))  # The id of padding may be -1.
    return ops.scatter_update(log_probabilities, indices, added, reduction="add")


def _indices(tokens: Any) -> Any:
    """Returns the indices `(B * N * M, 3)` of `tokens` `(B, N, M)` in a tensor `(B, N, V)`."""
    batch, beams, count = ops.shape(tokens)
    sentence, beam = ops.arange(batch, dtype="int32"), ops.arange(beams, dtype="int32")
    shape = (batch, beams, count)
    parts = (sentence[:, None, None], beam[:, None], tokens)
    return ops.stack([ops.reshape(ops.broadcast_to(x, shape), (-1,)) for x in parts], axis=-1)
