"""Defines `Generator`, which continues texts with a language model."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer._backend.compile_function import compiling
from keras_transformer._progress import Bar
from keras_transformer.capabilities import Capabilities
from keras_transformer.decoding.options import SamplingOptions, SearchOptions
from keras_transformer.decoding.token_rules import NO_TOKEN
from keras_transformer.errors import check_is_list
from keras_transformer.recipe.settings import LANGUAGE_MODEL
from keras_transformer.runs.run import Checkpoint, Run, opened_runs
from keras_transformer.translation.hypothesis import Hypothesis
from keras_transformer.translation.list_search import ListSearch
from keras_transformer.translation.open_run import open_model

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
            once per hypothesis.
        bos_id: Id of the token before each prompt, with which the texts for training began.
            Defaults to None, which means none.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        eos_id: int | None = None,
        tokens_per_batch: int = 2048,
        bos_id: int | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.tokens_per_batch = tokens_per_batch
        self._begin = [] if bos_id is None else [bos_id]
        end_id = NO_TOKEN if eos_id is None else eos_id
        self._search = ListSearch(model, NO_TOKEN, end_id, self._decode)

    @classmethod
    def from_run(cls, run: Run | str | Path, checkpoint: Checkpoint | None = None) -> "Generator":
        """Opens the language model that a run has trained. For `checkpoint`, see `open_model`.

        Example:

        >>> Generator.from_run("runs/shakespeare").write(["ROMEO:"], length=200)
        """
        (opened,) = opened_runs(run, LANGUAGE_MODEL)
        tokenizer = opened.tokenizer()
        model = open_model(opened, checkpoint, for_inference=True, tokenizer=tokenizer)
        return cls(model, tokenizer, tokenizer.eos_id, bos_id=tokenizer.bos_id)

    def write(
        self,
        prompts: Sequence[str],
        length: int,
        options: SamplingOptions | None = None,
        seed: int = 0,
    ) -> list[str]:
        """Returns a sample of a text that begins with each prompt, with `length` further tokens.

        A text can be longer than `model.max_length`: the last half of what the model can read is
        then the next prompt. `num_samples` and the lengths of `options` have no effect.
        """
        texts, added = self._encode(prompts), [list[int]() for _ in prompts]
        of_write = {"num_samples": 1, "min_length": 1, "max_length": None}
        options = (options or SamplingOptions()).replace(**of_write)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for _, group in itertools.groupby(by_length, lambda i: len(texts[i])):
            self._continue(texts, added, [*group], length, options, seed)
        return [x + y for x, y in zip(prompts, self._decode(added), strict=True)]

    def _continue(
        self,
        texts: list[list[int]],
        added: list[list[int]],
        going: list[int],
        length: int,
        options: SamplingOptions,
        seed: int,
    ) -> None:
        """Adds tokens to the texts of these places, which have equal lengths."""
        most, turn = self.model.max_length, 0
        half = max(1, most // 2 - len(self._begin))
        fits = len(self._begin) + len(texts[going[0]]) <= most
        while going:
            kept = 0 if fits and turn == 0 else -half
            ids = [(self._begin + (texts[i] + added[i])[kept:])[-most:] for i in going]
            room = min(length, most + 1 - len(ids[0]))
            limits, number = self._limits(room, options), seed ^ (turn << 32)
            found = self._search(
                ids, options, **limits, advance=len, seed=number, sample_indices=going
            )
            for i, (hypothesis,) in zip(going, found, strict=True):
                added[i] += hypothesis.ids[: length - len(added[i])]
            ended = {i for i, (x,) in zip(going, found, strict=True) if len(x.ids) < room}
            going = [i for i in going if i not in ended and len(added[i]) < length]
            turn += 1

    def generate(
        self,
        prompts: Sequence[str],
        options: SearchOptions | SamplingOptions | None = None,
        seed: int = 0,
        progress: bool = False,
    ) -> list[list[Hypothesis]]:
        """Returns continuations of each prompt.

        Args:
            prompts: Any number of strings, each of at least one token.
            options: `SamplingOptions`, or `SearchOptions` for beam search. `max_length` is the
                maximum number of tokens of a continuation, 50 by default. Defaults to one sample
                from the model's unchanged distribution.
            seed: Integer from 0 to 2**64 - 1, for sampling. Sample n of prompt i depends only on
                `seed`, n and i.
            progress: Whether to show a progress bar.

        Returns:
            One list per prompt, in the same order, with `num_samples` or `n_best` hypotheses. Their
            texts, ids and lengths are without the prompt.

        Raises:
            ValueError: If `eos_id` is the model's `pad_id`, or there is a coverage penalty. If a
                prompt has no tokens, or an id that is not in the model's vocabulary. If a prompt
                and its longest continuation have more than `model.max_length` + 1 tokens. (The
                model does not read the last token.)
        """
        options = options or SamplingOptions()
        length = options.max_length or max(DEFAULT_LENGTH, options.min_length)
        ids = [self._begin + x for x in self._encode(prompts, self.model.max_length - length + 1)]
        with Bar("generating", compiling(self.model), total=len(ids), disable=not progress) as bar:
            return self._search(
                ids,
                options,
                **self._limits(length, options),
                advance=lambda indices: bar.update(len(indices)),
                seed=seed,
                sample_indices=range(len(ids)),
            )

    def _encode(self, prompts: Sequence[str], longest: float = math.inf) -> list[list[int]]:
        check_is_list(prompts=prompts)
        ids = [list(self.tokenizer.encode(prompt)) for prompt in prompts]
        pad_id, size = self.model.pad_id, Capabilities.of(self.model).vocabulary_size or math.inf
        begin, most = len(self._begin), self.model.max_length + 1
        for index, prompt in enumerate(ids):
            is_known = all(0 <= id < size and id != pad_id for id in prompt)
            if not (1 <= begin + len(prompt) <= longest and is_known):
                raise ValueError(
                    f"A prompt must have {1 - begin} to {longest - begin:,} tokens: with its "
                    f"continuation, at most {most - begin:,}. Its ids must be in the model's "
                    f"vocabulary, from 0 to {size - 1}, without the id of padding, {pad_id}. (For "
                    "a text with this id, create the model with pad_id=-1.) "
                    f"Received: prompt {index} with {len(prompt):,} tokens {prompt!r:.80}"
                )
        return ids

    def _limits(self, length: int, options: SearchOptions | SamplingOptions) -> dict[str, Any]:
        """Returns the arguments of a search for continuations of `length` tokens."""
        limits = {"limit": lambda _: length, "longest": self.model.max_length - length + 1}
        beams = self._search.strategy(options).num_beams
        return {**limits, "tokens_per_batch": self.tokens_per_batch // beams}

    def _decode(self, pieces: list[list[int]]) -> list[str]:
        return [self.tokenizer.decode(ids) for ids in pieces]
