"""What a model must have for search, and for training with sliced logits.

Search, `Translator` and the trainer use only these attributes and methods of a model; it needs no
base class. Shape letters: B batch, S source, T target, D d_model, V vocabulary, N beams, L
positions of the cache.
"""

from typing import Any, Protocol

from keras_transformer.decoding.cache import Cache


class Searchable(Protocol):
    """An autoregressive model that predicts one token at a time.

    Two more methods are optional:

    - `extend_cache(cache, max_length) -> Cache` returns the cache with room for more positions.
      Search then starts with a short cache. Without it, the cache has room for the longest
      hypothesis from the start. A model whose state does not grow with the position needs none.
    - `source_attention(source_ids, target_ids)` returns the attention, float32 `(B, N, T, S)`, of
      target tokens `(B, N, T)` (bos and pieces, padded at the end) to the source. Row t belongs to
      the step that reads token t and predicts token t + 1. `Translator` needs it for word
      alignments.

    Attributes:
        max_length: Longest source and longest hypothesis, in tokens.
        pad_id: Id of padding in `source_ids`.
        variables: All variables; compiled search reads their values at every call.
    """

    max_length: int
    pad_id: int
    variables: Any

    def init_cache(self, source_ids: Any, max_length: int | None, beam_size: int = 1) -> Cache:
        """Reads the sources and returns the cache before the first token.

        Args:
            source_ids: int32 tensor `(B, S)`, padded at the end.
            max_length: Largest number of positions L to decode. None: the cache starts empty and
                grows by one position per step, for loops whose shapes may change; only the export
                to a SavedModel uses it.
            beam_size: Beams N per sentence. Defaults to 1.
        """

    def step(
        self,
        token_ids: Any,
        cache: Cache,
        position: Any,
        return_attention_weights: bool = False,
    ) -> tuple[Any, ...]:
        """Predicts the next token of every beam.

        Args:
            token_ids: int32 tensor `(B, N)`, the tokens at `position`.
            cache: What `init_cache`, `extend_cache` or the last `step` returned.
            position: Position of the tokens, an int or a 0-d int tensor. The first is 0.
            return_attention_weights: Whether to return the attention to the source too. Search
                uses it only with a coverage penalty; a model without attention may omit this
                argument.

        Returns:
            A tuple of the logits, float32 `(B, N, V)`, for position + 1, and the updated cache;
            with `return_attention_weights` also the attention, float32 `(B, N, S)`.
        """


class SlicesLogits(Protocol):
    """A functional model whose last operation multiplies its states by an output matrix.

    Attributes:
        states: The symbolic tensor `(B, T, D)` that the output matrix multiplies.
        pad_id: Id of padding in the labels.
    """

    states: Any
    pad_id: int

    def output_weights(self) -> tuple[Any, Any]:
        """Returns the output matrix `(V, D)` and its bias `(V,)`, or None for no bias."""
