"""What a model keeps between two decoding steps."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer._backend.operations import of_unknown_shape
from keras_transformer.decoding.top_k import take_columns


class Cache(NamedTuple):
    """The decoding cache of a model: three nested structures of tensors.

    Search moves hypotheses between beams and drops sentences that are finished. It does both by
    the shapes stated here, so that no model needs code for it.

    Attributes:
        beam: Tensors `(B, N, ...)`, one row per hypothesis. Search reorders them along axis 1.
        sentence: Tensors `(B * m, ...)` for any m, sentence by sentence, that do not move when
            hypotheses do.
        shared: Anything that all sentences share. Search never changes it.
    """

    beam: Any = ()
    sentence: Any = ()
    shared: Any = ()

    def reorder(self, beams: Any) -> "Cache":
        """Returns the cache in which beam n continues beam `beams[:, n]`, int `(B, N)`."""
        beam = keras.tree.map_structure(lambda x: take_columns(x, beams), self.beam)
        return self._replace(beam=beam)

    def take_sentences(self, rows: Any, batch: int) -> "Cache":
        """Returns the cache of the sentences `rows`, int `(M,)`, of the `batch` sentences B."""

        def take(x: Any) -> Any:
            grouped = ops.reshape(x, (batch, -1, *x.shape[1:]))
            return ops.reshape(ops.take(grouped, rows, axis=0), (-1, *x.shape[1:]))

        return self._replace(
            beam=keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), self.beam),
            sentence=keras.tree.map_structure(take, self.sentence),
        )


class FixedKeyValues(NamedTuple):
    """Keys and values with room for a fixed number of positions.

    Each position has N slots, one per hypothesis. Nothing moves once it is written; the mask of
    `take_slots` says which slots a hypothesis is made of. Compilers write into these shapes in
    place and multiply them as they are. The memory of cross-attention has the same layout, with
    axes for B and H and one slot per source token.

    Attributes:
        key: float tensor `(B * H, K, L * N)`.
        value: float tensor `(B * H, L * N, K_v)`.
    """

    key: Any
    value: Any

    @classmethod
    def empty(cls, rows: Any, d_k: int, d_v: int, num_slots: Any, dtype: str) -> "FixedKeyValues":
        """Returns zeros for `rows` (B * H) and `num_slots` (L * N)."""
        shapes = (rows, d_k, num_slots), (rows, num_slots, d_v)
        return cls(*(ops.zeros(shape, dtype) for shape in shapes))

    @property
    def key_is_transposed(self) -> bool:
        """Whether the slots are the last axis of `key`."""
        return True

    def open_position(self, slots: Any) -> Any:
        """Returns the slots `(B, N, L)` with room for the next position."""
        return slots

    def write(self, keys: Any, values: Any, start: Any) -> "FixedKeyValues":
        """Writes keys `(B * H, N, K)` and values `(B * H, N, K_v)` into the slots from `start`."""
        return FixedKeyValues(
            ops.slice_update(self.key, (0, 0, start), ops.swapaxes(keys, -1, -2)),
            ops.slice_update(self.value, (0, start, 0), values),
        )

    def extend(self, num_slots: int) -> "FixedKeyValues":
        """Appends `num_slots` empty slots."""
        return FixedKeyValues(pad(self.key, 2, num_slots), pad(self.value, 1, num_slots))


class GrowingKeyValues(NamedTuple):
    """Keys and values of the positions decoded so far, for loops whose shapes may change.

    Only XLA writes into `FixedKeyValues` in place. Without XLA, every write copies them, and
    attention looks at slots that are still empty. The interface is that of `FixedKeyValues`.

    Attributes:
        key: float tensor `(B * H, L * N, K)`.
        value: float tensor `(B * H, L * N, K_v)`.
    """

    key: Any
    value: Any

    @classmethod
    def empty(cls, rows: Any, d_k: int, d_v: int, num_slots: Any, dtype: str) -> "GrowingKeyValues":
        """Returns no slots, whatever `num_slots` is."""
        return cls(*(of_unknown_shape(ops.zeros((rows, 0, d), dtype)) for d in (d_k, d_v)))

    @property
    def key_is_transposed(self) -> bool:
        return False

    def open_position(self, slots: Any) -> Any:
        return pad(slots, 2, 1, -1)

    def write(self, keys: Any, values: Any, start: Any) -> "GrowingKeyValues":
        """Appends the keys and values; `start` is the end."""
        pairs = (self.key, keys), (self.value, values)
        return GrowingKeyValues(*(ops.concatenate(pair, axis=1) for pair in pairs))

    def extend(self, num_slots: int) -> "GrowingKeyValues":
        """Returns itself: `write` makes the room."""
        return self


def empty_slots(batch: Any, beam_size: Any, max_length: int | None) -> Any:
    """Returns the slots of hypotheses without tokens, see `take_slots`.

    Args:
        batch: Sentences B.
        beam_size: Hypotheses N per sentence.
        max_length: Positions L. None: no position yet, for `GrowingKeyValues`.

    Returns:
        int32 tensor `(B, N, L)`, -1 everywhere. Search reorders it with the hypotheses.
    """
    slots = ops.full((batch, beam_size, max_length or 0), -1, dtype="int32")
    return of_unknown_shape(slots) if max_length is None else slots


def take_slots(slots: Any, position: Any, num_heads: int) -> tuple[Any, Any]:
    """Gives the n-th hypothesis slot n at `position`.

    Args:
        slots: int32 tensor `(B, N, L)`: the slot of each position that holds the key and value of
            a hypothesis's token; -1 where none is written yet.
        position: Position of the newest tokens, an int or a 0-d int tensor.
        num_heads: Heads H.

    Returns:
        A tuple of the slots and the mask, bool `(B * H, N, L * N)`, True for the slots that a
        hypothesis is made of.
    """
    beams, length = ops.shape(slots)[1:]
    numbers = ops.arange(beams, dtype="int32")
    here = ops.arange(length, dtype="int32") == position
    slots = ops.where(here, numbers[:, None], slots)
    mask = ops.reshape(slots[..., None] == numbers, (-1, 1, beams, length * beams))
    mask = ops.tile(mask, (1, num_heads, 1, 1))
    return slots, ops.reshape(mask, (-1, beams, length * beams))


def pad(x: Any, axis: int, count: int, value: int = 0) -> Any:
    """Appends `count` entries of `value` along an axis."""
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (0, count)
    return ops.pad(x, widths, constant_values=value)
