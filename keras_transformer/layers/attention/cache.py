"""The decoding cache, which holds a model's tensors between two decoding steps."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer._backend.operations import of_unknown_shape, write_slots
from keras_transformer._backend.types import Ids, Size, Tensor


class Cache(NamedTuple):
    """The decoding cache of a model. Each field is a nested structure of tensors."""

    beam: Any = ()
    """`(B, N, ...)`, one row per hypothesis. Search reorders these tensors along axis 1."""
    sentence: Any = ()
    """`(B * m, ...)`, any number m of rows per sentence. Reordering does not change them."""
    shared: Any = ()
    """The same for all sentences. Search does not change these tensors."""

    def reorder(self, beams: Ids) -> "Cache":
        """Returns a cache whose beam n is the old beam `beams[:, n]`, for int `beams` `(B, N)`."""
        beam = keras.tree.map_structure(lambda x: take_columns(x, beams), self.beam)
        return self._replace(beam=beam)

    @classmethod
    def join(cls, parts: dict[Any, "Cache"]) -> "Cache":
        """Returns one cache of the caches of several layers, for which `parts` is the reverse.

        The names are in order, because `keras.tree` on PyTorch sorts those of some dictionaries.
        """
        return cls(*({name: part[i] for name, part in sorted(parts.items())} for i in range(3)))

    def parts(self) -> dict[Any, "Cache"]:
        """Returns the caches that `join` joined."""
        return {x: Cache(self.beam[x], self.sentence[x], self.shared[x]) for x in self.beam}

    def take_sentences(self, rows: Ids, batch: int) -> "Cache":
        """Returns a cache with only the sentences at `rows`, int `(M,)`, of `batch` sentences."""

        def take(x: Any) -> Any:
            grouped = ops.reshape(x, (batch, -1, *x.shape[1:]))
            return ops.reshape(ops.take(grouped, rows, axis=0), (-1, *x.shape[1:]))

        return self._replace(
            beam=keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), self.beam),
            sentence=keras.tree.map_structure(take, self.sentence),
        )


def take_columns(x: Tensor, columns: Ids) -> Any:
    """Takes `columns` `(B, M)` along axis 1 of `x` `(B, N, ...)`, and returns `(B, M, ...)`."""
    if x.shape[1] == columns.shape[1] == 1:
        return x
    batch, num_columns = ops.shape(x)[:2]
    rows = ops.arange(batch, dtype="int32")[:, None] * num_columns
    # Not -1: an axis of size 0 would leave it undefined.
    flat = ops.reshape(x, (batch * num_columns, *ops.shape(x)[2:]))
    return ops.take(flat, rows + ops.cast(columns, "int32"), axis=0)


class LimitedVocabulary(NamedTuple):
    """The K tokens that a step may predict for each sentence, kept in `Cache.sentence`.

    Column k of the logits belongs to token k of these tokens.
    """

    token_ids: Any  # int32 `(B, K)`, padded at the end
    weights: Any  # float `(B, D, K)`, the part of the output matrix for `token_ids`
    bias: Any  # float `(B, 1, K)`, that of the logits, and minus infinity for padding

    @classmethod
    def of(
        cls, token_ids: Ids, matrix: Tensor, bias: Tensor | None, pad_id: int, dtype: str
    ) -> "LimitedVocabulary":
        """Takes `token_ids` from the output matrix `(V, D)` and the bias `(V,)`, in `dtype`."""
        weights = ops.cast(ops.take(matrix, token_ids, axis=0), dtype)
        own = 0.0 if bias is None else ops.cast(ops.take(bias, token_ids, axis=0), dtype)
        own = ops.cast(ops.where(token_ids != pad_id, own, float("-inf")), dtype)
        return cls(token_ids, ops.swapaxes(weights, 1, 2), own[:, None])

    def logits(self, states: Tensor, num_beams: Size) -> Any:
        """Returns the logits, float32 `(B, N, K)`, of `(B * N, D)`. Padding has minus infinity."""
        states = ops.reshape(states, (-1, num_beams, self.weights.shape[1]))
        return ops.cast(ops.matmul(states, self.weights) + self.bias, "float32")


class FixedKeyValues(NamedTuple):
    """Keys and values with room for a fixed number of positions.

    Each position has N slots, one for the key and value of each hypothesis, which stay there when
    search reorders hypotheses (see `take_slots`). The shapes let XLA update them in place and
    multiply them without transposing.
    """

    key: Any  # float `(B * G, K, L * N)`
    value: Any  # float `(B * G, L * N, K_v)`

    def write(self, keys: Tensor, values: Tensor, start: Size) -> "FixedKeyValues":
        """Writes keys `(B * G, N, K)` and values `(B * G, N, K_v)` from slot `start` on."""
        return FixedKeyValues(
            write_slots(self.key, 2, start, ops.swapaxes(keys, -1, -2)),
            write_slots(self.value, 1, start, values),
        )

    def extend(self, num_slots: int) -> "FixedKeyValues":
        """Appends `num_slots` empty slots."""
        return FixedKeyValues(pad(self.key, 2, num_slots), pad(self.value, 1, num_slots))


class GrowingKeyValues(NamedTuple):
    """Keys and values that grow by one position per step.

    They are for graphs without XLA, such as a SavedModel, where every write to `FixedKeyValues`
    would copy all, and attention would also read positions that are not decoded yet.
    """

    key: Any  # float `(B * G, L * N, K)`
    value: Any  # float `(B * G, L * N, K_v)`

    def write(self, keys: Tensor, values: Tensor, start: Size) -> "GrowingKeyValues":
        """Appends the keys and values. `start` is not used."""
        pairs = (self.key, keys), (self.value, values)
        return GrowingKeyValues(*(ops.concatenate(pair, axis=1) for pair in pairs))


KeyValues = FixedKeyValues | GrowingKeyValues


class CacheSize(NamedTuple):
    """The size of a decoding cache."""

    batch: Size
    """Number of sentences B."""
    beam_size: Size
    """Number of hypotheses N per sentence."""
    max_length: int | None
    """Number of positions L to decode. None: the cache grows by one position per step."""

    def empty_cache(self, num_heads: int, d_k: int, d_v: int, dtype: str) -> Cache:
        """Returns the empty cache of attention with G = `num_heads` heads of keys and values.

        `d_k` and `d_v` are the widths of keys and values in each head.
        """
        rows = self.batch * num_heads
        if self.max_length is None:
            empty = (ops.zeros((rows, 0, d), dtype) for d in (d_k, d_v))
            return Cache(sentence=GrowingKeyValues(*map(of_unknown_shape, empty)))
        slots = self.max_length * self.beam_size
        keys, values = ops.zeros((rows, d_k, slots), dtype), ops.zeros((rows, slots, d_v), dtype)
        return Cache(sentence=FixedKeyValues(keys, values))

    def slots(self) -> Any:
        """Returns the initial `slots` for `take_slots`, int32 `(B, N, L)`, all -1."""
        slots = ops.full((self.batch, self.beam_size, self.max_length or 0), -1, dtype="int32")
        return of_unknown_shape(slots) if self.max_length is None else slots


def extended(caches: Any, num_slots: int) -> Any:
    """Appends empty slots to all `FixedKeyValues` in a nested structure."""
    return keras.tree.traverse(
        lambda x: x.extend(num_slots) if isinstance(x, FixedKeyValues) else None, caches
    )


def take_slots(slots: Tensor, position: Size) -> tuple[Any, Any]:
    """Assigns slot n at `position`, an int or a 0-d int tensor, to hypothesis n.

    `slots`, int32 `(B, N, L)`, contains the number of the slot (see `FixedKeyValues`) that each
    hypothesis uses at each of L positions, or -1 where nothing is written yet. Search reorders
    `slots` with the hypotheses.

    Returns the updated `slots`, and a bool mask `(B, 1, N, L * N)`. Row n of the mask is True at
    the slots that hypothesis n uses. Slot s of position p has the index p * N + s.
    """
    beams, length = ops.shape(slots)[1:]
    numbers = ops.arange(beams, dtype="int32")
    here = ops.arange(length, dtype="int32") == position
    slots = ops.where(here, numbers[:, None], slots)
    return slots, ops.reshape(slots[..., None] == numbers, (-1, 1, beams, length * beams))


def pad(x: Tensor, axis: int, count: int, value: int = 0) -> Any:
    """Appends `count` entries of `value` along an axis."""
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (0, count)
    return ops.pad(x, widths, constant_values=value)
