"""Data for `model.fit`, `model.evaluate` and `model.predict`."""

import gc
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

_LENGTH_MULTIPLE = 8  # of padded rows, so that JAX compiles few shapes


def fit_data(
    batches: Iterable[Any], model: Any = None, batch_size: int | None = None, shuffle: bool = True
) -> Any:
    """Prepares batches of varying sequence lengths for `fit`, `evaluate` and `predict` of Keras.

    The models of this package call it themselves, so they take all these data as they are. Other
    Keras models need it on TensorFlow: Keras infers the shapes of all batches from the first two,
    so a later batch of another length may fail. A `tf.data.Dataset` can declare that lengths vary.

    Example:

    >>> model.fit(fit_data(DataLoader(pairs, batch_size=32, collate_fn=pad)), shuffle=False)
    >>> batches = evaluation_batches(store, tokens_per_batch=4_096)
    >>> model.evaluate(fit_data(batches), steps=len(batches))

    Args:
        batches: Iterable of batches, such as a list, a generator, PyTorch's `DataLoader` or a
            dataset of Grain. A batch is `(inputs, labels)` or `(inputs, labels, sample_weight)`, or
            a dict of the inputs with the key `labels`, of arrays or tensors of any backend. All
            batches have the same nested structure, dtypes and ranks. Or a sequence of rows, as in a
            Hugging Face dataset: dicts of lists of ids, which are padded to a multiple of 8.
        model: The functional model that takes the batches. If a model is given, only two kinds of
            axes may vary in size: the batch axis, and axes whose size is None in an input or output
            of the model. Keys of dicts that are no inputs are left out. Defaults to None, which
            lets all axes vary.
        batch_size: Number of rows per batch. Defaults to None, which means 32.
        shuffle: Whether each epoch has the rows in another order. Batches keep theirs.

    Returns:
        A `tf.data.Dataset` on TensorFlow. On JAX and PyTorch a `keras.utils.PyDataset`, or a
        generator for one epoch if the number of batches is unknown.
    """
    if isinstance(batches, Iterator):
        batches = itertools.chain([first := next(batches)], batches)
    else:
        first = next(iter(batches))
    if isinstance(first, dict) and all(np.ndim(x) < 2 for x in first.values()):
        pad_id = getattr(model, "pad_id", 0)
        batches = _PaddedRows(batches, batch_size or 32, shuffle, pad_id)  # type: ignore
    stream = _Stream(batches, {x.name for x in getattr(model, "inputs", None) or ()})
    if keras.config.backend() == "tensorflow":
        return _tensorflow_dataset(stream, model)
    if stream.num_batches is not None:
        return stream
    # Keras repeats those that it knows, with as many batches as they have.
    knows = type(batches).__module__.startswith(("torch.", "grain."))
    return batches if knows and not isinstance(first, dict) else iter(stream)


class TakesAnyData:
    """Mixin of models whose `fit`, `evaluate` and `predict` take all that `fit_data` does."""

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if tokenizer := getattr(x, "tokenizer", None):
            getattr(self, "model", self).tokenizer = tokenizer
        given, x = x, _prepared(x, self, batch_size, kwargs.get("shuffle", True))
        is_once = isinstance(x, Iterator) or isinstance(given, Iterator)
        if is_once and epochs > 1 and not kwargs.get("steps_per_epoch"):
            # From the second epoch on, Keras would train on the first two batches.
            raise ValueError(
                "Data without a known length last one epoch: give `steps_per_epoch`, or a list or "
                f"a dataset with a length. Received: epochs={epochs}"
            )
        if x is not given or hasattr(x, "keeps_order"):
            kwargs["shuffle"] = False  # of batches; rows are shuffled
        if "validation_data" in kwargs:
            kwargs["validation_data"] = _prepared(kwargs["validation_data"], self, batch_size)
        return super().fit(x, y, batch_size, epochs, *args, **kwargs)  # type: ignore

    def evaluate(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        x = _prepared(x, self, batch_size)
        return super().evaluate(x, y, batch_size, *args, **kwargs)  # type: ignore

    def predict(self, x: Any, batch_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        x = _prepared(x, self, batch_size)
        return super().predict(x, batch_size, *args, **kwargs)  # type: ignore


def _prepared(data: Any, model: Any, batch_size: int | None, shuffle: bool = False) -> Any:
    """Returns arrays, and a dataset that Keras takes, as they are, and all else as `fit_data`."""
    if isinstance(data, list):  # Keras takes a list of arrays, but not of batches or rows.
        is_known = not (data and isinstance(data[0], dict | tuple))
    else:
        is_known = isinstance(data, str | dict | tuple | keras.utils.PyDataset)
        is_known |= hasattr(data, "__array__") or hasattr(data, "element_spec")
    if is_known or not isinstance(data, Iterable):
        return data
    return fit_data(data, model, batch_size, shuffle)


class _Stream(keras.utils.PyDataset):
    """The batches of an iterable as tuples, in its order, for each epoch anew."""

    def __init__(self, batches: Iterable[Any], names: set[str]) -> None:
        super().__init__()
        self.batches, self._names = batches, names

    @property
    def num_batches(self) -> int | None:
        try:
            return len(self.batches)  # type: ignore
        except TypeError:
            return None

    def on_epoch_begin(self) -> None:
        self._current = iter(self)

    def __getitem__(self, index: int) -> Any:
        return next(self._current)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.batches:
            if isinstance(batch, dict):
                names = self._names or batch.keys() - {"labels", "sample_weight"}
                found = [batch[x] for x in ("labels", "sample_weight") if x in batch]
                batch = ({name: x for name, x in batch.items() if name in names}, *found)
            yield tuple(batch) if isinstance(batch, list | tuple) else (batch,)


class _PaddedRows:
    """Batches of rows, which are dicts of lists of ids or of single values."""

    def __init__(self, rows: Sequence[Any], batch_size: int, shuffle: bool, pad_id: int) -> None:
        self._rows, self._batch_size, self._shuffle = rows, batch_size, shuffle
        self._pad_id = pad_id

    def __len__(self) -> int:
        return -(-len(self._rows) // self._batch_size)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        count, size = len(self._rows), self._batch_size
        order = np.random.permutation(count) if self._shuffle else np.arange(count)
        for begin in range(0, count, size):
            rows = [self._rows[int(index)] for index in order[begin : begin + size]]
            yield {name: self._padded([row[name] for row in rows]) for name in rows[0]}

    def _padded(self, values: list[Any]) -> np.ndarray:
        arrays = [np.asarray(value) for value in values]
        if arrays[0].ndim == 0:
            return np.stack(arrays)
        width = max(map(len, arrays)) + -max(map(len, arrays)) % _LENGTH_MULTIPLE
        padded = np.full((len(arrays), width), self._pad_id, arrays[0].dtype)
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
        return padded


def _tensorflow_dataset(stream: _Stream, model: Any) -> Any:
    import tensorflow as tf

    varying: set[int] | None = None if model is None else {0}
    if inputs := getattr(model, "inputs", None):
        shapes = [x.shape for x in (*inputs, *model.outputs)]
        varying = {0} | {i for shape in shapes for i, size in enumerate(shape) if size is None}

    def specification(x: Any) -> Any:
        shape = [None if varying is None or i in varying else n for i, n in enumerate(x.shape)]
        return tf.TensorSpec(shape, x.dtype)

    def arrays() -> Iterator[Any]:
        for batch in stream:  # TensorFlow takes a list for one array.
            yield keras.tree.map_structure(np.asarray, keras.tree.lists_to_tuples(batch))

    iterator = arrays()
    signature = keras.tree.map_structure(specification, first := next(iterator))
    whole = itertools.chain([first], iterator) if isinstance(stream.batches, Iterator) else None
    dataset = tf.data.Dataset.from_generator(lambda: whole or arrays(), output_signature=signature)
    if stream.num_batches is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(stream.num_batches))
    return dataset.prefetch(tf.data.AUTOTUNE)


def end_iteration() -> None:
    """Ends the iterators of `fit_data` that are no longer used.

    TensorFlow logs an error about an iterator that Python's exit finds in a reference cycle.
    """
    if keras.config.backend() == "tensorflow":
        gc.collect()
