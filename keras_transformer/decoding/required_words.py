"""Finds translations that contain required token sequences, by dynamic beam allocation.

Nothing is stored between steps. Each step searches each hypothesis for the required sequences. A
sequence is met if it occurs in the hypothesis. A sequence that is not met is in progress if the
hypothesis ends with the first k tokens of the sequence. If several k are possible, the largest k
counts. Sequences may overlap. If some sequences are equal, one occurrence meets all of them.

The bank of a hypothesis is the number of tokens of all met sequences, plus the largest k of the
sequences in progress. Only hypotheses with the same bank compete with each other. So hypotheses
with more of the required tokens stay in the beam, even if they are less probable.

Shape letters: C required sequences per sentence, W tokens per sequence (padded at the end), M
candidates per sentence.

Source: Post & Vilar 2018, Fast Lexically Constrained Decoding with Dynamic Beam Allocation.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.steps import (
    IMPOSSIBLE,
    best_token,
    count_tokens,
    take_columns,
    top_k_tokens,
    write_at,
)
from keras_transformer.decoding.token_rules import NO_TOKEN, last_tokens


class Candidates(NamedTuple):
    """The M candidates per sentence, each a live (not finished) hypothesis with one more token."""

    ids: Any  # int32 `(B, M, 1 + L)`
    # float32 `(B, M)`; descending if no tokens are required; minus infinity = no candidate
    log_probabilities: Any
    parents: Any  # int32 `(B, M)`, index of the beam that each candidate continues
    banks: Any = None  # int32 `(B, M)`; None without required tokens
    missing: Any = None  # int32 `(B, M)`, number of missing tokens; None without required tokens


def constrained_candidates(
    live_ids: Any,
    live_log_probabilities: Any,
    next_tokens: Any,
    position: Any,
    required_ids: Any,
    *,
    eos_id: int,
    pad_id: int,
) -> Candidates:
    """Continues the live hypotheses with the most probable tokens and with the required tokens.

    There are M = 2N + N + N * C candidates. The first 2N candidates are the 2N most probable
    continuations over all N hypotheses. The next N candidates are the most probable continuation of
    each hypothesis. The last N * C candidates continue each hypothesis with the next token of each
    sequence that is not met. A hypothesis cannot end with eos before all sequences are met. For a
    sentence without required sequences, `allocate_beams` chooses the N most probable continuations.

    `live_ids` and `live_log_probabilities` are fields of `Live`. `next_tokens`, float32 `(B, N,
    V)`, are log-probabilities. `required_ids` are int32 `(B, C, W)`. Empty sequences are ignored.

    Source: Post & Vilar 2018, algorithm 2.
    """
    required = next_required_tokens(live_ids, position, required_ids, pad_id)
    is_incomplete = ops.any(required != NO_TOKEN, axis=-1)[..., None]
    is_eos = ops.arange(next_tokens.shape[-1], dtype="int32") == eos_id
    next_tokens = ops.where(ops.logical_and(is_incomplete, is_eos), IMPOSSIBLE, next_tokens)
    totals = live_log_probabilities[..., None] + next_tokens
    log_probabilities, parents, tokens = _continuations(totals, required)
    is_duplicate = _is_duplicate(parents * next_tokens.shape[-1] + tokens)
    ids = write_at(take_columns(live_ids, parents), tokens, position + 1)
    banks = banks_of(ids, position + 1, required_ids, pad_id)
    return Candidates(
        ids=ids,
        log_probabilities=ops.where(is_duplicate, IMPOSSIBLE, log_probabilities),
        parents=parents,
        banks=banks,
        missing=ops.sum(count_tokens(required_ids, pad_id), axis=-1)[:, None] - banks,
    )


def allocate_beams(log_probabilities: Any, banks: Any, beam_size: int) -> Any:
    """Chooses N candidates of each sentence, one from each bank in turn.

    The docstring of this module defines banks. First the function takes the most probable candidate
    of each bank, from the highest bank to the lowest. Then it takes the second most probable
    candidate of each bank, and so on. Banks with too few candidates are skipped.

    `log_probabilities` and `banks` are `(B, M)`. Candidates with the log-probability minus infinity
    are chosen last. Returns int32 indices `(B, N)`, sorted by descending log-probability.

    Source: Post & Vilar 2018, §3.3.
    """
    count = log_probabilities.shape[1]
    columns = ops.arange(count, dtype="int32")
    own, other = log_probabilities[:, :, None], log_probabilities[:, None, :]
    is_before = ops.logical_or(
        other > own, ops.logical_and(other == own, columns < columns[:, None])
    )
    is_before = ops.logical_and(is_before, banks[:, None, :] == banks[:, :, None])
    rank_in_bank = ops.sum(ops.cast(is_before, "int32"), axis=-1)
    num_banks = 1 + ops.max(banks)
    turn = rank_in_bank * num_banks + (num_banks - 1 - banks)
    turn = ops.where(log_probabilities > IMPOSSIBLE, turn, count * num_banks)
    _, chosen = ops.top_k(-turn, beam_size)
    _, order = ops.top_k(take_columns(log_probabilities, chosen), beam_size)
    return ops.cast(take_columns(chosen, order), "int32")


def next_required_tokens(ids: Any, position: Any, required_ids: Any, pad_id: int) -> Any:
    """Returns the next missing token of each sequence, int32 `(B, N, C)`.

    For met sequences, the result is -1.
    """
    met, lengths = _met_tokens(ids, position, required_ids, pad_id)
    is_next = ops.arange(required_ids.shape[-1], dtype="int32") == met[..., None]  # (B, N, C, W)
    tokens = ops.sum(ops.where(is_next, required_ids[:, None], 0), axis=-1)
    return ops.where(met == lengths, NO_TOKEN, tokens)


def banks_of(ids: Any, position: Any, required_ids: Any, pad_id: int) -> Any:
    """Returns the bank of each hypothesis (see the module's docstring), int32 `(B, M)`.

    `ids`, int32 `(B, M, 1 + L)`, are the tokens of the hypotheses, bos first.
    """
    met, lengths = _met_tokens(ids, position, required_ids, pad_id)
    is_met = met == lengths
    return ops.sum(ops.where(is_met, met, 0), axis=-1) + ops.max(ops.where(is_met, 0, met), axis=-1)


def _met_tokens(ids: Any, position: Any, required_ids: Any, pad_id: int) -> tuple[Any, Any]:
    """Returns how many tokens of each sequence are met, int32 `(B, N, C)`, and its length.

    For a met sequence, the number is the length of the sequence, int32 `(B, 1, C)`. For a sequence
    in progress, it is k (see the module's docstring). Otherwise, it is 0.
    """
    lengths = count_tokens(required_ids, pad_id)
    occurs = _occurs(ids, required_ids, lengths)
    lengths = lengths[:, None]
    progress = ops.zeros_like(ops.cast(occurs, "int32"))
    for size in range(1, required_ids.shape[-1]):
        suffix = last_tokens(ids, position, size)[:, :, None]  # (B, N, 1, size)
        is_suffix = ops.all(suffix == required_ids[:, None, :, :size], axis=-1)
        progress = ops.where(ops.logical_and(is_suffix, size < lengths), size, progress)
    return ops.where(occurs, lengths, progress), lengths


def _occurs(ids: Any, required_ids: Any, lengths: Any) -> Any:
    """Returns a bool mask `(B, N, C)`, True if a sequence occurs in a hypothesis or is empty."""
    width = required_ids.shape[-1]
    longest = ops.shape(ids)[-1]
    ids = ops.pad(ids, ((0, 0), (0, 0), (0, width)), constant_values=NO_TOKEN)
    starts_here = ops.ones((1, 1, 1, 1), "bool")
    for offset in range(width):
        token = required_ids[:, None, :, offset, None]  # (B, 1, C, 1)
        is_equal = ids[:, :, None, offset : offset + longest] == token
        is_over = (offset >= lengths)[:, None, :, None]
        starts_here = ops.logical_and(starts_here, ops.logical_or(is_equal, is_over))
    return ops.any(starts_here, axis=-1)


def _continuations(totals: Any, required: Any) -> tuple[Any, Any, Any]:
    """Returns the log-probabilities, parents and new tokens of the candidates, each `(B, M)`.

    The candidates can include duplicates.
    """
    beams = totals.shape[1]
    best, best_tokens = best_token(totals)
    is_required = required != NO_TOKEN
    tokens = ops.where(is_required, required, 0)
    of_required = ops.take_along_axis(totals, tokens, axis=-1)
    of_required = ops.where(is_required, of_required, IMPOSSIBLE)
    own = ops.zeros_like(best_tokens) + ops.arange(beams, dtype="int32")
    kinds = [top_k_tokens(totals, 2 * beams), (best, own, best_tokens)]
    kinds += [(of_required[..., c], own, tokens[..., c]) for c in range(required.shape[-1])]
    found = [ops.concatenate(parts, axis=1) for parts in zip(*kinds, strict=True)]
    return found[0], found[1], found[2]


def _is_duplicate(keys: Any) -> Any:
    """Returns a bool mask `(B, M)`, True where an earlier column of `keys` has the same key."""
    columns = ops.arange(keys.shape[1], dtype="int32")
    is_before = columns < columns[:, None]
    return ops.any(ops.logical_and(keys[:, :, None] == keys[:, None, :], is_before), axis=-1)
