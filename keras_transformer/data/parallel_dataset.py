"""Parallel text as batches for `model.fit` on every backend, and for loops of one's own."""

import functools
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import keras

from keras_transformer._backend.fit_data import fit_data as fit_data
from keras_transformer.data.batch_plan import Batch, BatchPlan
from keras_transformer.data.parallel_text import Languages, read_parallel, read_rows
from keras_transformer.data.text_files import Pair
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizer import Tokenizer


class ParallelDataset(keras.utils.PyDataset):
    """Batches of sentence pairs: encoded, framed by bos and eos, sorted by length and padded.

    Each pass has every pair once, in an order that depends only on the seed and on `epoch`, the
    number of passes before. A model of this package that is trained on the dataset is saved with
    the tokenizer. Other Keras models need `fit(dataset, shuffle=False)` to keep the order.

    Example:

    >>> dataset = ParallelDataset(("train.en", "train.de"), tokenizer, batch_tokens=2_048, seed=1)
    >>> model.fit(dataset, epochs=10, validation_data=ParallelDataset(held_out, tokenizer))
    >>> for inputs, labels, sample_weight in dataset:  # one pass in a loop of one's own

    Args:
        pairs: (source, target) sentences; rows of a Hugging Face dataset, such as
            `{"translation": {"en": ..., "de": ...}}`; a file or a tuple of two files, as for
            `read_parallel`; or a `TokenStore`, which keeps the ids of large text.
        tokenizer: The tokenizer.
        batch_tokens: Maximum number of target tokens of a batch, including eos and padding.
            Defaults to 4096.
        max_length: Maximum number of pieces per sentence. Longer pairs and those with an empty side
            are dropped; `dataset.plan.store.report` counts them. Defaults to 256.
        languages: Source and target language, needed if rows or a file have more than two.
        max_shapes: Maximum number of batch shapes, each of which JAX compiles. Defaults to 4.
        **plan: `seed`, `shuffle`, `length_multiple` and `packing` of `BatchPlan`.

    Returns:
        `dataset[i]` is a tuple `(inputs, labels, sample_weight)`, see `BatchPlan.batch`. The weight
        of padding is 0, and of any other token 1.
    """

    def __init__(
        self,
        pairs: Iterable[Any] | str | Path | TokenStore,
        tokenizer: Tokenizer,
        batch_tokens: int = 4_096,
        max_length: int = 256,
        languages: Languages = (None, None),
        max_shapes: int = 4,
        **plan: Any,
    ) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.tokenizer_files = tokenizer.files  # A model that is trained on the data takes them.
        if not isinstance(pairs, TokenStore):
            self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            files: Any = (pairs, None) if isinstance(pairs, str | Path) else pairs
            text: Iterable[Pair] = read_rows(files, languages)
            if isinstance(files, tuple) and isinstance(files[0], str | Path):
                text = read_parallel(files[0], files[1], languages)
            folder = Path(self._folder.name) / "training"
            pairs = TokenStore.build(folder, text, tokenizer, max_length, progress=False)
        self.plan = BatchPlan(pairs, batch_tokens, max_shapes=max_shapes, **plan)
        self.epoch = 0
        self._steps = functools.lru_cache(maxsize=1)(self._steps_of_pass)

    def __repr__(self) -> str:
        return f"<ParallelDataset of {len(self.plan.store)} pairs in {len(self)} batches>"

    def __len__(self) -> int:
        return self.plan.batches_per_pass

    def __getitem__(self, index: int) -> Batch:
        return self.plan.unweighted(self._steps(self.epoch)[index])

    def _steps_of_pass(self, epoch: int) -> list[int]:
        """Returns the steps of the plan in a pass. The lengths of the first two differ if possible.

        Keras on TensorFlow assumes that all batches have a length that the first two share.
        """
        steps = range(epoch * len(self), (epoch + 1) * len(self))
        step_of = {self.plan.slot(step)[0]: step for step in reversed(steps)}
        pairs = itertools.combinations(step_of, 2)
        begin = max(pairs, key=lambda x: sum(map(int.__ne__, x[0][1:], x[1][1:])), default=())
        return [*dict.fromkeys([*(step_of[shape] for shape in begin), *steps])]

    def __iter__(self) -> Iterator[Batch]:
        yield from super().__iter__()
        self.on_epoch_end()

    def on_epoch_end(self) -> None:
        self.epoch += 1
