"""Rows of several sentence pairs or documents."""

import numpy as np
import pytest
from support.parallel_text import SENTENCES, store_of_corpora

from keras_transformer import ParallelDataset, Tokenizer, Transformer
from keras_transformer.data import BatchPlan, Shard, pack_documents
from keras_transformer.data.packing import fill_rows, row_width
from keras_transformer.data.piece_sampler import PieceSampler
from keras_transformer.data.text_noise import TextNoise

FIRST_ID = 10  # pair i consists of the id 10 + i
LENGTHS = np.random.default_rng(5).integers(1, 12, (203, 2)).tolist()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    parts = [LENGTHS[:150], LENGTHS[150:]]
    return store_of_corpora(tmp_path_factory.mktemp("packing") / "store", parts, FIRST_ID)


def pairs_of(batch):
    """The pairs of a batch, in order. Both sides of a segment are of the same pair, and whole."""
    inputs, labels, _ = batch
    assert {x.dtype for x in (*inputs.values(), labels)} == {np.dtype(np.int32)}
    for side, ids in (("source", inputs["source_ids"]), ("target", labels)):
        np.testing.assert_array_equal(inputs[f"{side}_segments"] == 0, ids == 0)
    found = []
    for row in range(len(labels)):
        of_source, of_target = (inputs[f"{x}_segments"][row] for x in ("source", "target"))
        for segment in range(1, of_source.max(initial=0) + 1):
            source = inputs["source_ids"][row, of_source == segment]
            target, label = (x[row, of_target == segment] for x in (inputs["target_ids"], labels))
            pair = int(label[0]) - FIRST_ID
            lengths = LENGTHS[pair]
            assert source.tolist() == [label[0]] * lengths[0] + [3]
            assert target.tolist() == [2] + [label[0]] * lengths[1]
            assert label.tolist() == [label[0]] * lengths[1] + [3]
            found.append(pair)
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_a_pass_has_each_pair_as_often_as_its_weight_says(store, workers):
    shares = [Shard(rank, rank + 1, workers) for rank in range(workers)]
    plans = [BatchPlan(store, 96, seed=2, shard=x, weights=[1, 2], packing=True) for x in shares]
    (shape,) = plans[0].shapes
    assert shape == (6, 16, 16)
    orders = []
    for begin in (0, plans[0].batches_per_pass):
        steps = range(begin, begin + plans[0].batches_per_pass)
        seen = [pair for step in steps for plan in plans for pair in pairs_of(plan.batch(step))]
        counts = np.bincount(seen, minlength=len(store))
        assert set(counts[:150]) == {1} and set(counts[150:]) == {2}
        orders.append(seen)
    assert orders[0] != orders[1]
    ((padding, labels, weights),) = plans[0].padding(2)
    assert padding.keys() == plans[0].batch(0)[0].keys() and not (labels.any() or weights.any())


def test_rows_are_nearly_full():
    lengths = np.random.default_rng(1).integers(3, 30, (2_000, 1)) * [[1, 2]]
    width = row_width(lengths, 8)
    assert width.tolist() == [32, 64]
    rows = fill_rows(lengths, width, seed=3)
    assert sorted(np.concatenate(rows)) == list(range(2_000))
    sums = np.array([lengths[row].sum(axis=0) for row in rows])
    assert (sums <= width).all() and sums.sum() / (len(rows) * width.sum()) > 0.93


def test_drawn_pieces_stay_in_their_rows(tmp_path):
    sentences = SENTENCES * 9
    options = {"vocabulary_size": 85, "model_type": "unigram"}
    tokenizer = Tokenizer.train(sentences, **options)
    dataset = ParallelDataset(sentences, tokenizer)
    samplers = [TextNoise(tokenizer, 0.5), PieceSampler(tokenizer, 0.1)]
    plan = BatchPlan(dataset.plan.store, 512, samplers=samplers, packing=True)
    drawn = []
    for inputs, labels, _ in map(plan.batch, range(2 * plan.batches_per_pass)):
        drawn += [labels]
        assert ((inputs["target_ids"] == 2).sum(1) == inputs["target_segments"].max(1)).all()
        assert ((inputs["source_ids"] == 3).sum(1) == inputs["source_segments"].max(1)).all()
    texts = [
        text
        for labels in drawn
        for row in labels
        for text in tokenizer.decode_target(np.split(row, np.flatnonzero(row == 3) + 1))
        if text
    ]
    assert {text.rstrip(".").rstrip() for text in texts} == {
        y.rstrip(".").rstrip() for _, y in SENTENCES
    }


@pytest.mark.each_backend_if_slow
def test_a_dataset_of_packed_rows_has_the_loss_of_the_pairs(tmp_path):
    tokenizer = Tokenizer.train(SENTENCES * 4, vocabulary_size=110)
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 8}
    model = Transformer(tokenizer.source_vocabulary_size, **sizes)
    model.compile("adam")
    pairs = [(a, b) for a, b in SENTENCES] + [(a[:9], b[:7]) for a, b in SENTENCES]
    plain, packed = (ParallelDataset(pairs, tokenizer, 128, packing=x) for x in (False, True))
    losses = [model.evaluate(x, verbose=0, return_dict=True)["perplexity"] for x in (plain, packed)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    history = model.fit(packed, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]


def test_long_documents_are_cut_into_pieces_that_share_a_token():
    rows = pack_documents([[1, 2, 3, 4, 5, 6], [], [7], [8, 9]], length=4, seed=1, pad_id=-1)
    pieces = sorted(
        ids[segments == segment].tolist()
        for ids, segments in zip(rows["token_ids"], rows["token_segments"], strict=True)
        for segment in range(1, segments.max() + 1)
    )
    assert pieces == [[1, 2, 3, 4], [4, 5, 6], [7], [8, 9]]
    assert ((rows["token_ids"] == -1) == (rows["token_segments"] == 0)).all()
    assert rows["token_ids"].shape == (3, 4) and rows["token_ids"].dtype == np.int32
