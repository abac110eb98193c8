"""Declares the options of beam search and sampling, in Python and on the command line.

Recipes and exports use the same options.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

LengthPenaltyForm = Literal["wu", "power"]
# Upper limit of options that count tokens: it keeps numbers in int32 and arrays in memory.
_MOST_TOKENS = 1_000_000
LARGEST_LENGTH_PENALTY = 10.0
# Log-probability of a token or hypothesis that must not be chosen.
IMPOSSIBLE = float("-inf")


def length_penalty_base(length: Any, form: LengthPenaltyForm) -> Any:
    """Returns the base, whose power `length_penalty` divides scores of `length` tokens."""
    return (5.0 + length) / 6.0 if form == "wu" else length


def descriptions_on_one_line(schema: dict[str, Any]) -> None:
    """Joins the lines of the descriptions in a JSON schema."""
    for key in schema["properties"].values():
        if "description" in key:
            key["description"] = " ".join(key["description"].split())


class DecodingOptions(BaseModel):
    """The options that beam search and sampling share. They are frozen, validated and hashable.

    The options of the command line are generated from these fields.

    Raises:
        ValueError: If an option is unknown, out of range, infinite or not a number.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        json_schema_extra=descriptions_on_one_line,
    )

    max_length: int | None = Field(None, ge=1, le=_MOST_TOKENS)
    """Maximum number of tokens of a translation, with eos. Default: source length plus 50, but at
    least min_length."""
    min_length: int = Field(1, ge=1, le=_MOST_TOKENS)
    """Minimum number of tokens of a translation, with eos."""
    repetition_penalty: float = Field(1.0, ge=1e-6, le=1e6)
    """Factor for the log-probability of tokens that the translation already contains. Values above
    1 make repetition less probable."""
    no_repeat_ngram_size: int = Field(0, ge=0, le=_MOST_TOKENS)
    """Block repeated n-grams of this size. 0 allows repetition."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(
                "`min_length` must be at most `max_length`. "
                f"Received: min_length={self.min_length}, max_length={self.max_length}"
            )
        return self

    def replace(self, **changes: Any) -> Self:
        """Returns a validated copy with some values changed."""
        return type(self)(**{**dict(self), **changes})


class SearchOptions(DecodingOptions):
    """The options of beam search (§6.1). The defaults are the values of the paper.

    Example:

    >>> options = SearchOptions(beam_size=5, length_penalty=1.0, n_best=3)
    >>> Translator(model, tokenizer, options).translate_nbest(["A man sleeps."])

    Source: Vaswani et al. 2017, §6.1; Wu et al. 2016, eq. 14, for both penalties; Vijayakumar et
        al. 2016 for groups of beams.
    """

    beam_size: int = Field(4, ge=1, le=1_000)
    """Number of beams per sentence. 1 is greedy search."""
    length_penalty: float = Field(0.6, ge=0, le=LARGEST_LENGTH_PENALTY)
    """Exponent of the length penalty. Larger values give longer translations."""
    length_penalty_form: LengthPenaltyForm = Field("wu")
    """Formula of the length penalty for n tokens and exponent a. wu: ((5 + n) / 6) ** a. power: n
    ** a, as in CTranslate2."""
    coverage_penalty: float = Field(0.0, ge=0, le=1e6)
    """Weight of the coverage penalty for source tokens that get little attention."""
    n_best: int = Field(1, ge=1)
    """Number of best translations per sentence."""
    num_beam_groups: int = Field(1, ge=1)
    """Number of beam groups in diverse beam search. 1 is normal beam search."""
    diversity_penalty: float = Field(0.0, ge=0, le=1e6)
    """Reduces a token's log-probability by this number for each beam of an earlier group that chose
    the token in the same step. For diverse beam search."""

    @model_validator(mode="after")
    def _check_beams(self) -> Self:
        groups, penalty = self.num_beam_groups, self.diversity_penalty
        is_divided = self.beam_size % groups == 0 and (groups > 1) == (penalty > 0)
        if self.n_best > self.beam_size or not is_divided:
            raise ValueError(
                "`beam_size` must be at least `n_best` and a multiple of `num_beam_groups`, and "
                "`diversity_penalty` above 0 with several groups, otherwise 0. Received: "
                f"n_best={self.n_best}, beam_size={self.beam_size}, num_beam_groups={groups}, "
                f"diversity_penalty={penalty}"
            )
        return self


class SamplingOptions(DecodingOptions):
    """The options of random sampling.

    Example:

    >>> options = SamplingOptions(num_samples=8, temperature=0.8, top_p=0.95)
    >>> Translator(model, tokenizer).sample(["A man sleeps."], options, seed=7)

    Source: Holtzman et al. 2020 for `top_p`; Fan et al. 2018, §5.2, for `top_k`.
    """

    num_samples: int = Field(1, ge=1, le=100_000)
    """Number of independent samples per sentence."""
    temperature: float = Field(1.0, ge=1e-6, le=1e6)
    """Divides the log-probabilities. Values below 1 make samples less random."""
    top_k: int = Field(0, ge=0, le=_MOST_TOKENS)
    """Sample only from the k most probable tokens. 0 means all tokens."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample only from the most probable tokens, until their probabilities add up to this number. 1
    means all tokens."""
