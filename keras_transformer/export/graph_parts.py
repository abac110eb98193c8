"""Parts of the TensorFlow graph: the tokenizer, and computation in chunks of rows."""

import sys
from collections.abc import Callable, Sequence

import tensorflow as tf
import tensorflow_text

from keras_transformer.data.tokenizer import Tokenizer

# The white space that Python's `str.strip` removes; TensorFlow's `strip` removes only ASCII.
_SPACE = "".join(chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace())
_ENDS = "^[{0}]+|[{0}]+$".format("".join(f"\\x{{{ord(space):x}}}" for space in _SPACE))


class GraphTokenizer(tf.Module):
    """Text to ids and back, equal to `Tokenizer`, with tensorflow-text's SentencePiece.

    Bytes that are not UTF-8 become unknown characters, as in SentencePiece.

    Args:
        tokenizer: The tokenizer whose SentencePiece models are used.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(name="tokenizer")
        source = tensorflow_text.SentencepieceTokenizer(tokenizer.source_model)
        target = source
        if not tokenizer.joint:
            target = tensorflow_text.SentencepieceTokenizer(tokenizer.target_model)
        self._source, self._target = source, target
        self._pad_id = tokenizer.pad_id
        self._specials = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
        self._target_pieces = tokenizer.target_pieces

    def encode_source(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of the pieces of strings `(B,)`, without leading and trailing white space."""
        return self._source.tokenize(_strip(texts))

    def encode_target(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The same for the target language."""
        return self._target.tokenize(_strip(texts))

    def decode_target(self, ids: tf.Tensor) -> tf.Tensor:
        """Strings `(B,)` of ids `(B, T)`. Pad, bos and eos give no text, unk gives "⁇"."""
        ragged = tf.RaggedTensor.from_tensor(ids, padding=self._pad_id)
        return self._target.detokenize(ragged)

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """The pieces of ids `(...)`; "" for pad, bos and eos."""
        specials = self._specials
        pieces = ["" if id in specials else piece for id, piece in enumerate(self._target_pieces)]
        return tf.gather(tf.constant(pieces), ids)


def _strip(texts: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_replace(texts, _ENDS, "")


def map_length_chunks(
    function: Callable[..., Sequence[tf.Tensor]],
    tensors: Sequence[tf.Tensor],
    lengths: tf.Tensor,
    tokens_per_chunk: int | tf.Tensor,
    results: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, ...]:
    """Applies a function to chunks of rows of similar length, the longest rows first.

    This keeps padding and memory low: it needs memory for one chunk and the results.

    Args:
        function: Takes the rows of `tensors` `(R, ...)` and their maximum length, int32 `()`, and
            returns tensors `(R, ...)`, one for each of `results` and not larger on any axis.
        tensors: Tensors `(B, ...)`.
        lengths: int32 `(B,)`, at least 1.
        tokens_per_chunk: Maximum of rows times maximum length in a chunk. A chunk has at least one
            row.
        results: Tensors `(B, ...)` with the values of the positions that `function` does not fill.

    Returns:
        The results of all rows in the order of `tensors`.
    """
    batch = tf.shape(lengths)[0]
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)

    def rest(start: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        return start < batch

    def chunk(start: tf.Tensor, *results: tf.Tensor) -> tuple[tf.Tensor, ...]:
        longest = lengths[order[start]]
        rows = order[start : start + tf.maximum(tokens_per_chunk // longest, 1)]
        found = function(*(tf.gather(tensor, rows) for tensor in tensors), longest)
        results = tuple(
            tf.tensor_scatter_nd_update(result, rows[:, None], _filled(values, result, rows))
            for values, result in zip(found, results, strict=True)
        )
        return (start + tf.shape(rows)[0], *results)

    _, *found = tf.while_loop(rest, chunk, (0, *results), parallel_iterations=1)
    return tuple(found)


def _filled(values: tf.Tensor, results: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Values `(R, ...)` in the size of the results, filled up with the values of the results."""
    if values.shape.rank == 1:
        return values
    sizes = tf.shape(values)
    ends = tf.shape(results)[1:]
    widths = [[0, 0], *([0, ends[axis] - sizes[axis + 1]] for axis in range(values.shape.rank - 1))]
    padded = tf.pad(values, widths)
    inside = tf.pad(tf.ones_like(values, "bool"), widths)
    return tf.where(inside, padded, tf.gather(results, rows))
