"""Batches of a few shapes, each a function of seed and step."""

import functools

import numpy as np
import pytest
from support.contract import assert_same_arrays
from support.parallel_text import SENTENCES, store_of_corpora

from keras_transformer.data import (
    BatchPlan,
    Shard,
    Tokenizer,
    TokenStore,
    evaluation_batches,
    read_parallel,
)
from keras_transformer.data.buckets import choose_buckets
from keras_transformer.data.piece_sampler import PieceSampler
from keras_transformer.data.text_noise import TextNoise
from keras_transformer.errors import UserError

FIRST_ID = 10  # pair i consists of the id 10 + i


def some_lengths(count=503):
    rng = np.random.default_rng(5)
    source = rng.integers(1, 40, count)
    return [(int(length), max(1, int(length + rng.integers(-3, 4)))) for length in source]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_of_corpora(tmp_path_factory.mktemp("plan") / "store", [some_lengths()], FIRST_ID)


def shape_of(batch):
    inputs, labels, _ = batch
    return (*inputs["source_ids"].shape, labels.shape[1])


def pairs_of(batch):
    """Numbers of the pairs in a batch; source and target must be of the same pair."""
    inputs, labels, _ = batch
    real = labels[:, 0] != 0
    assert (inputs["source_ids"][real, 0] == labels[real, 0]).all()
    return (labels[real, 0] - FIRST_ID).tolist()


def test_ids_and_labels_by_hand(tmp_path):
    store = store_of_corpora(tmp_path / "store", [[(3, 1), (1, 2)]], first_id=7)
    plan = BatchPlan(store, tokens_per_batch=12, length_multiple=4, shuffle=False)
    inputs, labels, sample_weight = plan.batch(0)
    assert inputs["source_ids"].tolist() == [[7, 7, 7, 3], [8, 3, 0, 0], [0, 0, 0, 0]]
    assert inputs["target_ids"].tolist() == [[2, 7, 0, 0], [2, 8, 8, 0], [0, 0, 0, 0]]
    assert labels.tolist() == [[7, 3, 0, 0], [8, 8, 3, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(
        sample_weight, np.float32([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]) / np.float32(5)
    )
    ids = {inputs["source_ids"].dtype, inputs["target_ids"].dtype, labels.dtype}
    assert ids == {np.dtype(np.int32)}
    assert sample_weight.dtype == np.float32


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sentence_exactly_once_a_pass(store, shuffle):
    plan = BatchPlan(store, 300, shuffle=shuffle)
    size = plan.batches_per_pass
    for steps in (range(size), range(size, 2 * size)):
        seen = [pair for step in steps for pair in pairs_of(plan.batch(step))]
        assert sorted(seen) == list(range(len(store)))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """16,000 short pairs, 8,000 long ones and 160. Each pair of lengths occurs 4 times or more."""
    short, long = ([(n, n + 1) for n in range(*x)] * 400 for x in [(1, 41), (21, 41)])
    corpora = [short, long, [(n, n) for n in range(1, 41)] * 4]
    return store_of_corpora(tmp_path_factory.mktemp("plan") / "mixture", corpora, FIRST_ID)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=70, model_type="unigram")


@pytest.fixture(scope="module")
def text(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan") / "text"
    return TokenStore.build(folder, SENTENCES * 40, tokenizer, progress=False)


@pytest.fixture(params=["pairs", "mixture", "packed", "drawn pieces", "text noise"])
def new_plan(request, store, mixture, text, tokenizer):
    """Makes plans of one kind."""
    pieces = PieceSampler(tokenizer, 0.3)
    options = {
        "pairs": {},
        "mixture": {"store": mixture, "tokens_per_batch": 2_048, "weights": [0.3, 1, 1.7]},
        "packed": {"packing": True},
        "drawn pieces": {"store": text, "samplers": [pieces]},
        "text noise": {"store": text, "samplers": [TextNoise(tokenizer, 0.5), pieces]},
    }
    usual = {"store": store, "tokens_per_batch": 400, "accumulation_steps": 3}
    return functools.partial(BatchPlan, **{**usual, **options[request.param]})


def arrays(batch):
    inputs, labels, weights = batch
    return [*inputs.values(), labels, weights]


def test_batches_are_functions_of_seed_and_step_in_any_process(new_plan):
    plan, again, other = (new_plan(seed=seed) for seed in (4, 4, 5))
    first = plan.batches_per_pass // plan.accumulation_steps - 3
    steps = range(first, first + 6)  # the end of a pass and the beginning of the next
    batches = {step: plan.micro_batches(step) for step in steps}
    resumed = new_plan(seed=4).batches(first)
    shares = [Shard(0, 1, 3), Shard(1, 3, 3)]
    plans = [new_plan(seed=4, shard=share) for share in shares]
    for step in steps:
        for batch in batches[step]:
            assert_same_arrays(arrays(next(resumed)), arrays(batch))
    for step in reversed(steps):
        total = sum((labels != 0).sum() for _, labels, _ in batches[step])
        assert {x.tokens(step) for x in (plan, *plans)} == {total}
        for micro, batch in enumerate(batches[step]):
            assert_same_arrays(arrays(again.batch(step, micro)), arrays(batch))
            _, labels, weights = batch
            assert shape_of(batch) in plan.shapes
            expected = (labels != 0) * np.float32(plan.accumulation_steps / total)
            np.testing.assert_array_equal(weights, expected)
            parts = [arrays(x.batch(step, micro)) for x in plans]
            rows = -(-len(labels) // 3)
            assert [len(part[0]) for part in parts] == [rows, 2 * rows]
            joined = [np.concatenate(pair) for pair in zip(*parts, strict=True)]
            assert_same_arrays([x[: len(labels)] for x in joined], arrays(batch))
            assert not joined[-1][len(labels) :].any()
    found = (map(arrays, x.micro_batches(first)) for x in (plan, other))
    assert any(not np.array_equal(x[0], y[0]) for x, y in zip(*found, strict=True))


def uses_of_each(plan, passes):
    """How often each pair of a store of corpora is used in some passes, by corpora."""
    steps = range(passes * plan.batches_per_pass)
    used = np.concatenate([plan.slot(step)[1] for step in steps])
    return np.split(np.bincount(used, minlength=len(plan.store)), np.cumsum(plan.store.corpora))


def test_a_pass_uses_each_pair_as_often_as_the_weight_of_its_corpus_says(mixture):
    plan = BatchPlan(mixture, 2_048, seed=7, weights=[1, 2, 0.5])
    for passes in (1, 2, 6):
        first, second, third, _ = uses_of_each(plan, passes)
        assert {*first} == {passes} and {*second} == {2 * passes}
        assert {*third} == ({0, 1} if passes == 1 else {passes // 2})
        assert third.sum() == 80 * passes
    rare = BatchPlan(mixture, 2_048, weights=[1, 1, 0.001])
    assert all(uses_of_each(rare, 80)[2])  # No pair is never used.


def test_a_bucket_of_a_mixture_may_be_empty(tmp_path):
    lengths = [(1, 1), (7, 1), (1, 7), (7, 7)]  # All pairs of a bucket can move to a wider one.
    plan = BatchPlan(
        store_of_corpora(tmp_path / "a", [lengths, lengths * 2]), 64, length_multiple=4
    )
    pairs = np.concatenate([plan.slot(step)[1] for step in range(plan.batches_per_pass)])
    assert len(plan.shapes) == 1 and sorted(pairs) == list(range(12))


def test_after_10_000_sentences_each_corpus_has_its_share(mixture):
    plan = BatchPlan(mixture, 4_096, weights=[1, 2, 0.5])
    for number in (0, 1, 5):
        steps = range(number * plan.batches_per_pass, (number + 1) * plan.batches_per_pass)
        counts = np.cumsum([plan._per_corpus(plan.slot(step)[1]) for step in steps], axis=0)
        assert counts[-1].tolist() == [16_000, 16_000, 80]
        sizes = counts.sum(axis=1, keepdims=True)
        shares = (counts / sizes)[sizes[:, 0] >= 10_000]
        assert len(shares) > 30 and abs(shares - counts[-1] / sizes[-1]).max() <= 0.01


def test_few_fixed_shapes_near_the_budget(store):
    plan = BatchPlan(store, tokens_per_batch=400, length_multiple=4, max_shapes=5)
    seen = {shape_of(plan.batch(step)) for step in range(plan.batches_per_pass)}
    assert seen == set(plan.shapes)
    assert len(plan.shapes) <= 5
    for batch_size, source_length, target_length in plan.shapes:
        assert source_length % 4 == target_length % 4 == 0
        assert batch_size % 8 == 0 or batch_size < 8
        assert 200 <= batch_size * target_length <= 400
        assert batch_size * source_length <= 2 * 400
    for steps, shapes in ((1, 1), (10_000, len(plan.shapes))):
        batches = plan.padding(steps)
        assert {*map(shape_of, batches)} <= seen
        assert len(batches) == shapes and not any(y.any() or w.any() for _, y, w in batches)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tokens_per_batch": 47}, UserError, "at least 48 tokens, .* Received: 47"),
        ({"accumulation_steps": 0}, ValueError, "`accumulation_steps` must be an integer of at"),
        ({"length_multiple": 0}, ValueError, "`length_multiple` must be an integer of at least 1"),
        ({"weights": [1.0, 2.0]}, ValueError, "longer"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(store, arguments, error, message):
    with pytest.raises(error, match=message):
        BatchPlan(store, **{"tokens_per_batch": 48, **arguments})


def test_evaluation_has_every_sentence_once_with_weight_one(store):
    batches = evaluation_batches(store, tokens_per_batch=300)
    seen = [pair for batch in batches for pair in pairs_of(batch)]
    assert sorted(seen) == list(range(len(store)))
    for _, labels, sample_weight in batches:
        np.testing.assert_array_equal(sample_weight, np.float32(labels != 0))


@pytest.mark.slow
def test_little_padding_on_multi30k(tmp_path, data_dir):
    names = (f"multi30k/train.lc.norm.tok.{language}.gz" for language in ("en", "de"))
    text = read_parallel(*(data_dir / name for name in names))
    tokenizer = Tokenizer.train(text, vocabulary_size=9_700, normalization="identity")
    store = TokenStore.build(tmp_path / "store", text, tokenizer, progress=False)
    plan = BatchPlan(store, tokens_per_batch=4_096)
    steps = range(plan.batches_per_pass)
    real = sum(plan.tokens(step) for step in steps)
    assert real / sum(plan.batch(step)[1].size for step in steps) >= 0.78


@pytest.mark.parametrize(("length_multiple", "max_shapes"), [(1, 8), (4, 2), (8, 1)])
def test_every_pair_lies_in_the_narrowest_width_that_holds_it(length_multiple, max_shapes):
    source, target = np.array(some_lengths()).T
    widths, buckets = choose_buckets(source, target, length_multiple, max_shapes)
    assert len(widths) <= max_shapes
    assert all(s % length_multiple == 0 and t % length_multiple == 0 for s, t in widths)
    chosen = np.array(widths)[buckets]
    assert (chosen[:, 0] >= source).all()
    assert (chosen[:, 1] >= target).all()
    # The positions of each width that holds the pair, a target position counted twice.
    costs = [np.where((source <= s) & (target <= t), s + 2 * t, np.inf) for s, t in widths]
    assert (chosen @ [1, 2] == np.min(costs, axis=0)).all()
