"""What a model keeps between two decoding steps."""

from typing import Any, NamedTuple

import keras
from keras import ops

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
