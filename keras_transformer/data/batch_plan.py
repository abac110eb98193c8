"""Groups sentence pairs into batches of a few different shapes."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.buckets import choose_buckets
from keras_transformer.data.packing import Packing
from keras_transformer.data.piece_sampler import PieceSampler
from keras_transformer.data.text_noise import TextNoise
from keras_transformer.data.token_store import SIDES, Sentences, TokenStore
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import UserError, check_sizes

Batch = tuple[Any, np.ndarray, np.ndarray]

_EVENNESS = 0.1  # of the progress of buckets, beside that of corpora
# A sentence gets room for the growth of its pieces that this fraction of sentences does not exceed,
# estimated from so many of them.
_QUANTILE, _SAMPLE = 0.9, 1_000
_COUNTS = 1_024  # how many steps' numbers of tokens are kept; more than between two reports


class BatchShape(NamedTuple):
    """Number of sentence pairs B, source length S and target length T of a batch."""

    batch_size: int
    source_length: int
    target_length: int


class Shard(NamedTuple):
    """The rows of every batch that one process gets: parts `begin` to `end` - 1 of `parts`."""

    begin: int = 0
    end: int = 1
    parts: int = 1


class BatchPlan:
    """Groups sentences of similar length into batches with similar numbers of tokens (§5.1).

    The sentences of a step depend only on the seed and the step. So each process can compute
    the batches of any step, in any order. Each pass over the data uses every sentence exactly once,
    in a new order. Batches have few different shapes, each of which the backend compiles.

    If the store has several corpora, a pass uses the sentences of each as often as its weight says,
    evenly over the pass. With the weight 0.5, a pass uses half of them, and the next the others.

    Example:

    >>> plan = BatchPlan(store, tokens_per_batch=4_096, seed=1)
    >>> model.fit(fit_data(plan.batches()), steps_per_epoch=1_000, epochs=8, shuffle=False)

    Args:
        store: The encoded text.
        tokens_per_batch: Maximum number of target tokens of a micro-batch, including eos and
            padding. A micro-batch may have up to twice as many source tokens.
        seed: Random seed of the order of the sentences, an integer >= 0. Defaults to 0.
        accumulation_steps: Number of micro-batches per optimizer step. Defaults to 1.
        length_multiple: Sentences are padded to a multiple of this number of tokens. Defaults to 8.
        shuffle: If False, every pass has the same order, with the shortest batches first. Defaults
            to True.
        max_shapes: Maximum number of batch shapes. Defaults to 8.
        shard: The part of every batch that this process gets, if several processes train together.
            The sample weights are the same as without `shard`. Defaults to all rows.
        weights: How many times a pass uses each pair, a number for each corpus of the store.
            Defaults to once.
        samplers: Change the text of each batch at random, one after the other, with the seed
            `seed`. Sentences are then padded to lengths with room for more pieces. A sentence whose
            new pieces do not fit stays as it is. Defaults to none.
        packing: Whether each row of a batch has several pairs, of one corpus. All batches then have
            one shape. The rows of the pairs depend only on the seed. Defaults to False. The texts
            of a language model are always packed.

    Raises:
        UserError: If the longest sentence does not fit into a batch.
        ValueError: If a size is not an integer of at least 1.
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
        weights: Sequence[float] | None = None,
        samplers: Sequence[PieceSampler | TextNoise] = (),
        packing: bool = False,
    ) -> None:
        check_sizes(tokens_per_batch=tokens_per_batch, accumulation_steps=accumulation_steps)
        check_sizes(length_multiple=length_multiple, max_shapes=max_shapes)
        self.store = store
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.accumulation_steps = accumulation_steps
        self.shuffle = shuffle
        self.shard = shard or Shard()
        self.weights = weights or [1.0] * len(store.corpora)
        self.samplers = samplers
        self._text = functools.lru_cache(accumulation_steps + 1)(self._read)
        self._tokens = functools.lru_cache(_COUNTS)(self._count)
        self._packed: Packing | None = None
        room = [x + store.are_pairs for x in self._room()]
        if packing or not store.are_pairs:
            self._packed = packed = Packing.of(room, store.corpora, length_multiple, seed)
            self._shares_rows = max(map(len, packed.members), default=0) > 1
            corpora, widths = packed.corpora, [packed.width]
            bucket_of_pair = np.zeros(sum(corpora), np.int32)
        else:
            corpora, (sources, targets) = store.corpora, room
            widths, bucket_of_pair = choose_buckets(sources, targets, length_multiple, max_shapes)
        self._ends = np.cumsum(corpora)
        least = max(_tokens_per_sentence(*width) for width in widths)
        if tokens_per_batch < least:
            raise UserError(
                f"a batch (tokens_per_batch) needs at least {least} tokens, so that the longest "
                f"sentence fits. Received: {tokens_per_batch}"
            )
        self._shapes = [batch_shape(tokens_per_batch, *width) for width in widths]
        buckets = range(len(widths))
        self._members = [np.flatnonzero(bucket_of_pair == x).astype(np.int32) for x in buckets]
        # Keeps the orders of two passes, because the micro-batches of a step can be in two passes.
        self._order_of_pass = functools.lru_cache(maxsize=2)(self._order)
        # Each pass has the same shapes, in another order.
        self._first_shapes = [shape for shape, _ in self._order_of_pass(0)]

    @property
    def shapes(self) -> list[BatchShape]:
        """All batch shapes, in ascending order of sentence length."""
        return [shape for shape in self._shapes if shape in self._first_shapes]

    @property
    def batches_per_pass(self) -> int:
        """Number of micro-batches per pass over the data."""
        return len(self._first_shapes)

    def padding(self, steps: int) -> list[Batch]:
        """Returns a batch without sentences for each shape of the optimizer steps up to `steps`.

        The shapes of the second pass and later ones are those of the first, in another order.
        """
        shapes = dict.fromkeys(self._first_shapes[: steps * self.accumulation_steps])
        none = np.zeros(0, np.int32)
        return [self._assemble(self.store, none, none, shape, 0.0) for shape in shapes]

    def tokens(self, step: int) -> int:
        """Returns the number of target tokens of a step, including eos but not padding."""
        return self._tokens(step)

    def batch(self, step: int, micro: int = 0) -> Batch:
        """Returns one micro-batch of an optimizer step.

        Args:
            step: Optimizer step, counted from 0.
            micro: Index of the micro-batch in the step, in `range(accumulation_steps)`.

        Returns:
            A tuple `(inputs, labels, sample_weight)`. The dict `inputs` contains `source_ids`,
            int32 (B, S), and `target_ids`, int32 (B, T). The array `labels` is int32 (B, T), and
            `sample_weight` float32 (B, T). The weight of padding is 0, and of any other token
            `accumulation_steps` divided by `tokens(step)`. With these weights and a loss that sums
            over tokens, the mean gradient of the micro-batches is the gradient of the step's mean
            loss per target token. Rows without a sentence contain only padding.

        With packing, `inputs` also contains `source_segments` and `target_segments`, int32 of the
        same shapes. The pairs of a row have the segments 1, 2, ..., and padding has 0.

        For a language model, `inputs` are the ids (B, T), in which each text begins with bos. If a
        row of the plan has several texts, they are a dict of `token_ids` and `token_segments`.
        """
        text, pairs, rows, shape = self._text(step, micro)
        begin, end, parts = self.shard
        size = -(-shape.batch_size // parts)
        first, last = np.searchsorted(rows, (begin * size, end * size))
        own = shape._replace(batch_size=(end - begin) * size)
        weight = self.accumulation_steps / self.tokens(step)
        return self._assemble(text, pairs[first:last], rows[first:last] - begin * size, own, weight)

    def unweighted(self, step: int) -> Batch:
        """Returns the first micro-batch of a step, in which each real token has the weight 1."""
        return self._assemble(*self._text(step, 0), 1.0)

    def micro_batches(self, step: int) -> list[Batch]:
        """Returns all micro-batches of an optimizer step (see `batch`)."""
        return [self.batch(step, micro) for micro in range(self.accumulation_steps)]

    def batches(self, start_step: int = 0) -> Iterator[Batch]:
        """Yields micro-batches endlessly, from `start_step` on (see `batch`)."""
        for step in itertools.count(start_step):
            yield from self.micro_batches(step)

    def slot(self, step: int, micro: int = 0) -> tuple[BatchShape, np.ndarray]:
        """Returns the shape of a micro-batch and the indices of its sentence pairs, or rows."""
        index = step * self.accumulation_steps + micro
        pass_index, position = divmod(index, self.batches_per_pass)
        return self._order_of_pass(pass_index)[position]

    def _read(self, step: int, micro: int) -> tuple[Sentences, np.ndarray, np.ndarray, BatchShape]:
        """Returns a text, the pairs of a micro-batch as indices, their rows, and the shape."""
        shape, pairs = self.slot(step, micro)
        rows = np.arange(len(pairs))
        most: Any = shape.source_length - 1, shape.target_length - 1
        if self._packed:
            pairs, rows, most = self._packed.pairs(pairs)
        seed = f"{self.seed} {step * self.accumulation_steps + micro}"
        return *self._draw(pairs, most, seed, step), rows, shape

    def _assemble(
        self, text: Sentences, pairs: np.ndarray, rows: np.ndarray, shape: BatchShape, weight: float
    ) -> Batch:
        """Returns the batch of `pairs`, each in its row of `rows`, which are in ascending order."""
        size = shape.batch_size
        labels, begins, of_target = _frame(text, "target", pairs, rows, (size, shape.target_length))
        target_ids = np.full_like(labels, PAD_ID)
        target_ids[:, 1:] = labels[:, :-1]
        target_ids[rows, begins] = BOS_ID
        target_ids[labels == PAD_ID] = PAD_ID
        sample_weight = (labels != PAD_ID) * np.float32(weight)
        if not text.are_pairs:
            packed = {"token_ids": target_ids, "token_segments": of_target}
            return packed if self._shares_rows else target_ids, labels, sample_weight
        source_ids, _, of_source = _frame(text, "source", pairs, rows, (size, shape.source_length))
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        if self._packed:
            inputs |= {"source_segments": of_source, "target_segments": of_target}
        return inputs, labels, sample_weight

    def _draw(
        self, pairs: np.ndarray, most: Any, seed: str, step: float = math.inf
    ) -> tuple[Sentences, np.ndarray]:
        """Returns the text of some pairs after the samplers, and the places of the pairs in it."""
        text: Sentences = self.store
        for sampler in self.samplers:
            if step >= sampler.first_step:
                text, pairs = sampler.draw(text, pairs, most, seed), np.arange(len(pairs))
        return text, pairs

    def _room(self) -> list[np.ndarray]:
        """Returns for each side the number of pieces to reserve for each sentence: int (pairs,).

        This is at most the number of pieces of the longest sentence.
        """
        lengths = [self.store.lengths(side) for side in self.store.sides]
        if not self.samplers:
            return lengths
        some = np.unique(np.linspace(0, len(self.store) - 1, _SAMPLE, dtype=np.int64))
        drawn, places = self._draw(some, (math.inf, math.inf), "room")
        ratios = [drawn.lengths(x, places) / self.store.lengths(x, some) for x in SIDES]
        growth = np.quantile(ratios, _QUANTILE)
        return [np.minimum(np.ceil(growth * x), x.max()).astype(np.int64) for x in lengths]

    def _count(self, step: int) -> int:
        texts = [self._text(step, micro)[:2] for micro in range(self.accumulation_steps)]
        eos = self.store.are_pairs
        return sum(int(text.lengths("target", x).sum()) + eos * len(x) for text, x in texts)

    def _order(self, pass_index: int) -> list[tuple[BatchShape, np.ndarray]]:
        """Returns the shape of each micro-batch in a pass, and the indices of its pairs.

        If the last batch of a bucket is not full, its pairs move to the next wider bucket.
        """
        rng = np.random.default_rng([self.seed, pass_index])
        moved: list[list[np.ndarray]] = [[] for _ in self._shapes]
        batches, counts = [], []
        for bucket, shape in enumerate(self._shapes):
            pairs = np.concatenate([*self._drawn(bucket, pass_index), *moved[bucket]])
            if self.shuffle:
                pairs = self._shuffled(pairs, rng)
            rest = len(pairs) % shape.batch_size if shape != self._shapes[-1] else 0
            kept, others = np.split(pairs, [len(pairs) - rest])
            wider = range(bucket + 1, len(self._shapes))
            fits = (x for x in wider if np.less_equal(shape[1:], self._shapes[x][1:]).all())
            moved[next(fits, bucket)].append(others)
            starts = range(0, len(kept), shape.batch_size)
            batches += [(shape, kept[start : start + shape.batch_size]) for start in starts]
            counts.append(len(starts))
        turns = np.arange(len(batches))
        if self.shuffle and len(self._ends) == 1:
            turns = rng.permutation(turns)
        elif self.shuffle:
            turns = _balanced([self._per_corpus(pairs) for _, pairs in batches], counts, rng)
        return [batches[turn] for turn in turns]

    def _drawn(self, bucket: int, pass_index: int) -> list[np.ndarray]:
        """Returns the pairs of each corpus in a bucket that a pass uses.

        If that is not each pair once, the passes take the pairs in turn, from one random order of
        all pairs after the other.
        """
        members = self._members[bucket]
        parts = np.split(members, np.searchsorted(members, self._ends[:-1]))
        for corpus, (part, weight) in enumerate(zip(parts, self.weights, strict=True)):
            size, count = len(part), max(1, round(weight * len(part)))
            if size in (0, count):
                continue
            begin, end = pass_index * count, (pass_index + 1) * count
            orders = range(begin // size, -(-end // size))
            seeds = ([self.seed, number, corpus, bucket + 1] for number in orders)
            line = [np.random.default_rng(x).permutation(part) for x in seeds]
            parts[corpus] = np.concatenate(line)[begin - orders.start * size :][:count]
        return parts

    def _shuffled(self, pairs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns pairs in a random order, in which the pairs of each corpus are spread evenly."""
        rng.shuffle(pairs)
        if len(self._ends) == 1:
            return pairs
        corpora = np.searchsorted(self._ends, pairs, side="right")
        places = [(np.arange(n) + rng.random(n)) / n for n in self._per_corpus(pairs)]
        turns = np.argsort(np.concatenate(places), kind="stable")
        return pairs[np.argsort(corpora, kind="stable")][turns]

    def _per_corpus(self, pairs: np.ndarray) -> np.ndarray:
        """Returns how many of some pairs each corpus has."""
        corpora = np.searchsorted(self._ends, pairs, side="right")
        return np.bincount(corpora, minlength=len(self._ends))


def evaluation_batches(
    store: TokenStore, tokens_per_batch: int, length_multiple: int = 8
) -> list[Batch]:
    """Returns batches that contain every sentence once, for `model.evaluate`.

    `SlicedLogitsTrainer.evaluate` and the metrics of this package return means over all tokens. For
    another model, Keras weights the loss of each batch by its number of rows, which differs.

    Returns batches as `BatchPlan.batch` does, but all tokens except padding have the weight 1. For
    the arguments, see `BatchPlan`.
    """
    plan = BatchPlan(store, tokens_per_batch, length_multiple=length_multiple, shuffle=False)
    return [plan.unweighted(step) for step in range(plan.batches_per_pass)]


def _balanced(
    parts: Sequence[np.ndarray], counts: Sequence[int], rng: np.random.Generator
) -> np.ndarray:
    """Returns an order of batches in which all corpora and buckets progress evenly.

    `parts` has the number of pairs of each corpus in each batch, bucket after bucket, and `counts`
    the number of batches of each bucket. Corpora differ in the lengths of their sentences, and so
    buckets in their shares of the corpora. The next batch is that which leaves the shares so far
    nearest to those of the whole pass. The further a bucket is behind, the more it is preferred.
    """
    numbers = np.array(parts)
    excess = numbers - numbers.sum(axis=1, keepdims=True) * (numbers.sum(axis=0) / numbers.sum())
    impatience = max(1.0, _EVENNESS * (excess**2).sum(axis=1).mean())
    excess = np.vstack([excess, np.full(excess.shape[1], np.inf)])  # after the last of a bucket
    sizes, ends = np.array(counts), np.cumsum(counts)
    place, ahead = ends - sizes, rng.random(len(sizes))  # ahead: of an even pace, in batches
    order, total = [], np.zeros(excess.shape[1])
    for _ in parts:
        ahead -= sizes / len(parts)
        first = np.where(place < ends, place, len(parts))
        costs = ((total + excess[first]) ** 2).sum(axis=1) + impatience * ahead
        bucket = costs.argmin()
        order.append(first[bucket])
        total += excess[first[bucket]]
        place[bucket] += 1
        ahead[bucket] += 1
    return np.array(order)


def batch_shape(tokens_per_batch: int, source_length: int, target_length: int) -> BatchShape:
    """Returns the shape of the batches of sentence pairs that are padded to these lengths."""
    batch_size = tokens_per_batch // _tokens_per_sentence(source_length, target_length)
    if batch_size > 8:
        batch_size -= batch_size % 8
    return BatchShape(batch_size, source_length, target_length)


def _tokens_per_sentence(source_length: int, target_length: int) -> int:
    """Returns the number of target tokens as which a padded sentence pair counts in a batch."""
    return max(target_length, -(-source_length // 2))


def _frame(
    text: Sentences, side: str, pairs: np.ndarray, rows: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the pieces and eos of one side of `pairs`, padded to `shape`, int32.

    Sources have no eos if the tokenizer says so. Further results are the place in the row at which
    each pair begins, and the segment of each token.
    """
    ids, marks = np.full(shape, PAD_ID, np.int32), np.zeros(shape, np.int32)
    lengths = text.lengths(side, pairs)
    has_eos = text.are_pairs and (side == "target" or text.source_eos)
    ends = np.cumsum(lengths + has_eos)
    begins = ends - lengths - has_eos
    begins = begins - begins[np.searchsorted(rows, rows)]  # from that of the row's first pair
    places = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    ids[np.repeat(rows, lengths), places] = text.pieces(side, pairs)
    if has_eos:
        ids[rows, begins + lengths] = EOS_ID
    marks[rows, begins] = 1
    return ids, begins, np.cumsum(marks, axis=1, dtype=np.int32) * (ids != PAD_ID)
