"""Which sentences go into which batch."""

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_transformer.data.length_buckets import choose_buckets
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import UserError

Batch = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]


class BatchShape(NamedTuple):
    """Sizes B, S and T of a batch."""

    batch_size: int
    source_length: int
    target_length: int


class Shard(NamedTuple):
    """Of every batch, which of so many equal parts: those from `begin` up to `end`."""

    begin: int = 0
    end: int = 1
    parts: int = 1


class BatchPlan:
    """Batches of sentences of similar length, near a number of tokens (§5.1).

    Which sentences are in a step depends on seed and step alone: any step can be asked for, by any
    process, in any order. Each pass over the data has every sentence exactly once, shuffled anew.
    Batches come in few fixed shapes, so that a compiled training step is compiled few times.

    Example:

    ```python
    plan = BatchPlan(store, tokens_per_batch=4_096, seed=1)
    model.fit(fit_data(plan.batches()), steps_per_epoch=1_000, epochs=8, shuffle=False)
    ```

    Args:
        store: the encoded text.
        tokens_per_batch: target positions of a micro-batch, eos and padding included; a batch has
            at most that many, and at most twice as many source positions.
        seed: decides the order, an integer >= 0.
        accumulation_steps: micro-batches per optimizer step.
        length_multiple: source and target widths are multiples of it.
        shuffle: False gives every pass the same order, shortest sentences first.
        max_shapes: number of batch shapes at most.
        shard: which rows of every batch to give, for one of several processes that train together.
            Parts are as many rows, some of them perhaps without a sentence; the weights are the
            same as in the whole batch. None: all rows.

    Raises:
        UserError: if the longest sentence does not fit into a batch.
    """

    def __init__(
        self,
        store: TokenStore,
        tokens_per_batch: int,
        seed: int = 0,
        accumulation_steps: int = 1,
        length_multiple: int = 8,
        shuffle: bool = True,
        max_shapes: int = 8,
        shard: Shard | None = None,
    ) -> None:
        self.store = store
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.accumulation_steps = accumulation_steps
        self.shuffle = shuffle
        self.shard = shard or Shard()
        widths, bucket_of_pair = choose_buckets(
            store.source_lengths + 1, store.target_lengths + 1, length_multiple, max_shapes
        )
        self._shapes = [self._shape(*width) for width in widths]
        self._members = [
            np.flatnonzero(bucket_of_pair == bucket).astype(np.int32)
            for bucket in range(len(widths))
        ]
        self._kept, self._slots = self._lay_out()
        # Two, since the micro-batches of a step may lie in two passes.
        self._order_of_pass = functools.lru_cache(maxsize=2)(self._order)

    @property
    def shapes(self) -> list[BatchShape]:
        """All shapes that batches have, narrowest first."""
        return list(dict.fromkeys(slot.shape for slot in self._slots))

    @property
    def batches_per_pass(self) -> int:
        """Micro-batches that have every sentence once."""
        return len(self._slots)

    @property
    def steps_per_pass(self) -> float:
        """Optimizer steps per pass; a step may begin in one pass and end in the next."""
        return self.batches_per_pass / self.accumulation_steps

    def tokens(self, step: int) -> int:
        """Real target tokens of an optimizer step: pieces and eos, no padding."""
        micro_batches = (self._slot(step, micro)[1] for micro in range(self.accumulation_steps))
        return sum(
            int(self.store.lengths("target", pairs).sum()) + len(pairs) for pairs in micro_batches
        )

    def batch(self, step: int, micro: int = 0) -> Batch:
        """One micro-batch of an optimizer step.

        Args:
            step: optimizer step, counted from 0.
            micro: micro-batch of that step, in `range(accumulation_steps)`.

        Returns:
            `(inputs, labels, sample_weight)`: inputs `{"source_ids": int32 (B, S), "target_ids":
            int32 (B, T)}`, labels int32 (B, T), sample_weight float32 (B, T). Rows without a
            sentence are all padding. A weight is 0 on padding and else `accumulation_steps` over
            the real target tokens of the whole step: an engine that sums the weighted loss of a
            micro-batch and averages the gradients of micro-batches gets the gradient of the mean
            over the step's tokens.
        """
        shape, pairs = self._slot(step, micro)
        begin, end, parts = self.shard
        rows = -(-shape.batch_size // parts)
        return _assemble(
            self.store,
            pairs[begin * rows : end * rows],
            shape._replace(batch_size=(end - begin) * rows),
            self.accumulation_steps / self.tokens(step),
        )

    def micro_batches(self, step: int) -> list[Batch]:
        """All micro-batches of an optimizer step (see `batch`)."""
        return [self.batch(step, micro) for micro in range(self.accumulation_steps)]

    def batches(self, start_step: int = 0) -> Iterator[Batch]:
        """Micro-batches without end, from an optimizer step on (see `batch`)."""
        for step in itertools.count(start_step):
            yield from self.micro_batches(step)

    def _shape(self, source_length: int, target_length: int) -> BatchShape:
        tokens_per_sentence = max(target_length, -(-source_length // 2))
        batch_size = self.tokens_per_batch // tokens_per_sentence
        if batch_size == 0:
            raise UserError(
                f"tokens_per_batch must be at least {tokens_per_sentence}, to hold the longest "
                f"sentence. Received: tokens_per_batch={self.tokens_per_batch}"
            )
        if batch_size > 8:
            batch_size -= batch_size % 8
        return BatchShape(batch_size, source_length, target_length)

    def _lay_out(self) -> tuple[list[int], list["_Slot"]]:
        """How many pairs each bucket keeps, and where each batch begins in the order of a pass.

        Both are the same in every pass. What does not fill a batch of its bucket goes on to the
        next wider one; only the widest has an incomplete batch.
        """
        kept, slots, begin = [], [], 0
        waiting = [len(members) for members in self._members]
        for bucket, shape in enumerate(self._shapes):
            rest = waiting[bucket] % shape.batch_size if shape != self._shapes[-1] else 0
            kept.append(waiting[bucket] - rest)
            waiting[self._wider(bucket)] += rest
            end = begin + kept[-1]
            starts = range(begin, end, shape.batch_size)
            slots += [_Slot(shape, start, min(start + shape.batch_size, end)) for start in starts]
            begin = end
        return kept, slots

    def _wider(self, bucket: int) -> int:
        """The next bucket whose shape holds the sentences of this one, too."""
        _, source_length, target_length = self._shapes[bucket]
        return next(
            (
                index
                for index, shape in enumerate(self._shapes[bucket + 1 :], start=bucket + 1)
                if shape.source_length >= source_length and shape.target_length >= target_length
            ),
            bucket,
        )

    def _order(self, pass_index: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a pass, int32 (pairs,), as the slots divide them; and the order of the slots."""
        rng = np.random.default_rng([self.seed, pass_index])
        waiting = [[members] for members in self._members]
        order = []
        for bucket, kept in enumerate(self._kept):
            pairs = np.concatenate(waiting[bucket])
            if self.shuffle:
                rng.shuffle(pairs)
            order.append(pairs[:kept])
            waiting[self._wider(bucket)].append(pairs[kept:])
        slots = np.arange(len(self._slots))
        return np.concatenate(order), rng.permutation(slots) if self.shuffle else slots

    def _slot(self, step: int, micro: int) -> tuple[BatchShape, np.ndarray]:
        """Shape and pairs of a micro-batch."""
        if step < 0 or not 0 <= micro < self.accumulation_steps:
            raise ValueError(
                f"step must be >= 0 and micro in range({self.accumulation_steps}). "
                f"Received: step={step}, micro={micro}"
            )
        index = step * self.accumulation_steps + micro
        pass_index, position = divmod(index, self.batches_per_pass)
        pairs, slots = self._order_of_pass(pass_index)
        shape, begin, end = self._slots[slots[position]]
        return shape, pairs[begin:end]


def evaluation_batches(
    store: TokenStore, tokens_per_batch: int, length_multiple: int = 8
) -> list[Batch]:
    """Every sentence once, for `model.evaluate`; a weight is 1 on a real token and 0 on padding.

    Args:
        store: the encoded text.
        tokens_per_batch: target positions of a batch, eos and padding included.
        length_multiple: source and target widths are multiples of it.

    Returns:
        Batches as `BatchPlan.batch` gives them but for the weights.
    """
    plan = BatchPlan(store, tokens_per_batch, length_multiple=length_multiple, shuffle=False)
    return [
        _assemble(store, pairs, shape, weight=1.0)
        for shape, pairs in (plan._slot(step, 0) for step in range(plan.batches_per_pass))
    ]


class _Slot(NamedTuple):
    """A micro-batch: its shape, and which stretch of the order of a pass it takes."""

    shape: BatchShape
    begin: int
    end: int


def _assemble(store: TokenStore, pairs: np.ndarray, shape: BatchShape, weight: float) -> Batch:
    source_ids = _pad(store, "source", pairs, (shape.batch_size, shape.source_length))
    labels = _pad(store, "target", pairs, (shape.batch_size, shape.target_length))
    target_ids = np.full_like(labels, PAD_ID)
    target_ids[:, 1:] = np.where(labels == EOS_ID, PAD_ID, labels)[:, :-1]
    target_ids[: len(pairs), 0] = BOS_ID
    sample_weight = (labels != PAD_ID) * np.float32(weight)
    return {"source_ids": source_ids, "target_ids": target_ids}, labels, sample_weight


def _pad(store: TokenStore, side: str, pairs: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Pieces and eos of some sentences: int32, of the given shape."""
    ids = np.full(shape, PAD_ID, np.int32)
    lengths = store.lengths(side, pairs)
    rows = ids[: len(pairs)]
    rows[np.arange(shape[1]) < lengths[:, None]] = store.pieces(side, pairs)
    rows[np.arange(len(pairs)), lengths] = EOS_ID
    return ids
