"""Data for `model.fit`, `model.evaluate` and `model.predict`."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_transformer.capabilities import Capabilities


def fit_data(
    batches: Iterable[Any], model: Any = None, batch_size: int = 32, shuffle: bool = True
) -> Any:
    """Prepares batches of varying sequence lengths for `model.fit` and `model.evaluate`.

    The models of this package do it themselves, so they take all these data as they are. For other
    models, Keras on TensorFlow infers the shapes of all batches from the first two, so a later
    batch of another length may fail.

    Example:

    >>> model.fit(fit_data(DataLoader(pairs, batch_size=32, collate_fn=pad)), shuffle=False)

    Args:
        batches: Iterable of batches, such as a list, a generator, PyTorch's `DataLoader` or a
            dataset of Grain. A batch is `(inputs, labels)` or `(inputs, labels, sample_weight)`, or
            a dict of the inputs and `labels`, of arrays or tensors of any backend. All batches have
            the same nested structure, dtypes and ranks. Or a sequence of rows, as a Hugging Face
            dataset is: dicts of lists of ids, which are padded to a multiple of 8.
        model: The functional model that takes the batches. Only the batch axis, and axes whose size
            is None in an input or output of the model, may then vary in size, and keys that are no
            inputs are left out. Defaults to None, which lets all axes vary.
        batch_size: Number of rows per batch. Defaults to 32.
        shuffle: Whether each epoch has the rows in another order. Defaults to True.

    Returns:
        A `tf.data.Dataset` on TensorFlow, otherwise a `keras.utils.PyDataset`. If the number of
        batches is unknown, a generator for one epoch, unless Keras knows the type of `batches`.
    """
    stream = _Stream(batches, model, batch_size, shuffle)
    if keras.config.backend() == "tensorflow":
        return _tensorflow_dataset(stream, model)
    if stream.num_batches is not None:
        return stream
    is_known = type(batches).__module__.startswith(("torch.", "grain."))
    return batches if is_known else iter(stream)


def prepared(data: Any, model: Any, batch_size: int | None, shuffle: bool = False) -> Any:
    """Returns arrays, and datasets that Keras takes, as they are, and all else as `fit_data`."""
    first = data[0] if isinstance(data, list) and data else None
    known = (list, str, dict, tuple, keras.utils.PyDataset)
    is_known = isinstance(data, known) and not isinstance(first, dict | tuple)
    is_known |= hasattr(data, "__array__") or hasattr(data, "element_spec")
    if is_known or not isinstance(data, Iterable):
        return data
    return fit_data(data, model, batch_size or 32, shuffle)


def has_own_order(data: Any) -> bool:
    """Returns whether Keras must not shuffle: what `fit_data` returns, and a `tf.data.Dataset`."""
    return isinstance(data, _Stream) or hasattr(data, "element_spec")


class _Stream(keras.utils.PyDataset):
    """The batches of an iterable or of rows as tuples, in their order, for each epoch anew."""

    def __init__(self, data: Any, model: Any, batch_size: int, shuffle: bool) -> None:
        super().__init__()
        first = None if isinstance(data, Iterator) else next(iter(data))
        is_rows = isinstance(first, dict) and all(np.ndim(x) < 2 for x in first.values())
        self._batches: Iterator[Any] = enumerate(())
        self.data, self._rows = data, batch_size if is_rows else 0
        model = Capabilities.of(model)
        inputs = model.inputs or ()
        self._names = {x.name for x in inputs}
        self._names |= {x.replace("_ids", "_segments") for x in self._names}  # of packed rows
        # Rows may begin with whole numbers where later ones have fractions.
        self._dtypes = {x.name: x.dtype for x in inputs if "float" in x.dtype}
        self._dtypes["sample_weight"] = "float32"
        self._reorders, self._pad_id = shuffle, model.pad_id

    @property
    def num_batches(self) -> int | None:
        try:
            return -(-len(self.data) // (self._rows or 1))
        except TypeError:
            return None

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            self._batches = enumerate(self)
        place, batch = next(self._batches, (None, None))
        if place != index:
            raise ValueError("The batches have their own order: give `fit` `shuffle=False`")
        return batch

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self._row_batches() if self._rows else self.data:
            if isinstance(batch, dict):
                names = self._names & batch.keys() or batch.keys() - {"labels", "sample_weight"}
                given = [batch[x] for x in ("labels", "sample_weight") if x in batch]
                batch = ({name: x for name, x in batch.items() if name in names}, *given)
            yield tuple(batch) if isinstance(batch, list | tuple) else (batch,)

    def _row_batches(self) -> Iterator[dict[str, np.ndarray]]:
        count = len(self.data)
        order = np.random.permutation(count) if self._reorders else np.arange(count)
        for places in np.split(order, range(self._rows, count, self._rows)):
            rows = [self.data[int(place)] for place in places]
            yield {name: self._padded(name, [row[name] for row in rows]) for name in rows[0]}

    def _padded(self, name: str, values: list[Any]) -> np.ndarray:
        # At least 32 bits, so that the batches of a column that is all integers have one dtype.
        widest = np.result_type("int32", *(np.asarray(x).dtype for x in values))
        dtype = self._dtypes.get(name, widest)
        if np.ndim(values[0]) == 0:
            column = np.asarray(values, dtype)
            # With a second axis, because TensorFlow compiles no step for weights of two ranks.
            return column[:, None] if name == "sample_weight" else column
        width = -(-max(map(len, values)) // 8) * 8  # JAX compiles each width.
        value = 0 if name in ("masked_positions", "segment_ids") else self._pad_id
        return keras.utils.pad_sequences(values, width, dtype, "post", value=value)


def _tensorflow_dataset(stream: _Stream, model: Any) -> Any:
    import tensorflow as tf

    varying: set[int] | None = None if model is None else {0}
    if inputs := Capabilities.of(model).inputs:
        shapes = [x.shape for x in (*inputs, *model.outputs)]
        varying = {0} | {i for shape in shapes for i, size in enumerate(shape) if size is None}

    def specification(x: Any) -> Any:
        shape = [None if varying is None or i in varying else n for i, n in enumerate(x.shape)]
        return tf.TensorSpec(shape, x.dtype)

    def arrays() -> Iterator[Any]:
        for batch in stream:  # TensorFlow takes a list for one array.
            yield keras.tree.map_structure(np.asarray, keras.tree.lists_to_tuples(batch))

    def cast(x: Any, spec: Any) -> Any:  # TensorFlow would cut off fractions without an error.
        return x.astype(spec.dtype.as_numpy_dtype, casting="same_kind", copy=False)

    def batches() -> Iterator[Any]:
        for batch in whole or arrays():
            yield keras.tree.map_structure(cast, batch, signature)

    iterator = arrays()
    signature = keras.tree.map_structure(specification, first := next(iterator))
    weights = [tf.TensorSpec(x.shape, "float32") for x in keras.tree.flatten(signature[2:])]
    signature = (*signature[:2], *keras.tree.pack_sequence_as(signature[2:], weights))
    whole = itertools.chain([first], iterator) if isinstance(stream.data, Iterator) else None
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    if stream.num_batches is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(stream.num_batches))
    return dataset.prefetch(tf.data.AUTOTUNE)
