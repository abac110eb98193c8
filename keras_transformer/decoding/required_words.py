"""Token sequences that must appear in a translation, by dynamic beam allocation.

Nothing is carried from step to step: how far a hypothesis is with its sequences is read off its
ids. A sequence is met once it occurs in the hypothesis; in progress is the longest proper prefix of
it with which the hypothesis ends. Sequences may overlap, and one occurrence meets all of the same.

The bank of a hypothesis is the number of tokens of its sequences that are met, and of the longest
one in progress. Hypotheses compete within their bank, so that those which have more of what is
required, and are less probable for it, are not crowded out.

Source: Post & Vilar 2018, Fast Lexically Constrained Decoding with Dynamic Beam Allocation.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.steps import IMPOSSIBLE, best_token, write_at
from keras_transformer.decoding.token_rules import last_tokens
from keras_transformer.decoding.top_k import take_columns, top_k_tokens

# Stands for the next token of a sequence that is met, or that is none.
NOTHING_WANTED = -1


class ConstrainedCandidates(NamedTuple):
    """Continuations of the live hypotheses by one token, M of them per sentence, in no order.

    Attributes:
        ids: int32 `(B, M, 1 + L)`.
        log_probabilities: float32 `(B, M)`; minus infinity where there is none, or the same one
            stands before.
        parents: int32 `(B, M)`, the beams that they continue.
        banks: int32 `(B, M)`; as many as `num_required_tokens` once all sequences are met.
    """

    ids: Any
    log_probabilities: Any
    parents: Any
    banks: Any


def constrained_candidates(
    live_ids: Any,
    live_log_probabilities: Any,
    next_tokens: Any,
    position: Any,
    required_ids: Any,
    *,
    eos_id: int = 3,
    pad_id: int = 0,
) -> ConstrainedCandidates:
    """Continues the live hypotheses of each sentence by what is probable and what is required.

    The candidates are the 2N most probable continuations, the most probable one of every
    hypothesis, and every hypothesis with the next token of each sequence that it has not met:
    M = 2N + N + NC. Eos is possible once all sequences are met. For a sentence without sequences
    the first N of `allocate_beams` are the N most probable continuations.

    Args:
        live_ids: int32 `(B, N, 1 + L)`, bos first, padding where nothing is decoded yet.
        live_log_probabilities: float32 `(B, N)`, minus infinity = no hypothesis.
        next_tokens: float32 `(B, N, V)`, log-probabilities of what may follow.
        position: int32 `()`, tokens decoded so far.
        required_ids: int32 `(B, C, W)`, C sequences of up to W tokens for each sentence, padded at
            the end; all padding = no sequence.
        eos_id: Id of the end of a sentence. Defaults to 3.
        pad_id: Id of padding. Defaults to 0.

    Returns:
        `ConstrainedCandidates` of `position + 1` tokens.

    Source: Post & Vilar 2018, algorithm 2.
    """
    required_ids = ops.convert_to_tensor(required_ids, dtype="int32")
    wanted = wanted_tokens(live_ids, position, required_ids, pad_id)
    is_wanting = ops.any(wanted != NOTHING_WANTED, axis=-1)[..., None]
    is_eos = ops.arange(next_tokens.shape[-1], dtype="int32") == eos_id
    next_tokens = ops.where(ops.logical_and(is_wanting, is_eos), IMPOSSIBLE, next_tokens)
    totals = live_log_probabilities[..., None] + next_tokens
    log_probabilities, parents, tokens = _continuations(totals, wanted)
    is_repeated = _is_repeated(parents * next_tokens.shape[-1] + tokens)
    ids = write_at(take_columns(live_ids, parents), tokens, position + 1)
    return ConstrainedCandidates(
        ids=ids,
        log_probabilities=ops.where(is_repeated, IMPOSSIBLE, log_probabilities),
        parents=parents,
        banks=count_met(ids, position + 1, required_ids, pad_id),
    )


def allocate_beams(log_probabilities: Any, banks: Any, beam_size: int) -> Any:
    """Chooses N candidates of each sentence, turn by turn from all its banks.

    First the most probable one of each bank, from the highest bank down, then the second of each,
    and so on, so that the beams of a bank with few candidates go to the others.

    Args:
        log_probabilities: float32 `(B, M)`, minus infinity = not to be chosen.
        banks: int32 `(B, M)`.
        beam_size: Candidates N to choose, at most M.

    Returns:
        int32 `(B, N)`, the chosen ones by descending log-probability. Those that there is nobody
        left for are candidates of minus infinity.

    Source: Post & Vilar 2018, §3.3, with the beams given out one by one.
    """
    count = log_probabilities.shape[1]
    columns = ops.arange(count, dtype="int32")
    mine, other = log_probabilities[:, :, None], log_probabilities[:, None, :]
    is_before = ops.logical_or(
        other > mine, ops.logical_and(other == mine, columns < columns[:, None])
    )
    is_before = ops.logical_and(is_before, banks[:, None, :] == banks[:, :, None])
    rank_in_bank = ops.sum(ops.cast(is_before, "int32"), axis=-1)
    num_banks = 1 + ops.max(banks)
    turn = rank_in_bank * num_banks + (num_banks - 1 - banks)
    turn = ops.where(log_probabilities > IMPOSSIBLE, turn, count * num_banks)
    _, chosen = ops.top_k(-turn, beam_size)
    _, order = ops.top_k(take_columns(log_probabilities, chosen), beam_size)
    return ops.cast(take_columns(chosen, order), "int32")


def wanted_tokens(ids: Any, position: Any, required_ids: Any, pad_id: int) -> Any:
    """The next token of each sequence that a hypothesis has not met.

    Args:
        ids: int32 `(B, N, 1 + L)`, bos first, padding where nothing is decoded yet.
        position: int32 `()`, tokens decoded so far.
        required_ids: int32 `(B, C, W)`, padded at the end.
        pad_id: Id of padding.

    Returns:
        int32 `(B, N, C)`; -1 where the sequence is met, or all padding.
    """
    lengths = _lengths(required_ids, pad_id)
    met = _met_tokens(ids, position, required_ids, lengths)
    is_next = ops.arange(required_ids.shape[-1], dtype="int32") == met[..., None]  # (B, N, C, W)
    tokens = ops.sum(ops.where(is_next, required_ids[:, None], 0), axis=-1)
    return ops.where(met == lengths[:, None], NOTHING_WANTED, tokens)


def count_met(ids: Any, position: Any, required_ids: Any, pad_id: int) -> Any:
    """The bank of each hypothesis: tokens of the sequences met, and of the longest in progress.

    Args:
        ids: int32 `(B, M, 1 + L)`, bos first, padding where nothing is decoded yet.
        position: int32 `()`, tokens decoded so far.
        required_ids: int32 `(B, C, W)`, padded at the end.
        pad_id: Id of padding.

    Returns:
        int32 `(B, M)`.
    """
    lengths = _lengths(required_ids, pad_id)
    met = _met_tokens(ids, position, required_ids, lengths)
    is_met = met == lengths[:, None]
    return ops.sum(ops.where(is_met, met, 0), axis=-1) + ops.max(ops.where(is_met, 0, met), axis=-1)


def num_required_tokens(required_ids: Any, pad_id: int) -> Any:
    """The bank, int32 `(B,)`, of hypotheses that have met all sequences `(B, C, W)`."""
    return ops.sum(_lengths(required_ids, pad_id), axis=-1)


def _lengths(required_ids: Any, pad_id: int) -> Any:
    return ops.sum(ops.cast(required_ids != pad_id, "int32"), axis=-1)


def _met_tokens(ids: Any, position: Any, required_ids: Any, lengths: Any) -> Any:
    """How many tokens `(B, N, C)` of each sequence are met: all of them, or those in progress."""
    occurs = _occurs(ids, required_ids, lengths)
    lengths = lengths[:, None]
    progress = ops.zeros_like(ops.cast(occurs, "int32"))
    for size in range(1, required_ids.shape[-1]):
        suffix = last_tokens(ids, position, size)[:, :, None]  # (B, N, 1, size)
        ends_so = ops.all(suffix == required_ids[:, None, :, :size], axis=-1)
        progress = ops.where(ops.logical_and(ends_so, size < lengths), size, progress)
    return ops.where(occurs, lengths, progress)


def _occurs(ids: Any, required_ids: Any, lengths: Any) -> Any:
    """Whether each sequence occurs in each hypothesis, bool `(B, N, C)`; one of no tokens does."""
    width = required_ids.shape[-1]
    longest = ids.shape[-1]
    ids = ops.pad(ids, ((0, 0), (0, 0), (0, width)), constant_values=NOTHING_WANTED)
    starts_here = ops.ones((1, 1, 1, 1), "bool")
    for offset in range(width):
        token = required_ids[:, None, :, offset, None]  # (B, 1, C, 1)
        is_equal = ids[:, :, None, offset : offset + longest] == token
        is_over = (offset >= lengths)[:, None, :, None]
        starts_here = ops.logical_and(starts_here, ops.logical_or(is_equal, is_over))
    return ops.any(starts_here, axis=-1)


def _continuations(totals: Any, wanted: Any) -> tuple[Any, Any, Any]:
    """Log-probabilities, parents and tokens `(B, M)` of the candidates, with repetitions."""
    beams = totals.shape[1]
    best, best_tokens = best_token(totals)
    is_wanted = wanted != NOTHING_WANTED
    tokens = ops.where(is_wanted, wanted, 0)
    of_wanted = ops.take_along_axis(totals, tokens, axis=-1)
    of_wanted = ops.where(is_wanted, of_wanted, IMPOSSIBLE)
    columns = ops.arange(beams, dtype="int32")
    parents = [ops.zeros_like(best_tokens) + columns, ops.zeros_like(wanted) + columns[:, None]]
    kinds = (
        top_k_tokens(totals, 2 * beams),
        (best, parents[0], best_tokens),
        *((of_wanted[..., c], parents[1][..., c], tokens[..., c]) for c in range(wanted.shape[-1])),
    )
    log_probabilities, parents, tokens = (
        ops.concatenate(parts, axis=1) for parts in zip(*kinds, strict=True)
    )
    return log_probabilities, parents, tokens


def _is_repeated(keys: Any) -> Any:
    """Whether the same key `(B, M)` stands further left."""
    columns = ops.arange(keys.shape[1], dtype="int32")
    is_before = columns < columns[:, None]
    return ops.any(ops.logical_and(keys[:, :, None] == keys[:, None, :], is_before), axis=-1)
