"""Defines `Translator`, which translates strings with a trained model."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_transformer._backend import without_tensorflow
from keras_transformer._backend.compile_function import (
    compile_function,
    compiles_each_shape,
    compiling,
    prefers_float32,
)
from keras_transformer._files import atomic_write
from keras_transformer.capabilities import Capabilities
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.batches import (
    FIXED_SHAPES,
    MANY_SHAPES,
    LengthBatch,
    fixed_shapes,
    padded,
    pair_batches,
    smallest_power,
)
from keras_transformer.decoding.options import IMPOSSIBLE, SamplingOptions, SearchOptions
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import UserError
from keras_transformer.models.base import loading_in_float32
from keras_transformer.models.protocol import check_tokenizer
from keras_transformer.runs.checkpoints import read_member, write_members
from keras_transformer.runs.loading import load_model
from keras_transformer.runs.run import Checkpoint, Run, Runs, opened_runs
from keras_transformer.translation.adapters import open_adapters
from keras_transformer.translation.base_translator import (
    Advance,
    BaseTranslator,
    CopyUnknown,
    Overlong,
    Progress,
)
from keras_transformer.translation.beam_recorder import record
from keras_transformer.translation.beam_tree import BeamTree
from keras_transformer.translation.hypothesis import (
    Hypothesis,
    NBest,
    SourcePart,
    expected_utilities,
    with_copies,
)
from keras_transformer.translation.list_search import ListSearch
from keras_transformer.translation.open_run import open_models, open_shortlist
from keras_transformer.translation.scoring import Scorer
from keras_transformer.translation.target_constraints import TargetConstraints
from keras_transformer.translation.word_forms import WordForms

# Part k of sentence i uses the random numbers of the index i + k * PART_STRIDE.
PART_STRIDE = 2**40
# The options of search in a file of `Translator.save`. Keras ignores it.
_OPTIONS_MEMBER = "search_options.json"


class Translator(BaseTranslator):
    """Translates lists of sentences with a trained model (§6.1).

    Sentences are sorted by length and grouped into batches of few different shapes, because each
    shape is compiled. The translation of a sentence does not depend on its batch. Every call uses
    the model's current weights.

    Example:

    >>> translator = Translator(model, tokenizer, SearchOptions(beam_size=5))
    >>> translator.translate(["A man sleeps.", "Two dogs play in the snow."])

    Args:
        model: A `Transformer`, or any model that implements `Searchable` (`models/protocol.py`), or
            the `SlicedLogitsTrainer` of one.
        tokenizer: The `Tokenizer` that the model was trained with. Defaults to the
            one that a `ParallelDataset` or a saved file has given the model.
        options: The options of beam search. Defaults to `SearchOptions()`. If `options.max_length`
            is None, the maximum length of a translation is the source's length plus 50 tokens, as
            in the paper, and at least `options.min_length`.
        overlong: What to do with text that has more pieces than the model accepts. `"split"` splits
            the text at the ends of sentences. If a sentence is still too long, it is split between
            two words. The translations of the parts are joined as their script joins sentences:
            without a space in Chinese and Japanese. `"truncate"` translates only the beginning of
            the text, with a warning.
        tokens_per_batch: Maximum number of source tokens of a batch, padding included. Defaults to
            None, which means 2048.
        shortlist: A `Shortlist` of the target tokens for each sentence, such as
            `open_shortlist(run)`. A step then computes fewer logits, and the probabilities of the
            tokens in the shortlist sum to 1. Defaults to None, which means all tokens.
        copy_unknown: `"lines"` copies a text in which no piece with a letter or digit is known to
            the tokenizer, and at least one piece is unknown, with a warning. Its score is 0. In an
            overlong text, the parts are copied one by one. A text with a prefix or required words
            is translated. `"characters"` also copies single unknown source pieces, each in place
            of the target word that gives it more than half of its attention (see
            `Searchable.source_attention`). `"never"` translates everything. Defaults to `"lines"`.
        word_forms: The `WordForms` of the training text, by which lines in upper case, titles and
            headings are translated. Defaults to None: all lines are translated as they are written.

    Raises:
        ValueError: If an option exceeds `model.max_length`, or there is a coverage penalty but the
            model has no attention. If the shortlist was learned with another tokenizer. If the
            model is a language model, was trained with another tokenizer, or has fewer tokens than
            the tokenizer.

    Source: Vaswani et al. 2017, §6.1.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer | None = None,
        options: SearchOptions | None = None,
        overlong: Overlong = "split",
        tokens_per_batch: int | None = None,
        shortlist: Shortlist | None = None,
        copy_unknown: CopyUnknown = "lines",
        word_forms: WordForms | None = None,
    ) -> None:
        if Capabilities.of(model).init_cache is None:  # a `SlicedLogitsTrainer`
            model = getattr(model, "model", model)
        files = Capabilities.of(model).tokenizer_files or {}
        if not (tokenizer or files):
            raise UserError("The model has no tokenizer: give one, or train on a `ParallelDataset`")
        tokenizer = tokenizer or Tokenizer.from_files(files, "the model")
        check_tokenizer(model, tokenizer)
        super().__init__(tokenizer, model.max_length, options, overlong, copy_unknown, word_forms)
        self.model = model
        self.adapters: dict[str, Translator] = {}  # by name, see `open_translator`
        # Makes a context in which `model` has the weights of this translator.
        self.own_weights: Callable[[], AbstractContextManager[None]] = nullcontext
        self.waiting = compiling(model)
        self.tokens_per_batch = tokens_per_batch or 2048
        self.shortlist = shortlist
        if shortlist is not None:
            shortlist.check(tokenizer)
        self._search = ListSearch(
            model, tokenizer.bos_id, tokenizer.eos_id, tokenizer.decode_target
        )
        self._search.strategy(self.options)  # Raises the errors of the options.
        self._pair_shapes = MANY_SHAPES
        self.has_attention = Capabilities.of(model).source_attention is not None
        self._source_attention = compile_function(lambda m, *ids: m.source_attention(*ids), model)
        self._scorer = Scorer(model, tokenizer, self.tokens_per_batch)

    @classmethod
    def from_run(
        cls,
        runs: Runs,
        options: SearchOptions | None = None,
        *,
        use_shortlist: bool = False,
        checkpoint: Checkpoint | None = None,
        as_written: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        adapters: Mapping[str, Run | str | Path] | None = None,
        **arguments: Any,
    ) -> "Translator":
        """Opens the translator of a trained run, or of an ensemble of several runs.

        Example:

        >>> Translator.from_run("tatoeba_en_de").translate(["How are you?"])

        The arguments are those of `open_translator`.
        """
        opened, languages = opened_runs(runs), (source_language, target_language)
        model, tokenizer = open_models(opened, checkpoint, languages, merge=bool(adapters))
        run = opened[0]
        search = options or run.recipe.evaluation.search_options()
        shortlist = open_shortlist(run, tokenizer) if use_shortlist else None
        forms = WordForms.load(run.word_forms_path, as_written or source_language is not None)
        given = {"shortlist": shortlist, "word_forms": forms, **arguments}
        translator = cls(model, tokenizer, search, **given)
        if adapters:
            same = {"use_shortlist": use_shortlist, "as_written": as_written, **arguments}
            same |= dict(zip(("source_language", "target_language"), languages, strict=True))
            bases = [one.model_place(checkpoint) for one in opened]
            open_adapters(translator, adapters, bases, lambda x: cls.from_run(x, options, **same))
        return translator

    def save(self, path: str | Path) -> None:
        """Writes the model, its tokenizer and the options of search as one file, such as `x.keras`.

        `load` opens the file on any backend, and `keras.saving.load_model` the model in it.
        """
        if Path(path).suffix != ".keras":  # The file of Keras's other format has no tokenizer.
            raise UserError(f"the name of the file must end in .keras. Received: {path}")
        vars(self.model)["tokenizer_files"] = self.tokenizer.files
        with self.own_weights(), atomic_write(path) as partial, without_tensorflow():
            self.model.save(partial)
            write_members(partial, {_OPTIONS_MEMBER: self.options.model_dump_json()})

    @classmethod
    def load(
        cls, path: str | Path, options: SearchOptions | None = None, **arguments: Any
    ) -> "Translator":
        """Opens a file that `save` has written, or another saved model with its tokenizer.

        Example:

        >>> Translator(model, tokenizer).save("translator.keras")
        >>> Translator.load("translator.keras").translate(["How are you?"])

        Args:
            path: The file.
            options: The options of beam search. Defaults to None, which means those in the file.
            **arguments: Further arguments of `Translator`.

        Raises:
            UserError: If the file is missing or damaged, or has no tokenizer.
        """
        with loading_in_float32(prefers_float32()):
            model = load_model(path)
        if options is None and (saved := read_member(Path(path), _OPTIONS_MEMBER)):
            options = SearchOptions.model_validate_json(saved)
        return cls(model, None, options, **arguments)

    def prepare(self, num_sentences: int, max_length: int = 128) -> None:
        self.max_length = min(self.max_length, max_length)
        self._search.batch_search.is_fixed = True
        if compiles_each_shape(self.model):
            self._pair_shapes = FIXED_SHAPES
            shapes = fixed_shapes(num_sentences, self.tokens_per_batch, self.max_length)
            for rows, width in shapes:
                self._compile(rows, width)
        super().prepare(num_sentences, max_length)

    def _compile(self, rows: int, width: int) -> None:
        """Compiles what `translate`, `translate_nbest` and `translate_segments` need of a batch."""
        ids = [self.tokenizer.unk_id] * (width - 1)

        def limit(length: int) -> int:  # Each search ends after a token.
            return self._limit(self.options)(length) if length == width else 1

        for options in {self.options, self.options.replace(n_best=1)}:
            self._search(
                [ids] * rows,
                options,
                limit=limit,
                longest=self.max_length,
                tokens_per_batch=self.tokens_per_batch,
                advance=lambda _: None,
            )
        if self.has_attention:
            parts = [SourcePart(row, 0, ids, "", 0, False, 0) for row in range(rows)]
            targets = [[Hypothesis("", tuple(ids), 0.0, 0.0, width)]] * rows
            [*self._attention(parts, targets)]

    def _search_parts(
        self,
        parts: list[SourcePart],
        options: SearchOptions | SamplingOptions,
        constraints: TargetConstraints,
        advance: Advance,
        aligned: Collection[int] = (),
        seed: int = 0,
        first_index: int = 0,
    ) -> NBest:
        def fields(batch: LengthBatch) -> dict[str, Any]:
            of_batch = [parts[index] for index in batch.indices]
            given = constraints.arrays(of_batch, batch.rows)
            return {**given, "shortlist": self._shortlists(of_batch, batch.rows)}

        # With sampling, a batch has about as many hypotheses as with beam search. The quotient is
        # rounded up, because a batch has at least one sentence.
        beams, num_beams = self.options.beam_size, self._search.strategy(options).num_beams
        with self.own_weights():
            found = self._search(
                [part.ids for part in parts],
                options,
                limit=self._limit(options),
                longest=self.max_length,
                tokens_per_batch=-(-self.tokens_per_batch * beams // max(beams, num_beams)),
                advance=advance,
                seed=seed,
                sample_indices=[first_index + x.sentence + PART_STRIDE * x.number for x in parts],
                fields=fields,
            )
        return self._with_copies(parts, found) if self.copy_unknown == "characters" else found

    def _shortlists(self, parts: list[SourcePart], rows: int) -> Any:
        """Returns the shortlists of a batch, int32 `(B, K)`, where K is a power of two."""
        if self.shortlist is None:
            return None
        tokens = [self.shortlist.tokens(part.ids).tolist() for part in parts]
        return padded(tokens, rows, smallest_power(2, max(map(len, tokens))), self.tokenizer.pad_id)

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
            options: The options of sampling. Defaults to one sample from the model's unchanged
                distribution.
            seed: Integer from 0 to 2**64 - 1. The same seed gives the same translations, even if
                the sentences are grouped into other batches.
            first_index: Index of `sentences[0]` in the whole text, if the text is translated in
                several calls.
            progress: As in `translate`.

        Returns:
            A list per sentence of `options.num_samples` independent hypotheses, as they were drawn.
        """
        options = self._checked(options or SamplingOptions())
        sampling = {"seed": seed, "first_index": first_index}
        return self._translate(options, False, False, progress, sentences, **sampling)

    def translate_mbr(
        self, sentences: Sequence[str], options: SamplingOptions | None = None, **sampling: Any
    ) -> list[list[Hypothesis]]:
        """Minimum Bayes risk decoding: returns the sample that is most similar to all samples.

        Args:
            sentences: As in `sample`.
            options: The options of sampling. Defaults to 32 samples from the model's unchanged
                distribution.
            **sampling: The other arguments of `sample`.

        Returns:
            One list with a single hypothesis per sentence, in the same order. Its score is its mean
            sentence chrF (0 to 100) against all samples.

        Source: Eikema and Aziz 2020, §5.
        """
        options = options or SamplingOptions(num_samples=32)
        chosen = []
        for samples in self.sample(sentences, options, **sampling):
            # A sample for which the rules allowed no token is not a translation.
            samples = [x for x in samples if x.score > IMPOSSIBLE] or samples
            utilities = expected_utilities([x.text for x in samples])
            best = max(samples, key=lambda x: utilities[x.text])
            chosen.append([replace(best, score=utilities[best.text])])
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
            UserError: If the sentence is blank or too long, or the translator has a shortlist.
        """
        parts = self._parts([self.word_forms.of_line(sentence).text])
        if len(parts) != 1 or self.shortlist is not None:
            raise UserError(
                f"a beam tree needs one sentence of 1 to {self.max_length - 1:,} tokens, and a "
                f"translator without a shortlist. Received: {sentence[:40]!r}"
            )
        (part,) = parts
        limit, strategy = self._limit(self.options), self._search.strategy(self.options)
        request, length = self._search.request([part.ids], 1, len(part.ids), limit)
        request = request._replace(**TargetConstraints(self.tokenizer, parts, 1).arrays(parts, 1))
        pieces = self.tokenizer.target_pieces
        with self.own_weights():
            nodes, result = record(self.model, request, length, strategy, pieces)
        return BeamTree(part.text, nodes, tuple(self._search.hypotheses(result, 0)), self.options)

    def _with_copies(self, parts: list[SourcePart], found: NBest) -> NBest:
        """Returns the hypotheses of each part with the unknown characters of the source."""
        tokenizer, found = self.tokenizer, list(found)
        for index, attention in self._attention(parts, found):
            part = parts[index]
            ids = part.ids[part.before : len(part.ids) - tokenizer.source_eos]
            pieces = zip(ids, tokenizer.source_surfaces(part.text), strict=False)
            copies = [text if id == tokenizer.unk_id else None for id, text in pieces]
            if any(copies):
                rows = zip(found[index], attention, strict=True)
                texts = ((x, with_copies(tokenizer, self._own_ids(x), y, copies)) for x, y in rows)
                found[index] = [replace(x, text=text) for x, text in texts]
        return found

    def _attention(self, parts: list[SourcePart], found: NBest) -> Iterator[tuple[int, np.ndarray]]:
        if not self.has_attention:
            raise UserError(
                "Alignments and copied characters need a model with attention (a method "
                f"`source_attention`). Received: model={type(self.model).__name__}"
            )
        bos_id, pad_id = self.tokenizer.bos_id, self.tokenizer.pad_id
        forced = len(self.tokenizer.target_prefix_ids)
        sources = [part.ids for part in parts]
        targets = [[[bos_id, *hypothesis.ids[:-1]] for hypothesis in of_part] for of_part in found]
        sizes = self.tokens_per_batch, self.max_length, pad_id
        batches = pair_batches(sources, targets, *sizes, self._pair_shapes)
        for indices, source_ids, target_ids in batches:
            with self.own_weights():
                attention = ops.convert_to_numpy(self._source_attention(source_ids, target_ids))
            for index, weights in zip(indices, attention, strict=False):
                yield index, weights[:, forced:, parts[index].before :]

    def _token_scores(self, pairs: list[tuple[SourcePart, Hypothesis]]) -> list[list[float]]:
        with self.own_weights():
            return self._scorer.of_pieces(
                [part.ids for part, _ in pairs], [self._own_ids(x) for _, x in pairs]
            )
