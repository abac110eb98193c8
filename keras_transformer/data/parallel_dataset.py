"""Parallel text as batches for `model.fit` on every backend, and for loops of one's own."""

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import keras

from keras_transformer.data.batch_plan import Batch, BatchPlan
from keras_transformer.data.parallel_text import Languages, read_parallel, read_rows
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizer import Tokenizer


class ParallelDataset(keras.utils.PyDataset):
    """Batches of sentence pairs: encoded, framed by bos and eos, sorted by length and padded.

    Each pass over the data has every pair once, in a new order, which depends on `seed` alone. The
    batches have few different shapes, each of which JAX compiles once.

    Example:

    >>> dataset = ParallelDataset([("A dog runs.", "Ein Hund rennt."), ...], tokenizer)
    >>> dataset = ParallelDataset(("train.en", "train.de"), tokenizer, batch_tokens=4_096)
    >>> model.fit(dataset, epochs=10, validation_data=ParallelDataset(held_out, tokenizer))
    >>> for inputs, labels, sample_weight in dataset:  # one pass
    ...     loss = train_on(inputs, labels)

    A `keras.Model` that is none of this package needs `model.fit(dataset, shuffle=False)`.
    Otherwise, Keras changes the order of the batches.

    Args:
        pairs: (source, target) sentences; rows of a Hugging Face dataset, such as
            `{"translation": {"en": ..., "de": ...}}` or `{"source": ..., "target": ...}`; a file or
            a tuple of two files, as for `read_parallel`; or a `TokenStore`, which keeps the ids of
            a large text for the next time.
        tokenizer: The tokenizer. A model of this package that is trained on the dataset keeps it as
            `model.tokenizer`, and saves it with its weights.
        batch_tokens: Maximum number of target tokens of a batch, including eos and padding.
            Defaults to 4096.
        max_length: Maximum number of pieces per sentence. Longer pairs and those with an empty side
            are dropped (see `report`). Defaults to 256.
        max_shapes: Maximum number of batch shapes. More shapes need less padding and more
            compilation. Defaults to 4.
        length_multiple: Sentences are padded to a multiple of this number of tokens. Defaults to 8.
        seed: Random seed of the order, an integer >= 0. Defaults to 0.
        shuffle: If False, every pass has the same order. Defaults to True.
        languages: Source and target language, if rows or a file have more than two.
        **kwargs: Arguments of `keras.utils.PyDataset`, such as `workers`.

    Attributes:
        epoch: The number of finished passes. To continue a training, set it to `initial_epoch`.
        report: One line of text with the numbers of kept and of dropped pairs.

    Returns:
        `dataset[i]` is a tuple `(inputs, labels, sample_weight)`. The dict `inputs` has
        `source_ids`, int32 (B, S), and `target_ids`, int32 (B, T). The array `labels` is int32
        (B, T), and `sample_weight` float32 (B, T): 0 for padding and 1 for other tokens.

    Raises:
        UserError: If no pair is left, a file cannot be read, or the longest pair does not fit into
            `batch_tokens`.
    """

    keeps_order = True

    def __init__(
        self,
        pairs: Iterable[Any] | str | Path | TokenStore,
        tokenizer: Tokenizer,
        batch_tokens: int = 4_096,
        max_length: int = 256,
        max_shapes: int = 4,
        length_multiple: int = 8,
        seed: int = 0,
        shuffle: bool = True,
        languages: Languages = (None, None),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        if not isinstance(pairs, TokenStore):
            self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            is_file = isinstance(pairs, str | Path)
            paths: Any = (pairs,) if is_file else pairs
            is_file = isinstance(paths, tuple) and all(isinstance(x, str | Path) for x in paths)
            found = read_parallel(*paths, languages=languages) if is_file else None
            pairs = TokenStore.build(
                Path(self._folder.name) / "store",
                found or read_rows(paths, languages),
                tokenizer,
                max_length,
                progress=False,
            )
        self.report = pairs.report
        self.plan = BatchPlan(
            pairs,
            batch_tokens,
            seed,
            length_multiple=length_multiple,
            shuffle=shuffle,
            max_shapes=max_shapes,
        )
        self.epoch = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch, first = epoch, epoch * len(self)
        self._steps = [*range(first, first + len(self))]
        # Keras on TensorFlow assumes that a length varies only if the first two batches differ.
        shapes = [self.plan.slot(step)[0] for step in self._steps]
        pairs = itertools.combinations(dict.fromkeys(shapes), 2)
        begin = max(pairs, key=lambda x: sum(map(int.__ne__, x[0][1:], x[1][1:])), default=())
        for place, shape in enumerate(begin):
            self._steps.insert(place, self._steps.pop(shapes.index(shape, place)))
            shapes.insert(place, shapes.pop(shapes.index(shape, place)))

    def __len__(self) -> int:
        return self.plan.batches_per_pass

    def __getitem__(self, index: int) -> Batch:
        return self.plan.unweighted(self._steps[index])

    def __iter__(self) -> Iterator[Batch]:
        yield from super().__iter__()
        self.on_epoch_end()

    def on_epoch_end(self) -> None:
        self.epoch += 1
