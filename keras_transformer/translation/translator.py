"""Defines `Translator`, which translates strings with a trained model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras import ops

from keras_transformer._backend.compile_function import compile_function
from keras_transformer.data.tokenizer import check_utf8
from keras_transformer.decoding.batch_search import (
    LengthBatch,
    padded,
    pair_batches,
    smallest_power,
)
from keras_transformer.decoding.options import IMPOSSIBLE, SamplingOptions, SearchOptions
from keras_transformer.decoding.sampling import random_numbers
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import UserError
from keras_transformer.models.protocol import vocabulary_sizes
from keras_transformer.runs.run import Checkpoint, Run
from keras_transformer.translation.base_translator import (
    BaseTranslator,
    Progress,
    counted_progress,
    whole_sentences,
)
from keras_transformer.translation.beam_tree import BeamTree, nodes_of, record
from keras_transformer.translation.hypothesis import (
    Hypothesis,
    align_words,
    expected_utilities,
    source_word_indices,
    target_word_indices,
)
from keras_transformer.translation.list_search import ListSearch
from keras_transformer.translation.long_sentences import Overlong, SourcePart
from keras_transformer.translation.open_run import open_ensemble, open_shortlist
from keras_transformer.translation.target_constraints import TargetConstraints

# Part k of sentence i uses the random numbers of the index i + k * PART_STRIDE.
PART_STRIDE = 2**40


class Translator(BaseTranslator):
    """Translates lists of sentences with a trained model (§6.1).

    Sentences are sorted by length and grouped into batches of few different shapes, because each
    shape is compiled. The translation of a sentence does not depend on its batch. Every call uses
    the model's current weights.

    Example:

    >>> translator = Translator(model, tokenizer, SearchOptions(beam_size=5))
    >>> translator.translate(["A man sleeps.", "Two dogs play in the snow."])

    Args:
        model: A `Transformer`, or any model that implements `Searchable` (`models/protocol.py`).
        tokenizer: The `Tokenizer` that the model was trained with.
        options: The options of beam search. If `options.max_length` is None, the maximum length of
            a translation is the source's length plus 50 tokens, as in the paper. The maximum length
            is always at least `options.min_length`. Defaults to `SearchOptions()`.
        overlong: What to do with text that has more pieces than the model accepts. `"split"` splits
            the text at the ends of sentences. If a sentence is still too long, it is split between
            two words. The translations of the parts are joined with a space. `"truncate"`
            translates only the beginning of the text, with a warning. Defaults to `"split"`.
        tokens_per_batch: Maximum number of source tokens of a batch, padding included. Defaults to
            None, which means 2048.
        shortlist: A `Shortlist` of the target tokens for each sentence, for example
            `open_shortlist(run)`. With a shortlist, a step computes fewer logits, and the
            probabilities of the tokens in the shortlist sum to 1. Defaults to None, which means
            all tokens.

    Raises:
        ValueError: If `options.max_length` or `options.min_length` exceeds `model.max_length`. If
            the shortlist was learned with another tokenizer. If there is a coverage penalty but the
            model has no attention. If the model is a language model, or has fewer tokens than the
            tokenizer.

    Source: Vaswani et al. 2017, §6.1.
    """

    TOKENS_PER_BATCH = 2048

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        options: SearchOptions | None = None,
        overlong: Overlong = "split",
        tokens_per_batch: int | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        super().__init__(tokenizer, model.max_length, options, overlong)
        if getattr(model, "reads_prompt", False):
            raise ValueError(
                "`Translator` needs a sequence-to-sequence model. For a language model, use "
                f"`Generator`. Received: model={type(model).__name__}"
            )
        _check_vocabularies(model, tokenizer)
        self.model = model
        self.tokens_per_batch = tokens_per_batch or self.TOKENS_PER_BATCH
        self.shortlist = shortlist
        if shortlist is not None:
            shortlist.check(tokenizer)
        self._search = ListSearch(
            model, tokenizer.bos_id, tokenizer.eos_id, tokenizer.decode_target
        )
        self._search.strategy(self.options)  # Raises the errors of the options.
        self._source_attention = compile_function(lambda m, *ids: m.source_attention(*ids), model)

    @classmethod
    def from_run(
        cls,
        runs: Run | str | Path | Sequence[Run | str | Path],
        options: SearchOptions | None = None,
        *,
        overlong: Overlong = "split",
        use_shortlist: bool = False,
        checkpoint: Checkpoint | None = None,
        tokens_per_batch: int | None = None,
    ) -> "Translator":
        """Opens the translator of a trained run, or of an ensemble of several runs.

        Example:

        >>> Translator.from_run("tatoeba_en_de").translate(["How are you?"])

        Args:
            runs: A `Run`, a run folder, or the name of a run in the package. Several runs translate
                as an ensemble; their tokenizers must be equal.
            options: The options of beam search. Defaults to None, which means the search options of
                the (first) run's recipe.
            overlong: As for `Translator`.
            use_shortlist: Whether to translate with `open_shortlist` of the (first) run, which is
                faster. Defaults to False.
            checkpoint: As in `open_model`.
            tokens_per_batch: As for `Translator`.

        Raises:
            UserError: If a run or its model is missing, or if the tokenizers of the runs differ.
        """
        names = [runs] if isinstance(runs, Run | str | Path) else runs
        opened = [run if isinstance(run, Run) else Run.open(run) for run in names]
        options = options or opened[0].recipe.evaluation.search_options()
        model, tokenizer = open_ensemble(opened, checkpoint)
        shortlist = open_shortlist(opened[0], tokenizer) if use_shortlist else None
        return cls(model, tokenizer, options, overlong, tokens_per_batch, shortlist)

    def _search_parts(
        self,
        parts: list[SourcePart],
        count: int,
        options: SearchOptions,
        constraints: TargetConstraints,
        progress: Progress,
    ) -> list[list[Hypothesis]]:
        def fields(batch: LengthBatch, _: int) -> dict[str, Any]:
            return constraints.arrays([parts[i] for i in batch.indices], batch.rows)

        return self._decode(parts, count, options, fields, progress)

    def sample(
        self,
        sentences: Sequence[str],
        options: SamplingOptions | None = None,
        seed: int = 0,
        first_index: int = 0,
        progress: Progress = False,
    ) -> list[list[Hypothesis]]:
        """Draws translations of each sentence at random from the model's distribution.

        Args:
            sentences: Any number of strings, of any lengths.
            options: The options of sampling. Defaults to `SamplingOptions()`, which means one
                sample from the model's unchanged distribution.
            seed: Integer from 0 to 2**64 - 1. The same seed gives the same translations, even if
                the sentences are grouped into other batches. Defaults to 0.
            first_index: Index of `sentences[0]` in the whole text, if the text is translated in
                several calls. Defaults to 0.
            progress: As in `translate`.

        Returns:
            One list per sentence, in the same order. Each list has `options.num_samples`
            independent hypotheses, in the order in which they were drawn.
        """
        options = self._checked(options or SamplingOptions())
        parts = self._parts(sentences)

        def fields(batch: LengthBatch, length: int) -> dict[str, Any]:
            of_batch = [parts[index] for index in batch.indices]
            indices = [first_index + x.sentence + PART_STRIDE * x.number for x in of_batch]
            numbers = random_numbers(seed, indices, options.num_samples, length, batch.rows)
            return {"random_numbers": numbers}

        found = self._decode(parts, len(sentences), options, fields, progress)
        blank = [Hypothesis("", (), 0.0, 0.0, 0)] * options.num_samples
        return whole_sentences(parts, found, blank, len(sentences))

    def translate_mbr(
        self, sentences: Sequence[str], options: SamplingOptions | None = None, **sampling: Any
    ) -> list[list[Hypothesis]]:
        """Returns, for each sentence, the sample that is most similar to all samples.

        This method is called minimum Bayes risk decoding.

        Args:
            sentences: Any number of strings, of any lengths.
            options: The options of sampling. Defaults to 32 samples from the model's unchanged
                distribution.
            **sampling: The other arguments of `sample`.

        Returns:
            One list with a single hypothesis per sentence, in the same order. The score of this
            hypothesis is its mean sentence chrF (0 to 100) against all samples.

        Source: Eikema and Aziz 2020, §5.
        """
        options = options or SamplingOptions(num_samples=32)
        chosen = []
        for samples in self.sample(sentences, options, **sampling):
            # A sample for which the rules allowed no token is not a translation.
            samples = [x for x in samples if x.score > IMPOSSIBLE] or samples
            text, utility = next(iter(expected_utilities([x.text for x in samples]).items()))
            best = next(x for x in samples if x.text == text)
            chosen.append([replace(best, score=utility)])
        return chosen

    def beam_tree(self, sentence: str) -> BeamTree:
        """Translates a sentence, and returns all hypotheses that the beam search considered.

        The search runs without compiling, so it is slow. Its results are those of
        `translate_nbest`, except where two scores are almost equal.

        Example:

        >>> tree = translator.beam_tree("A man sleeps.")
        >>> [(tree.text(x), x.score, x.reason) for x in tree.nodes if x.outcome == "finished"]

        Args:
            sentence: A sentence that the model accepts as a whole.

        Raises:
            UserError: If the sentence is blank, too long or not UTF-8, or if the translator has a
                shortlist.
        """
        check_utf8(sentence)
        parts = self._parts([sentence])
        if len(parts) != 1:
            raise UserError(
                f"a beam tree needs one sentence of 1 to {self.max_length - 1:,} tokens. "
                f"Received: {sentence[:40]!r}"
            )
        if self.shortlist is not None:
            raise UserError("a beam tree needs a translator without a shortlist")
        (part,) = parts
        limit = self._limit(self.options)
        request, length = self._search.request([part.ids], 1, len(part.ids), limit)
        strategy = self._search.strategy(self.options)
        steps, result = record(self.model, request, length, strategy)
        nodes = nodes_of(steps, result, length, self.options, self.tokenizer.target_pieces)
        return BeamTree(part.text, nodes, tuple(self._search.hypotheses(result, 0)), self.options)

    def _decode(
        self,
        parts: list[SourcePart],
        count: int,
        options: SearchOptions | SamplingOptions,
        fields: Callable[[LengthBatch, int], dict[str, Any]],
        progress: Progress,
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each part. For `fields`, see `ListSearch`."""
        # With sampling, a batch has about as many hypotheses as with beam search. The quotient is
        # rounded up, because a batch has at least one sentence.
        beams = self.options.beam_size
        tokens_per_batch = -(-self.tokens_per_batch * beams // max(beams, options.num_beams))

        with counted_progress(progress, parts, count) as advance:
            return self._search(
                [part.ids for part in parts],
                options,
                limit=self._limit(options),
                longest=self.max_length,
                tokens_per_batch=tokens_per_batch,
                fields=lambda batch, length: {
                    **fields(batch, length),
                    "shortlist": self._shortlists(parts, batch),
                },
                advance=advance,
            )

    def _shortlists(self, parts: list[SourcePart], batch: LengthBatch) -> Any:
        """Returns the shortlists of a batch, int32 `(B, K)`, where K is a power of two."""
        if self.shortlist is None:
            return None
        tokens = [self.shortlist.tokens(parts[index].ids).tolist() for index in batch.indices]
        width = smallest_power(2, max(map(len, tokens)))
        return padded(tokens, batch.rows, width, self.tokenizer.pad_id)

    def _align(
        self, parts: list[SourcePart], found: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each part with their alignments."""
        if not hasattr(self.model, "source_attention"):
            raise UserError(
                "Alignments need a model with attention (a method `source_attention`). "
                f"Received: model={type(self.model).__name__}"
            )
        bos_id, pad_id = self.tokenizer.bos_id, self.tokenizer.pad_id
        sources = [part.ids for part in parts]
        targets = [[[bos_id, *hypothesis.ids[:-1]] for hypothesis in of_part] for of_part in found]
        batches = pair_batches(sources, targets, self.tokens_per_batch, self.max_length, pad_id)
        aligned: list[list[Hypothesis]] = [[]] * len(parts)
        for indices, source_ids, target_ids in batches:
            attention = ops.convert_to_numpy(self._source_attention(source_ids, target_ids))
            for row, index in enumerate(indices):
                part = parts[index]
                of_source = source_word_indices(self.tokenizer, part.text, part.ids[:-1])
                for weights, hypothesis in zip(attention[row], found[index], strict=True):
                    of_target = target_word_indices(self.tokenizer, hypothesis.ids)
                    pairs = align_words(weights, of_source + part.first_word, of_target)
                    aligned[index] = [*aligned[index], replace(hypothesis, alignment=pairs)]
        return aligned


def _check_vocabularies(model: Any, tokenizer: Any) -> None:
    """Raises `ValueError` if the tokenizer has ids that the model does not have.

    TensorFlow would take another token for such an id, and JAX would compute NaN.
    """
    for side, of_model in zip(("source", "target"), vocabulary_sizes(model), strict=True):
        of_tokenizer = getattr(tokenizer, f"{side}_vocabulary_size", 0)
        if of_tokenizer > (of_model or math.inf):
            raise ValueError(
                f"The tokenizer has more {side} tokens than the model, so it is not the model's. "
                f"Received: {of_tokenizer} and {of_model} tokens"
            )
