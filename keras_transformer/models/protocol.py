"""All that search, `Translator` and `SlicedLogitsTrainer` need in a model, without a base class.

Shape letters: B batch, S source, T target, D d_model, V vocabulary, N beams, L positions of the
cache.
"""

import math
from typing import Any, Protocol, runtime_checkable

from keras_transformer._backend.types import Ids, Size
from keras_transformer.capabilities import Capabilities
from keras_transformer.layers.attention.cache import Cache


@runtime_checkable
class Searchable(Protocol):
    """An autoregressive model that predicts one token at a time.

    Three further methods and three further attributes are optional:

    - `extend_cache(cache, max_length) -> Cache` returns the cache with room for `max_length`
      positions. Search then starts with a short cache, which is faster.
    - `limit_vocabulary(cache, token_ids) -> Cache` returns a cache with which `step` predicts only
      the tokens `token_ids`, int32 `(B, K)`. Column k of the logits `(B, N, K)` stands for
      `token_ids[:, k]`. `step` then also takes column numbers k instead of token ids. The logits of
      padding are minus infinity. Search with a shortlist needs this method.
    - `source_attention(source_ids, target_ids)` returns the attention weights from target tokens to
      source tokens, float32 `(B, N, T, S)`, for word alignments. `target_ids` `(B, N, T)` contain
      bos and the tokens of translations, padded at the end. The weights of target token t come from
      the step that reads token t and predicts token t + 1.
    - `reads_prompt`: Whether a source is the beginning of its hypotheses (a prompt). `step` then
      ignores the tokens at position 0, which are bos. `Generator` needs True, and `Translator`
      False. Defaults to False.
    - `accepts_any_shape`: Whether `init_cache` and `step` accept axes of unknown size in a
      TensorFlow graph, and `init_cache` accepts `max_length=None`. `Translator` then searches its
      first sentences with one graph for all shapes. Defaults to False.
    - `compiles`: Whether the backend can compile `step`. If not, for example because `step` uses
      NumPy or ONNX Runtime, search runs its loop in Python. The arguments of `init_cache` and
      `step` are tensors of the backend, and their results may be NumPy arrays. Defaults to True.

    Attributes:
        max_length: Maximum length of a source and of a hypothesis, in tokens.
        pad_id: Id of padding in `source_ids`.
        variables: All variables of the model, whose current values compiled searches read.
    """

    max_length: int
    pad_id: int
    variables: Any

    def init_cache(self, source_ids: Ids, max_length: int | None, beam_size: int = 1) -> Cache:
        """Reads the sources and returns the cache for the first step.

        `source_ids` is an int32 tensor `(B, S)`, padded at the end, `max_length` the maximum number
        of positions L to decode, and `beam_size` the number of beams N per sentence. With the
        `max_length` None, which search uses only in TensorFlow graphs for all shapes, the cache
        grows by one position per step.
        """

    def step(
        self, token_ids: Ids, cache: Cache, position: Size, return_attention_weights: bool = False
    ) -> tuple[Any, ...]:
        """Predicts the next token of every beam.

        Args:
            token_ids: int32 tensor `(B, N)`, the tokens at `position`.
            cache: The cache that `init_cache`, `extend_cache` or the previous `step` returned.
            position: Position of the tokens, an int or a 0-d int tensor, 0 for the first.
            return_attention_weights: Whether to also return the attention weights over the source.
                Only a coverage penalty needs this argument, which a model may omit.

        Returns:
            A tuple of the logits for `position + 1`, float32 `(B, N, V)`, the updated cache and, if
            asked for, the attention weights, float32 `(B, N, S)`.
        """


class SlicesLogits(Protocol):
    """A functional model whose last operation multiplies hidden states by an output matrix."""

    states: Any  # the symbolic tensor `(B, T, D)` of the hidden states
    pad_id: int  # id of padding in the labels

    def output_weights(self) -> tuple[Any, Any]:
        """Returns the output matrix `(V, D)` and the bias `(V,)`. The bias can be None."""


def check_tokenizer(model: Any, tokenizer: Any) -> None:
    """Raises `ValueError` if a model has another tokenizer, or fewer tokens than the tokenizer."""
    known = Capabilities.of(model)
    own = known.tokenizer_files
    if own is not None and own != getattr(tokenizer, "files", None):
        raise ValueError("The model was trained with another tokenizer than the given one.")
    for side, of_model in zip(("source", "target"), known.vocabulary_sizes, strict=True):
        # TensorFlow would take another token for such an id, and JAX would compute NaN.
        of_tokenizer = getattr(tokenizer, f"{side}_vocabulary_size", 0)
        if of_tokenizer > (of_model or math.inf):
            raise ValueError(
                f"The tokenizer has more {side} tokens than the model, so it is not the "
                f"model's. Received: {of_tokenizer} and {of_model} tokens"
            )
