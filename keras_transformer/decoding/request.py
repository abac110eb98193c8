"""What a search is asked, and what it returns."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

from keras import ops

from keras_transformer._backend.types import Ids, Tensor
from keras_transformer.decoding.next_tokens import TokenRule, count_tokens
from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.layers.attention.cache import pad


@dataclass(frozen=True)
class SearchStrategy:
    """What beam search and sampling have in common. See `make_strategy` for the fields.

    `BeamSearch` documents the methods that both define.
    """

    options: Any
    rules: tuple[TokenRule, ...]
    num_beams: Any
    num_results: Any
    bos_id: int
    eos_id: int
    pad_id: int

    in_python = False  # whether Python calls `advance` for each token, even if backends have loops

    def ends(self, tokens: Ids, position: Tensor, request: "Request") -> Any:
        """Returns a bool mask, True for hypotheses with eos or with the maximum length."""
        return ops.logical_or(tokens == self.eos_id, position >= request.max_lengths[:, None])

    def empty_ids(self, rows: tuple[Any, ...], max_length: Any) -> Any:
        """Returns int32 ids `(*rows, 1 + max_length)` with bos first and then padding."""
        bos = ops.full((*rows, 1), self.bos_id, dtype="int32")
        return ops.concatenate([bos, ops.full((*rows, max_length), self.pad_id, "int32")], axis=-1)

    def widen_ids(self, ids: Ids, max_length: int) -> Any:
        """Returns ids `(B, N, 1 + L)` with room for `max_length` tokens."""
        return pad(ids, 2, 1 + max_length - ids.shape[2], self.pad_id)

    def found(
        self, ids: Ids, scores: Tensor, log_probabilities: Tensor, position: Tensor
    ) -> "SearchResult":
        """Returns hypotheses without bos. Their ids are padding if the score is minus infinity."""
        ids = ops.where((scores > IMPOSSIBLE)[:, :, None], ids[:, :, 1:], self.pad_id)
        lengths = count_tokens(ids, self.pad_id)
        return SearchResult(ids, scores, log_probabilities, lengths, position)


class Request(NamedTuple):
    """The input of a search. Fields that are None have no effect.

    Attributes:
        source_ids: int32 `(B, S)`, padded at the end, or float features `(B, S, F)`.
        max_lengths: int32 `(B,)`, maximum length of each sentence's hypotheses, eos included.
        prefix_ids: int32 `(B, P)`, tokens that every hypothesis begins with, padded at the end.
        forbidden_ids: int32 `(B, C, W)`, padded at the end. The hypotheses of a sentence must not
            contain any of its C token sequences.
        required_ids: int32 `(B, C, W)`, padded at the end. The hypotheses of a sentence must
            contain all of its C token sequences, see `token_rules`. If a hypothesis is truncated
            at its maximum length, its score is reduced by 1,000 for each missing required token.
            Beam search only.
        beam_sizes: int32 `(B,)`, number of beams of each sentence, from 1 to the search's
            `beam_size`. A sentence with fewer beams than `n_best` has empty hypotheses at the end.
            Beam search only, and not together with `required_ids`.
        length_penalties: float32 `(B,)`, one exponent per sentence, used instead of the option
            `length_penalty`. Beam search only.
        random_numbers: float32 `(B, N, L)` in [0, 1), one number per token of each sample. The
            function `random_numbers` draws them. Sampling only.
        shortlist: int32 `(B, K)`, the only tokens that each sentence's hypotheses may contain, in
            any order. Padding is ignored. The search adds the tokens of the other fields and all
            ids up to the largest id of pad, bos and eos. Can't be combined with `rules`. Needs a
            model with `limit_vocabulary`.
    """

    source_ids: Any
    max_lengths: Any = None
    prefix_ids: Any = None
    forbidden_ids: Any = None
    required_ids: Any = None
    beam_sizes: Any = None
    length_penalties: Any = None
    random_numbers: Any = None
    shortlist: Any = None

    def as_tensors(self, *max_lengths: Any) -> "Request":
        """Returns the request as tensors, and None for a constraint without any token.

        The maximum length of a sentence becomes the minimum of its own and of `max_lengths`, which
        are limits for all sentences, or None.
        """
        features = ("source_ids",) if ops.ndim(self.source_ids) > 2 else ()
        floats = ("length_penalties", "random_numbers", *features)
        tensors = {
            name: ops.convert_to_tensor(x, dtype="float32" if name in floats else "int32")
            for name, x in self._asdict().items()
            if x is not None
        }
        for name in ("prefix_ids", "forbidden_ids", "required_ids"):
            if name in tensors and 0 in tensors[name].shape[1:]:
                del tensors[name]
        shape = ops.shape(tensors["source_ids"])[:1]
        limits = [ops.full(shape, x, dtype="int32") for x in max_lengths if x is not None]
        limits += [tensors["max_lengths"]] if "max_lengths" in tensors else []
        return Request(**{**tensors, "max_lengths": functools.reduce(ops.minimum, limits)})


class SearchResult(NamedTuple):
    """N hypotheses per sentence, found by a search. Beam search sorts the hypotheses, best first.

    Attributes:
        ids: int32 `(B, N, L)`, without bos, padded at the end. Each hypothesis ends with eos,
            unless it was truncated at its maximum length.
        scores: float32 `(B, N)`. In beam search, a score is the log-probability divided by the
            length penalty, plus the coverage penalty. In sampling, it is the log-probability.
        log_probabilities: float32 `(B, N)`, nats per hypothesis, eos included.
        lengths: int32 `(B, N)`, number of tokens of each hypothesis, eos included.
        steps: int32 `()`, number of decoding steps.
    """

    ids: Any
    scores: Any
    log_probabilities: Any
    lengths: Any
    steps: Any
