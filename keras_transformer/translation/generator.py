"""Defines `Generator`, which continues texts with a language model."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer._progress import Bar, compiling
from keras_transformer.decoding.options import DecodingOptions, SamplingOptions
from keras_transformer.decoding.sampling import random_numbers
from keras_transformer.decoding.search import NO_ID, AdaptiveSearch, make_strategy
from keras_transformer.decoding.steps import Request
from keras_transformer.errors import check_is_list
from keras_transformer.translation.buckets import length_batches, padded
from keras_transformer.translation.hypothesis import Hypothesis, hypotheses

# Maximum number of tokens of a continuation if the options have no `max_length`.
DEFAULT_LENGTH = 50


class Generator:
    """Continues texts (prompts) with a language model, by sampling or beam search.

    Each prompt is read in one pass. Prompts are sorted by length and grouped into batches of few
    different shapes, because each shape is compiled. A continuation does not depend on the other
    prompts. Every call uses the model's current weights.

    Example:

    >>> generator = Generator(model, tokenizer)
    >>> (found,) = generator.generate(["To be, "], SamplingOptions(num_samples=2, top_k=40))
    >>> print(found[0].text, found[1].text)

    Args:
        model: A `LanguageModel`, or any model that implements `Searchable` with `reads_prompt`
            (`models/protocol.py`), such as an `Ensemble` of language models.
        tokenizer: Object with the methods `encode(text)`, which returns a list of ids, and
            `decode(ids)`, which returns a string.
        eos_id: Id of the token that ends a text, for example `<|endoftext|>`. Defaults to None:
            every continuation then has the maximum length.
        tokens_per_batch: Maximum number of prompt tokens of a batch, padding included and counted
            once per hypothesis. Defaults to 2048.

    Raises:
        ValueError: If the model is not a language model, if `eos_id` is not in its vocabulary, or
            if `tokens_per_batch` is below 1.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        eos_id: int | None = None,
        tokens_per_batch: int = 2048,
    ) -> None:
        if not getattr(model, "reads_prompt", False):
            raise ValueError(
                "`Generator` needs a language model. For a sequence-to-sequence model, use "
                f"`Translator`. Received: model={type(model).__name__}"
            )
        vocabulary_size = getattr(model, "vocabulary_size", math.inf)
        if eos_id is not None and not 0 <= eos_id < vocabulary_size:
            raise ValueError(
                f"`eos_id` must be None or from 0 to {vocabulary_size - 1}. Received: "
                f"eos_id={eos_id}"
            )
        if tokens_per_batch < 1:
            raise ValueError(f"`tokens_per_batch` must be at least 1. Received: {tokens_per_batch}")
        self._vocabulary_size = vocabulary_size
        self.model = model
        self.tokenizer = tokenizer
        self.eos_id = eos_id
        self.tokens_per_batch = tokens_per_batch
        self._search = AdaptiveSearch(model)

    def generate(
        self,
        prompts: Sequence[str],
        options: DecodingOptions | None = None,
        seed: int = 0,
        progress: bool = False,
    ) -> list[list[Hypothesis]]:
        """Returns continuations of each prompt.

        Args:
            prompts: Any number of strings, each of at least one token.
            options: `SamplingOptions`, or `SearchOptions` for beam search. `max_length` is the
                maximum number of tokens of a continuation, 50 by default. Defaults to
                `SamplingOptions()`, which means one sample from the model's unchanged distribution.
            seed: Integer from 0 to 2**64 - 1, for sampling. Sample n of prompt i depends only on
                `seed`, n and i. Defaults to 0.
            progress: Whether to show a progress bar. Defaults to False.

        Returns:
            One list per prompt, in the same order, with `num_samples` or `n_best` hypotheses. Their
            texts, ids and lengths are without the prompt.

        Raises:
            TypeError: If `prompts` is a single string.
            ValueError: If `eos_id` is the model's `pad_id`. If a prompt has no tokens, or an id
                that is not in the model's vocabulary, such as that of another tokenizer, or if a
                prompt and its longest continuation together have more than `model.max_length` + 1
                tokens. (The model does not read the last token.) If there is a coverage penalty.
        """
        check_is_list(prompts=prompts)
        options = options or SamplingOptions()
        strategy = make_strategy(self.model, options, bos_id=NO_ID, eos_id=self._eos_id)
        length = options.max_length or max(DEFAULT_LENGTH, options.min_length)
        ids = [list(self.tokenizer.encode(prompt)) for prompt in prompts]
        self._check(ids, length)
        plan = self._search.plan(len(ids), strategy)
        batches = length_batches(
            [len(own) for own in ids],
            max(1, self.tokens_per_batch // strategy.num_beams),
            self.model.max_length - length + 1,
            plan.shapes,
        )
        found: list[list[Hypothesis]] = [[]] * len(ids)
        with Bar("generating", compiling(), total=len(ids), disable=not progress) as bar:
            for indices, rows, width in batches:
                source_ids = padded([ids[i] for i in indices], rows, width, self.model.pad_id)
                max_lengths = np.ones(rows, "int32")  # Padding rows end after one token.
                max_lengths[: len(indices)] = length
                numbers = None
                if isinstance(options, SamplingOptions):
                    drawn = random_numbers(seed, indices, options.num_samples, length)
                    numbers = np.pad(drawn, ((0, rows - len(indices)), (0, 0), (0, 0)))
                request = Request(source_ids, max_lengths, random_numbers=numbers)
                result = self._search(request, strategy, length, plan)
                for row, index in enumerate(indices):
                    found[index] = hypotheses(result, row, self._eos_id, self._decode)
                bar.update(len(indices))
        return found

    @property
    def _eos_id(self) -> int:
        return NO_ID if self.eos_id is None else self.eos_id

    def _decode(self, pieces: list[list[int]]) -> list[str]:
        return [self.tokenizer.decode(ids) for ids in pieces]

    def _check(self, prompts: list[list[int]], length: int) -> None:
        longest = self.model.max_length - length + 1
        for index, ids in enumerate(prompts):
            if not 1 <= len(ids) <= longest:
                raise ValueError(
                    "A prompt must have at least one token, and prompt and continuation must have "
                    f"at most {self.model.max_length + 1:,} tokens together. Received: prompt "
                    f"{index} with {len(ids):,} tokens, and a max_length of {length:,} tokens for "
                    "its continuation"
                )
            if not (0 <= min(ids) and max(ids) < self._vocabulary_size):
                raise ValueError(
                    "The ids of a prompt must be in the model's vocabulary, from 0 to "
                    f"{self._vocabulary_size - 1}: is the tokenizer that of the model? Received: "
                    f"prompt {index} with ids from {min(ids)} to {max(ids)}"
                )
            if self.model.pad_id in ids:
                raise ValueError(
                    "A prompt must not contain the model's id of padding. If every id is a token "
                    f"of the text, create the model with pad_id=-1. Received: prompt {index} with "
                    f"the id {self.model.pad_id}"
                )
