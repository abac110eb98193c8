"""Length and coverage penalties, by which beam search compares finished hypotheses."""

from typing import Any

from keras import ops

from keras_transformer.decoding.options import LengthPenaltyForm

# Attention that a source token never got counts as this much, so that its logarithm is finite.
LEAST_COVERAGE = 1e-6


def length_divisor(length: Any, length_penalty: float, form: LengthPenaltyForm = "wu") -> Any:
    """Returns what log-probabilities are divided by, float32 of the shape of `length`.

    Args:
        length: int tensor, tokens of a hypothesis, eos included.
        length_penalty: Exponent alpha, at least 0. The larger, the longer the translations; 0
            compares log-probabilities.
        form: `"wu"`: ((5 + length) / 6) ** alpha. `"power"`: length ** alpha, as in CTranslate2 and
            Hugging Face; with alpha 1 the mean log-probability of a token. Defaults to `"wu"`.

    Source: Wu et al. 2016, eq. 14.
    """
    length = ops.cast(length, "float32")
    return ops.power((5.0 + length) / 6.0 if form == "wu" else length, length_penalty)


def coverage_score(coverage: Any, padding_mask: Any) -> Any:
    """Returns how little of the source was left out, float32 `(B, N)`, at most 0.

    The sum over the source tokens of log(min(attention that the token got, 1)).

    Args:
        coverage: float32 `(B, N, S)`, the attention that each source token got from all tokens of
            a hypothesis.
        padding_mask: bool `(B, S)`, True = real source token.

    Source: Wu et al. 2016, eq. 14.
    """
    logarithms = ops.log(ops.clip(coverage, LEAST_COVERAGE, 1.0))
    return ops.sum(ops.where(padding_mask[:, None, :], logarithms, 0.0), axis=-1)
