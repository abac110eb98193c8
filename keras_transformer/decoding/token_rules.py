"""Token rules and required words.

Token rules change the log-probabilities of the next token of a hypothesis. All rules have the same
call arguments and the same result.

Call arguments:
    log_probabilities: float32 `(B, N, V)`, log-probabilities of the next token, at most 0.
    ids: int32 `(B, N, 1 + L)`, bos first, padding where nothing is decoded yet.
    position: int32 `()`, number of tokens decoded so far.

Returns:
    The new log-probabilities, float32 `(B, N, V)`. Minus infinity forbids a token.

Required words decide which hypotheses stay in the beam. A sequence is met if it occurs in the
hypothesis. A sequence that is not met is in progress if the hypothesis ends with the first k tokens
of the sequence; the largest k counts. The bank of a hypothesis is the number of tokens of all met
sequences, plus the largest k of the sequences in progress. Only hypotheses with the same bank
compete with each other. So hypotheses with more of the required tokens stay in the beam, even if
they are less probable. Shape letters: C required sequences per sentence, W tokens per sequence, M
candidates per sentence.

Source: Post & Vilar 2018, Fast Lexically Constrained Decoding with Dynamic Beam Allocation.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from keras import ops

from keras_transformer._backend.types import Ids, Mask, Tensor
from keras_transformer.decoding.next_tokens import (
    TokenRule,
    best_token,
    count_tokens,
    top_k_tokens,
    write_at,
)
from keras_transformer.decoding.options import IMPOSSIBLE, DecodingOptions
from keras_transformer.decoding.request import Request
from keras_transformer.layers.attention.cache import take_columns

# No token has this id. It pads sequences, and stands for a missing bos or eos.
NO_TOKEN = -1


@dataclass(frozen=True)
class RepetitionPenalty:
    """Token rule that multiplies the log-probability of each earlier token once by a factor.

    Args:
        penalty: Factor above 0. Values above 1 make repetition less probable.

    Source: Keskar et al. 2019, §4.1. The penalty applies to log-probabilities, as in Hugging Face's
        beam search.
    """

    penalty: float

    def __call__(self, log_probabilities: Tensor, ids: Ids, position: Tensor) -> Any:
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

    Args:
        size: Number n of tokens in an n-gram, at least 1. If n is 1, no token appears twice. Bos is
            ignored.

    Source: Paulus et al. 2018, §2.5.
    """

    size: int

    def __call__(self, log_probabilities: Tensor, ids: Ids, position: Tensor) -> Any:
        last = ids[..., self.size :]  # The last token of each n-gram.
        if last.shape[-1] == 0:
            return log_probabilities
        num_ngrams = ops.shape(last)[-1]
        first = ops.arange(1, 1 + num_ngrams, dtype="int32")  # Start of each n-gram.
        is_repeated = first + self.size - 1 <= position
        suffix = last_tokens(ids, position, self.size - 1)
        for offset in range(self.size - 1):
            token = ids[..., 1 + offset : 1 + offset + num_ngrams]
            is_equal = token == suffix[..., offset : offset + 1]
            is_repeated = ops.logical_and(is_repeated, is_equal)
        return _forbid(log_probabilities, last, ops.broadcast_to(is_repeated, ops.shape(last)))


@dataclass(frozen=True)
class MinLength:
    """Token rule that forbids eos until the hypothesis has the minimum length.

    Args:
        length: Minimum number of tokens of a hypothesis, eos included, at least 1.
        eos_id: Id of the end of a sentence. Defaults to 3.
    """

    length: int
    eos_id: int = 3

    def __call__(self, log_probabilities: Tensor, ids: Ids, position: Tensor) -> Any:
        tokens = ops.arange(ops.shape(log_probabilities)[-1], dtype="int32")
        is_forbidden = ops.logical_and(tokens == self.eos_id, position + 1 < self.length)
        return ops.where(is_forbidden, IMPOSSIBLE, log_probabilities)


@dataclass(frozen=True)
class ForbiddenWords:
    """Token rule that forbids the same token sequences in the translations of all sentences.

    To forbid a word, pass the token sequences of all its forms, with and without "▁" at the
    beginning, in lower and upper case. `Request.forbidden_ids` differ from sentence to sentence.

    Example:

    >>> words = tuple(tuple(ids) for ids in tokenizer.encode_target(["cat", "Cat"]))
    >>> result = search(model, source_ids, max_length=60, rules=(ForbiddenWords(words),))

    Args:
        sequences: Tuple of token sequences. Each sequence is a non-empty tuple of ids.
    """

    sequences: tuple[tuple[int, ...], ...]

    def __call__(self, log_probabilities: Tensor, ids: Ids, position: Tensor) -> Any:
        sequences = self.sequences or ((),)
        width = max(1, *map(len, sequences))
        padded = [[*ids, *[NO_TOKEN] * (width - len(ids))] for ids in sequences]
        forbidden_ids = ops.convert_to_tensor([padded], dtype="int32")
        return forbid_sequences(log_probabilities, ids, position, forbidden_ids, NO_TOKEN)


def rules_of_options(options: DecodingOptions, eos_id: int) -> tuple[TokenRule, ...]:
    """Returns the token rules that the options turn on."""
    rules = (
        (options.repetition_penalty != 1, RepetitionPenalty(options.repetition_penalty)),
        (options.no_repeat_ngram_size > 0, NoRepeatNgrams(options.no_repeat_ngram_size)),
        (options.min_length > 1, MinLength(options.min_length, eos_id)),
    )
    return tuple(rule for is_on, rule in rules if is_on)


def rules_of_request(request: Request, pad_id: int) -> tuple[TokenRule, ...]:
    """Returns the prefixes and the forbidden sequences of a request as token rules."""
    rules = ((force_prefix, request.prefix_ids), (forbid_sequences, request.forbidden_ids))
    return tuple(
        lambda *state, rule=rule, constraint_ids=ids: rule(*state, constraint_ids, pad_id)
        for rule, ids in rules
        if ids is not None
    )


def force_prefix(
    log_probabilities: Tensor, ids: Ids, position: Tensor, prefix_ids: Ids, pad_id: int
) -> Any:
    """Allows only the next token of the prefix `(B, P)`, without bos, and all after its end.

    As in transformers and CTranslate2, tokens of the prefix have the log-probability 0.
    """
    length = prefix_ids.shape[1]
    column = ops.minimum(position, ops.cast(length - 1, "int32"))
    forced = ops.take(prefix_ids, column, axis=1)[:, None, None]
    is_forced = ops.logical_and(forced != pad_id, position < length)
    tokens = ops.arange(ops.shape(log_probabilities)[-1], dtype="int32")
    given = ops.cast(ops.where(tokens == forced, 0.0, IMPOSSIBLE), log_probabilities.dtype)
    return ops.where(is_forced, given, log_probabilities)


def forbid_sequences(
    log_probabilities: Tensor, ids: Ids, position: Tensor, forbidden_ids: Ids, pad_id: int
) -> Any:
    """Forbids each token that would complete a forbidden sequence of the sentence.

    `forbidden_ids` are int32 `(B, C, W)`, or `(1, C, W)` for every sentence, padded at the end. A
    sequence that contains only padding has no effect.
    """
    width = forbidden_ids.shape[-1]
    lengths = count_tokens(forbidden_ids, pad_id)[..., None]
    columns = lengths - width + ops.arange(width, dtype="int32")  # Below 0 before the sequence.
    sequences = ops.take_along_axis(forbidden_ids, _at_least_0(columns), axis=-1)[:, None]
    recent = last_tokens(ids, position, width - 1)[:, :, None]
    is_equal = ops.logical_or((columns < 0)[:, None, :, :-1], sequences[..., :-1] == recent)
    is_complete = ops.logical_and(ops.all(is_equal, axis=-1), (lengths > 0)[:, None, :, 0])
    return _forbid(log_probabilities, ops.where(is_complete, sequences[..., -1], 0), is_complete)


def last_tokens(ids: Ids, position: Tensor, count: int) -> Any:
    """Returns the last `count` tokens, `(B, N, count)`. Bos is repeated if there are fewer."""
    columns = position - count + 1 + ops.arange(count, dtype="int32")
    return ops.take(ids, _at_least_0(columns), axis=-1)


def _at_least_0(x: Tensor) -> Any:
    # On JAX, `ops.maximum(x, 0)` is float32 if Keras's `floatx` is a half precision.
    return ops.maximum(x, ops.zeros_like(x))


def _forbid(log_probabilities: Tensor, tokens: Ids, is_forbidden: Mask) -> Any:
    """Forbids the `tokens` `(B, N, M)` where `is_forbidden` is True."""
    choices = (ops.convert_to_tensor(x, dtype="float32") for x in (IMPOSSIBLE, 0.0))
    added = ops.where(ops.reshape(is_forbidden, (-1,)), *choices)
    indices = _indices(_at_least_0(tokens))  # The id of padding may be -1.
    return ops.scatter_update(log_probabilities, indices, added, reduction="add")


def _indices(tokens: Ids) -> Any:
    """Returns the indices `(B * N * M, 3)` of `tokens` `(B, N, M)` in a tensor `(B, N, V)`."""
    shape = ops.shape(tokens)
    sentence, beam = (ops.arange(size, dtype="int32") for size in shape[:2])
    parts = (sentence[:, None, None], beam[:, None], tokens)
    return ops.stack([ops.reshape(ops.broadcast_to(x, shape), (-1,)) for x in parts], axis=-1)


class Candidates(NamedTuple):
    """The M candidates per sentence, each a live (not finished) hypothesis with one more token."""

    ids: Any  # int32 `(B, M, 1 + L)`
    log_probabilities: Any  # float32 `(B, M)`; descending if no tokens are required
    parents: Any  # int32 `(B, M)`, index of the beam that each candidate continues
    banks: Any = None  # int32 `(B, M)`; None without required tokens
    missing: Any = None  # int32 `(B, M)`, number of missing tokens; None without required tokens


def constrained_candidates(
    live: Any, next_tokens: Tensor, position: Tensor, required_ids: Ids, eos_id: int, pad_id: int
) -> Candidates:
    """Continues the live hypotheses with the most probable tokens and with the required tokens.

    There are M = 2N + N + N * C candidates: the 2N most probable continuations over all N
    hypotheses, the most probable continuation of each hypothesis, and each hypothesis with the next
    token of each sequence that is not met. A hypothesis cannot end with eos before all sequences
    are met. `live` is a `Live` of beam search. `next_tokens`, float32 `(B, N, V)`, are
    log-probabilities. `required_ids` are int32 `(B, C, W)`. Empty sequences are ignored.

    Source: Post & Vilar 2018, algorithm 2.
    """
    required = next_required_tokens(live.ids, position, required_ids, pad_id)
    is_incomplete = ops.any(required != NO_TOKEN, axis=-1)[..., None]
    is_eos = ops.arange(next_tokens.shape[-1], dtype="int32") == eos_id
    next_tokens = ops.where(ops.logical_and(is_incomplete, is_eos), IMPOSSIBLE, next_tokens)
    totals = live.log_probabilities[..., None] + next_tokens
    log_probabilities, parents, tokens = _continuations(totals, required)
    keys = parents * next_tokens.shape[-1] + tokens
    columns = ops.arange(keys.shape[1], dtype="int32")
    is_before = columns < columns[:, None]
    is_duplicate = ops.any((keys[:, :, None] == keys[:, None, :]) & is_before, axis=-1)
    ids = write_at(take_columns(live.ids, parents), tokens, position + 1)
    banks = banks_of(ids, position + 1, required_ids, pad_id)
    return Candidates(
        ids=ids,
        log_probabilities=ops.where(is_duplicate, IMPOSSIBLE, log_probabilities),
        parents=parents,
        banks=banks,
        missing=ops.sum(count_tokens(required_ids, pad_id), axis=-1)[:, None] - banks,
    )


def allocate_beams(log_probabilities: Tensor, banks: Tensor, beam_size: int | Tensor) -> Any:
    """Chooses N candidates of each sentence, one from each bank in turn.

    Takes the most probable candidate of each bank, from the highest bank to the lowest, then the
    second most probable of each bank, and so on. `log_probabilities` and `banks` are `(B, M)`.
    Candidates with the log-probability minus infinity are chosen last. Returns int32 indices
    `(B, N)`, sorted by descending log-probability.

    Source: Post & Vilar 2018, §3.3.
    """
    count = log_probabilities.shape[1]
    columns = ops.arange(count, dtype="int32")
    own, other = log_probabilities[:, :, None], log_probabilities[:, None, :]
    is_before = (other > own) | (other == own) & (columns < columns[:, None])
    is_before = is_before & (banks[:, None, :] == banks[:, :, None])
    rank_in_bank = ops.sum(ops.cast(is_before, "int32"), axis=-1)
    num_banks = 1 + ops.max(banks)
    turn = rank_in_bank * num_banks + (num_banks - 1 - banks)
    turn = ops.where(log_probabilities > IMPOSSIBLE, turn, count * num_banks)
    _, chosen = ops.top_k(-turn, beam_size)
    _, order = ops.top_k(take_columns(log_probabilities, chosen), beam_size)
    return ops.cast(take_columns(chosen, order), "int32")


def next_required_tokens(ids: Ids, position: Tensor, required_ids: Ids, pad_id: int) -> Any:
    """Returns the next missing token of each sequence, int32 `(B, N, C)`, -1 if it is met."""
    met, lengths = _met_tokens(ids, position, required_ids, pad_id)
    is_next = ops.arange(required_ids.shape[-1], dtype="int32") == met[..., None]  # (B, N, C, W)
    tokens = ops.sum(ops.where(is_next, required_ids[:, None], 0), axis=-1)
    return ops.where(met == lengths, NO_TOKEN, tokens)


def banks_of(ids: Ids, position: Tensor, required_ids: Ids, pad_id: int) -> Any:
    """Returns the bank of each hypothesis `(B, M, 1 + L)`, int32 `(B, M)`."""
    met, lengths = _met_tokens(ids, position, required_ids, pad_id)
    is_met = met == lengths
    return ops.sum(ops.where(is_met, met, 0), axis=-1) + ops.max(ops.where(is_met, 0, met), axis=-1)


def _met_tokens(ids: Ids, position: Tensor, required_ids: Ids, pad_id: int) -> tuple[Any, Any]:
    """Returns how many tokens of each sequence are met, int32 `(B, N, C)`, and its length.

    The number is the length of a met sequence, k of a sequence in progress, or 0.
    """
    lengths = count_tokens(required_ids, pad_id)[:, None]
    longest, width = ops.shape(ids)[-1], required_ids.shape[-1]
    ids = ops.pad(ids, ((0, 0), (0, 0), (0, width)), constant_values=NO_TOKEN)[:, :, None]
    starts_here: Any = True  # (B, N, C, 1 + L), whether the first tokens are in the hypothesis
    progress: Any = 0
    for offset in range(width):
        is_equal = ids[..., offset : offset + longest] == required_ids[:, None, :, offset, None]
        is_over = (offset >= lengths)[..., None]
        starts_here = ops.logical_and(starts_here, ops.logical_or(is_equal, is_over))
        is_suffix = ops.take(starts_here, _at_least_0(position - offset), axis=-1)
        is_begun = ops.logical_and(is_suffix, offset + 1 < lengths)
        progress = ops.where(is_begun, offset + 1, progress)
    return ops.where(ops.any(starts_here, axis=-1), lengths, progress), lengths


def _continuations(totals: Tensor, required: Ids) -> tuple[Any, ...]:
    """Returns the log-probabilities, parents and new tokens of the candidates, each `(B, M)`."""
    beams = totals.shape[1]
    best, best_tokens = best_token(totals)
    # For a sequence that is met, the most probable token once more: duplicates are removed.
    tokens = ops.where(required == NO_TOKEN, best_tokens[..., None], required)
    of_required = ops.take_along_axis(totals, tokens, axis=-1)
    own = ops.zeros_like(best_tokens) + ops.arange(beams, dtype="int32")
    kinds = [top_k_tokens(totals, 2 * beams), (best, own, best_tokens)]
    kinds += [(of_required[..., c], own, tokens[..., c]) for c in range(required.shape[-1])]
    return tuple(ops.concatenate(parts, axis=1) for parts in zip(*kinds, strict=True))
