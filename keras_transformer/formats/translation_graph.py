"""Builds TensorFlow graphs that tokenize strings and translate them by beam search."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_text

from keras_transformer.capabilities import Capabilities
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.decoding.decoding_loop import search
from keras_transformer.decoding.options import IMPOSSIBLE, LARGEST_LENGTH_PENALTY, SearchOptions
from keras_transformer.decoding.request import Request, SearchResult
from keras_transformer.decoding.shortlist import Shortlist, unique_ids
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.translation.base_translator import EXTRA_LENGTH
from keras_transformer.translation.long_lines import INVISIBLE, wordless_pieces
from keras_transformer.translation.scoring import score_pairs

# Maximum number of tokens computed at a time. For a search, this is the number of source tokens
# times the beam size. For `score`, it is the number of rows times the longest source or target.
SEARCHED_TOKENS, SCORED_TOKENS = 4096, 4096

# All white space that `str.strip` removes. `tf.strings.strip` removes only ASCII white space.
_SPACE = "".join(chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace())
_SPACES, _HIDDEN = ("".join(f"\\x{{{ord(x):x}}}" for x in text) for text in (_SPACE, INVISIBLE))
_ENDS = f"^[{_SPACES}]+|[{_SPACES}]+$"
_BLANK = rf"^[\p{{Cc}}\p{{Cf}}\p{{Z}}{_HIDDEN}]+$"

# The options of a request that leaves them out.
UNSET, UNSET_FLOAT = tf.constant([-1]), tf.constant([-1.0])


class TranslationGraph:
    """Creates the signatures that a server offers for a model and its tokenizer.

    `export_saved_model` documents the arguments, docs/how-to/export-saved-model.md the signatures.
    """

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        options: SearchOptions,
        max_beam_size: int,
        shortlist: Shortlist | None = None,
    ) -> None:
        self._model, self._tokenizer = model, GraphTokenizer(tokenizer)
        self._source_prefix = tokenizer.source_prefix_ids
        self._target_prefix = tokenizer.target_prefix_ids
        self._num_ends = int(tokenizer.source_eos)  # of sources
        self._options, self._shortlist = options, shortlist
        self._max_beam_size = max(max_beam_size, options.beam_size)

    def signatures(self) -> dict[str, Any]:
        """Returns a dict from names of signatures to functions."""
        text, number = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int32)
        ids, real = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.float32)
        options = {"beam_size": number, "length_penalty": real, "max_length": number}

        def signature(function: Callable[..., Any], **specs: tf.TensorSpec) -> Any:
            named = [tf.TensorSpec(spec.shape, spec.dtype, key) for key, spec in specs.items()]
            return tf.function(function, autograph=False, input_signature=named)

        return {
            "serving_default": signature(self.translate, text=text),
            "translate_nbest": signature(self.translate_nbest, text=text, **options),
            "score": signature(self.score, source=text, target=text),
            "encode_tokens": signature(self.encode_tokens, source_ids=ids, target_ids=ids),
        }

    def variables(self) -> tf.Module:
        """Returns the weights and SentencePiece models that the signatures use."""
        module = tf.Module()
        module.weights = [weight.value for weight in self._model.weights]
        module.tokenizer = self._tokenizer
        return module

    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the best translation of each text, with the exported search options."""
        text, copies = self._tokenizer.divide(text)
        sources = self._sources(text)
        limits = self._limits(sources, -1)
        ids, scores, _ = self._decode(self._search, sources, [limits], self._options.beam_size, 1)
        translation = self._tokenizer.decode_target(ids[:, 0])
        return {"translation": tf.where(copies == "", translation, copies), "score": scores[:, 0]}

    def translate_nbest(
        self,
        text: tf.Tensor,
        beam_size: tf.Tensor = UNSET,
        length_penalty: tf.Tensor = UNSET_FLOAT,
        max_length: tf.Tensor = UNSET,
    ) -> dict[str, tf.Tensor]:
        """Returns all hypotheses of each text. An option has the shape `(B,)` or `(1,)`."""
        options, given = self._options, [beam_size, length_penalty, max_length]
        beam_size, length_penalty, max_length = (tf.broadcast_to(x, tf.shape(text)) for x in given)
        beam_sizes = tf.where(beam_size < 0, options.beam_size, beam_size)
        beam_sizes = tf.clip_by_value(beam_sizes, 1, self._max_beam_size)
        penalties = tf.minimum(length_penalty, LARGEST_LENGTH_PENALTY)
        penalties = tf.where(length_penalty >= 0, penalties, options.length_penalty)  # NaN, too
        text, copies = self._tokenizer.divide(text)
        sources = self._sources(text)
        limits = self._limits(sources, max_length)
        most = tf.reduce_max(tf.concat([beam_sizes, [1]], axis=0))

        def search(source_ids: Any, limits: Any, beam_sizes: Any, penalties: Any) -> SearchResult:
            own = {"length_penalties": penalties}
            if options.num_beam_groups > 1:
                message = "With beam groups, beam_size must equal the exported beam size."
                tf.debugging.assert_equal(beam_sizes, options.beam_size, message)
                return self._search(source_ids, limits, n_best=options.beam_size, **own)
            own["beam_sizes"] = beam_sizes
            return self._search(source_ids, limits, beam_size=most, **own)

        given = [limits, beam_sizes, penalties]
        align = Capabilities.of(self._model).source_attention is not None
        ids, scores, alignments = self._decode(search, sources, given, most, most, align)
        # Not [-1, ...]: TensorFlow would not infer 0 rows for an empty batch without tokens.
        shape = [tf.reduce_prod(tf.shape(scores)), tf.shape(ids)[-1]]
        texts = tf.reshape(self._tokenizer.decode_target(tf.reshape(ids, shape)), tf.shape(scores))
        copied = tf.not_equal(copies[:, None], "") & (tf.range(most) == 0)
        return {
            "translations": tf.where(copied, copies[:, None], texts),
            "scores": scores,
            "pieces": self._tokenizer.pieces(ids),
            "alignments": alignments,
        }

    def _search(
        self, source_ids: Any, limits: Any, beam_size: Any = None, n_best: int = 1, **own: Any
    ) -> SearchResult:
        if self._shortlist is not None:
            own["shortlist"] = shortlist_graph(self._shortlist, source_ids)
        if self._target_prefix:
            own["prefix_ids"] = tf.tile([self._target_prefix], [tf.shape(source_ids)[0], 1])
        return search(
            self._model,
            Request(source_ids, limits, **own),
            max_length=tf.reduce_max(limits),
            options=self._options.replace(max_length=None, n_best=n_best),
            beam_size=beam_size,
        )

    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the log-probability of each target, NaN for a source or target too long."""
        sources = self._sources(source)
        pieces = self._tokenizer.encode_target(target)
        before = self._target_prefix
        lengths = tf.cast(pieces.row_lengths(), tf.int32) + len(before) + 1
        most = self._model.max_length
        fits = tf.logical_and(sources.all_lengths <= most, lengths <= most)

        def score(*tensors: tf.Tensor) -> list[tf.Tensor]:
            ids = [rows[:, : tensors[-1]] for rows in tensors[:-1]]
            return [score_pairs(self._model, *ids).log_probabilities]

        pieces = pieces[:, : most - len(before) - 1]
        target_ids = self._framed(pieces, [BOS_ID, *before], [])
        ids = [sources.ids, target_ids, self._framed(pieces, before, [EOS_ID])]
        longest = tf.maximum(sources.lengths, tf.minimum(lengths, most))
        (scores,) = map_length_chunks(score, ids, longest, SCORED_TOKENS, [tf.zeros([0])])
        return {"log_probability": tf.where(fits, scores, float("nan")), "length": lengths}

    def encode_tokens(self, source_ids: tf.Tensor, target_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the logits of the model, NaN for a row with an id outside the vocabulary.

        An error would affect all clients whose rows are in the batch. So only too long rows, or a
        batch of nothing but invalid rows, raise an error.
        """
        model, longest = self._model, self._model.max_length
        sizes = (model.vocabulary_size, model.target_vocabulary_size or model.vocabulary_size)
        given = [source_ids, target_ids]
        lengths = [tf.shape(ids)[1] for ids in given]
        is_below = [(ids >= 0) & (ids < size) for ids, size in zip(given, sizes, strict=True)]
        is_valid = tf.logical_and(*(tf.reduce_all(x, axis=1) for x in is_below))
        is_served = tf.reduce_any(is_valid) | tf.equal(tf.shape(is_valid)[0], 0)
        length_rule = f"ids must have at most {longest} tokens per row. Received:"
        rule = (
            f"source_ids must be from 0 to {sizes[0] - 1} and target_ids from 0 to {sizes[1] - 1}. "
            "Received:"
        )
        checks = [
            tf.debugging.Assert(tf.reduce_max(lengths) <= longest, [length_rule, *lengths]),
            tf.debugging.Assert(is_served, [rule, *given], summarize=8),
        ]
        with tf.control_dependencies(checks):
            given = [tf.where(is_valid[:, None], ids, PAD_ID) for ids in given]
        inputs = dict(zip(("source_ids", "target_ids"), given, strict=True))
        logits = tf.cast(model(inputs, training=False), "float32")
        return {"logits": tf.where(is_valid[:, None, None], logits, float("nan"))}

    def _sources(self, text: tf.Tensor) -> "_Sources":
        pieces = self._tokenizer.encode_source(text)
        before, most = len(self._source_prefix), self._model.max_length
        is_tagged = self._tokenizer.is_tagged(pieces.to_tensor(PAD_ID, shape=[None, 1]))
        prefixes = tf.tile(tf.constant([self._source_prefix], "int32"), [pieces.nrows(), 1])
        own = tf.RaggedTensor.from_tensor(prefixes, tf.where(is_tagged, 0, before))
        framed = tf.concat([own, pieces], axis=1)
        counts = tf.cast(framed.row_lengths(), "int32")
        # At least one column after the prefix, also for a blank text without eos.
        all_lengths = tf.maximum(counts + self._num_ends, before + 1)
        end = EOS_ID if self._num_ends else PAD_ID
        ids = self._framed(framed[:, : most - self._num_ends], [], [end])
        is_text = pieces.row_lengths() > 0
        return _Sources(ids, tf.minimum(all_lengths, most), all_lengths, is_text)

    def _framed(self, pieces: tf.RaggedTensor, *around: list[int]) -> tf.Tensor:
        """Returns `pieces` between the ids before and after each row, padded."""
        before, after = (
            tf.tile(tf.constant([ids], "int32"), [pieces.nrows(), 1]) for ids in around
        )
        return tf.concat([before, pieces, after], axis=1).to_tensor(PAD_ID)

    def _limits(self, sources: "_Sources", max_length: tf.Tensor | int) -> tf.Tensor:
        """Returns the maximum length of each translation. For a blank source, it is 1 (eos)."""
        default = self._options.max_length
        if default is None:
            default = tf.minimum(sources.lengths + EXTRA_LENGTH, self._model.max_length)
            default = tf.maximum(default, self._options.min_length)
        given = tf.clip_by_value(max_length, self._options.min_length, self._model.max_length)
        limits = tf.where(max_length < 0, default, given)
        return tf.where(sources.is_text, limits, 1)

    def _decode(
        self,
        search: Callable[..., SearchResult],
        sources: "_Sources",
        options: Sequence[tf.Tensor],
        beam_size: tf.Tensor | int,
        n_best: tf.Tensor | int,
        align: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns pieces `(B, N, T)`, scores `(B, N)` and alignments `(B, N, T)` of the best N.

        Calls `search` for a few sources at a time, with their ids and `options`, tensors `(B,)`, of
        which the first are the maximum lengths. A blank text has one empty hypothesis with score 0.
        """
        most = tf.reduce_max(tf.concat([options[0], [1]], axis=0))

        def decode(source_ids: tf.Tensor, *options: tf.Tensor) -> list[tf.Tensor]:
            source_ids = source_ids[:, : options[-1]]
            found = search(source_ids, *options[:-1])
            ids = tf.where(found.ids == EOS_ID, PAD_ID, found.ids)
            ids = ids[:, :, : tf.maximum(tf.reduce_max(found.lengths), 1)]
            aligned = self._align(source_ids, ids) if align else tf.fill(tf.shape(ids), -1)
            widths = [[0, 0], [0, 0], [0, most - tf.shape(ids)[2]]]
            ids = tf.pad(ids, widths, constant_values=PAD_ID)
            return [ids, found.scores, tf.pad(aligned, widths, constant_values=-1)]

        empty = tf.zeros([0, n_best, most], "int32")
        ids, scores, alignments = map_length_chunks(
            decode,
            [sources.ids, *options],
            sources.lengths,
            SEARCHED_TOKENS // beam_size,
            [empty, tf.zeros([0, n_best]), empty],
        )
        is_text = sources.is_text[:, None]
        ids = tf.where(is_text[:, None], ids, PAD_ID)
        alignments = tf.where(is_text[:, None], alignments, -1)
        is_used = tf.reduce_any(ids != PAD_ID, axis=[0, 1])
        width = tf.reduce_sum(tf.cast(is_used, "int32"))
        certain = tf.where(tf.range(tf.shape(scores)[1]) == 0, 0.0, IMPOSSIBLE)
        return ids[:, :, :width], tf.where(is_text, scores, certain), alignments[:, :, :width]

    def _align(self, source_ids: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Returns the position of the source piece that a target piece attends to most, or -1.

        Positions do not count the source prefix or the tag.
        """
        before = len(self._source_prefix)
        prefix = tf.constant(self._source_prefix, "int32")
        is_tag = self._tokenizer.is_tagged(source_ids[:, :1])
        is_prefix = tf.reduce_all(source_ids[:, :before] == prefix, axis=1)
        first = tf.where(is_tag & ~is_prefix, 1, before)[:, None]
        bos = tf.fill(tf.concat([tf.shape(ids)[:2], [1]], axis=0), BOS_ID)
        target_ids = tf.concat([bos, ids[:, :, :-1]], axis=-1)
        attention = self._model.source_attention(source_ids, target_ids)
        is_piece = tf.logical_and(source_ids != PAD_ID, source_ids != EOS_ID)
        is_piece &= tf.range(tf.shape(source_ids)[1]) >= first
        attention = tf.where(is_piece[:, None, None], attention, -1.0)
        best = tf.argmax(attention, axis=-1, output_type="int32") - first[:, None]
        return tf.where(ids == PAD_ID, -1, best)


def shortlist_graph(shortlist: Shortlist, source_ids: tf.Tensor) -> tf.Tensor:
    """Returns `shortlist.tokens` of each source `(B, S)`, int32 rows that are padded at the end."""
    translations = tf.where(shortlist.translations < 0, PAD_ID, shortlist.translations)
    found = tf.gather(translations, source_ids)
    found = tf.where((source_ids == PAD_ID)[..., None], PAD_ID, found)
    batch = tf.shape(source_ids)[0]
    frequent = tf.tile(shortlist.frequent[None], [batch, 1])
    ids = unique_ids(tf.concat([frequent, tf.reshape(found, [batch, -1])], axis=1), PAD_ID)
    is_used = tf.reduce_any(ids != PAD_ID, axis=0)
    width = tf.reduce_max(tf.where(is_used, tf.range(1, tf.shape(ids)[1] + 1), 1))
    return ids[:, :width]


class _Sources(NamedTuple):
    """Texts as padded token ids."""

    ids: tf.Tensor  # int32 (B, S), pieces followed by eos, padded at the end
    lengths: tf.Tensor  # int32 (B,), number of tokens, eos included
    all_lengths: tf.Tensor  # int32 (B,), number of tokens before truncation
    is_text: tf.Tensor  # bool (B,), whether the text is not blank


class GraphTokenizer(tf.Module):
    """Tokenizes like `Tokenizer`, but with TensorFlow operations (from tensorflow-text)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(name="tokenizer")
        # The loader of TensorFlow 2 takes two tokenizers of the same name for the same.
        self._source = self._target = tensorflow_text.SentencepieceTokenizer(
            tokenizer.source_model, name="source_sentencepiece"
        )
        if tokenizer.target_model != tokenizer.source_model:
            self._target = tensorflow_text.SentencepieceTokenizer(
                tokenizer.target_model, name="target_sentencepiece"
            )
        self._tags, self._tag_ids = (*tokenizer.tag_ids,), (*tokenizer.tag_ids.values(),)
        wordless = wordless_pieces(tokenizer)
        self._is_word = [id not in wordless for id in range(tokenizer.source_vocabulary_size)]
        self._num_forced = len(tokenizer.target_prefix_ids)
        pieces = enumerate(tokenizer.target_pieces)
        self._target_pieces = tuple("" if i in (PAD_ID, BOS_ID, EOS_ID) else x for i, x in pieces)

    def encode_source(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Strips white space from the ends of source texts `(B,)`, and returns their piece ids."""
        tags, texts = self._split_tags(tf.strings.regex_replace(texts, _ENDS, ""))
        return tf.concat([tags, self._source.tokenize(texts)], axis=1)

    def _split_tags(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Returns the id of the tag at the beginning of each text, if any, and the rest."""
        rest = tf.strings.regex_replace(texts, "^(?s:>>.*?<<)", "") if self._tags else texts
        lengths = tf.strings.length(texts) - tf.strings.length(rest)
        tags = tf.strings.substr(texts, tf.zeros_like(lengths), lengths)[:, None]
        is_tag, own = tags == tf.constant(self._tags, "string"), tf.constant(self._tag_ids, "int32")
        ids = tf.reduce_max(tf.where(is_tag, own, UNK_ID), axis=1, keepdims=True)
        return tf.ragged.boolean_mask(ids, lengths[:, None] > 0), rest

    def is_tagged(self, first_ids: tf.Tensor) -> tf.Tensor:
        """Returns whether the first ids of sources, int32 `(B, 1)`, are tags."""
        return tf.reduce_any(first_ids == tf.constant(self._tag_ids, "int32"), axis=1)

    def divide(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the texts to translate, and those to copy, in which no word is known."""
        texts = tf.strings.regex_replace(tf.strings.regex_replace(texts, _ENDS, ""), _BLANK, "")
        _, rest = self._split_tags(texts)
        pieces = self._source.tokenize(rest)
        has_word = tf.reduce_any(tf.gather(tf.constant(self._is_word), pieces), axis=1)
        is_copied = tf.reduce_any(pieces == UNK_ID, axis=1) & ~has_word
        is_blank = is_copied | (pieces.row_lengths() == 0)
        rest = tf.strings.regex_replace(rest, _ENDS, "")
        return tf.where(is_blank, "", texts), tf.where(is_copied, rest, "")

    def encode_target(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Does the same with target texts."""
        return self._target.tokenize(tf.strings.regex_replace(texts, _ENDS, ""))

    def decode_target(self, ids: tf.Tensor) -> tf.Tensor:
        """Converts ids `(B, T)` to strings `(B,)`. Pad, bos and eos become "", unk becomes "⁇".

        Omits the target prefix, which all ids begin with.
        """
        ids = tf.where(tf.range(tf.shape(ids)[1]) < self._num_forced, PAD_ID, ids)
        ragged = tf.RaggedTensor.from_tensor(ids, padding=PAD_ID)
        return self._target.detokenize(ragged)

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Converts ids of any shape to pieces. Pad, bos and eos become ""."""
        return tf.gather(tf.constant(self._target_pieces), ids)


def map_length_chunks(
    function: Callable[..., Sequence[tf.Tensor]],
    tensors: Sequence[tf.Tensor],
    lengths: tf.Tensor,
    tokens_per_chunk: int | tf.Tensor,
    empty: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, ...]:
    """Applies a function to rows of similar length at a time (a chunk), the longest first.

    `function` takes R rows of each of `tensors`, `(B, ...)`, and the largest of their `lengths`. It
    returns tensors `(R, ...)`, which are joined in the order of the rows, and are `empty` for none.
    R times the largest length is at most `tokens_per_chunk`, but R is at least 1.
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)

    def chunk(start: tf.Tensor, *results: tf.Tensor) -> tuple[tf.Tensor, ...]:
        longest = lengths[order[start]]
        rows = order[start : start + tf.maximum(tokens_per_chunk // longest, 1)]
        found = function(*(tf.gather(tensor, rows) for tensor in tensors), longest)
        joined = (tf.concat(parts, axis=0) for parts in zip(results, found, strict=True))
        return (start + tf.shape(rows)[0], *joined)

    shapes = [tf.TensorShape([None] * x.shape.rank) for x in empty]
    _, *found = tf.while_loop(
        lambda start, *_: start < tf.shape(lengths)[0],
        chunk,
        (0, *empty),
        shape_invariants=(tf.TensorShape([]), *shapes),
        parallel_iterations=1,
    )
    back = tf.argsort(order)
    return tuple(tf.gather(values, back) for values in found)
