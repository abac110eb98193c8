"""Drawn pieces: their text, their probabilities, and batches of them."""

from collections import Counter

import numpy as np
import pytest
from support.parallel_text import SENTENCES

from keras_transformer.data import BatchPlan, Tokenizer, TokenStore
from keras_transformer.data.piece_sampler import PieceSampler
from keras_transformer.data.token_store import SIDES

ALPHA, DRAWS = 0.3, 20_000
LONG = tuple(" ".join(x) for x in zip(*SENTENCES[:2], strict=True))
UNKNOWN = tuple(x.replace(" ", "☃", 2) for x in LONG)
FREE = (10**6, 10**6)  # room for all draws
UNK = 1


@pytest.fixture(scope="module")
def plain():
    return Tokenizer.train(SENTENCES, vocabulary_size=70, model_type="unigram")


@pytest.fixture(scope="module")
def tokenizer(plain):
    prefix = next(x for x in plain.source_pieces if len(x) > 1 and x[0] == "▁")
    return Tokenizer(plain.source_model, target_prefix=[prefix])


@pytest.fixture(scope="module")
def store(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces") / "store"
    return TokenStore.build(folder, [*SENTENCES * 20, LONG, UNKNOWN], tokenizer, progress=False)


def segmentations(text, scores):
    """Every way to write a text as pieces, and the sum of their scores."""
    if not text:
        yield (), 0.0
    for end in range(1, len(text) + 1):
        if text[:end] in scores:
            for rest, score in segmentations(text[end:], scores):
                yield (text[:end], *rest), scores[text[:end]] + score


def chi_square_excess(observed, expected):
    """Standard deviations above the mean of chi-square. Rare outcomes count as one."""
    keys = sorted(expected, key=lambda x: expected[x])
    rare = [x for x in keys if expected[x] < 10]
    groups = [*([x] for x in keys[len(rare) :]), rare]
    pairs = [(sum(observed[x] for x in y), sum(expected[x] for x in y)) for y in groups]
    statistic = sum((a - b) ** 2 / b for a, b in pairs if b)
    freedom = len(groups) - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)


def test_all_segmentations_have_the_probabilities_of_the_model(plain, tmp_path):
    sentence = "children play in the park"
    store = TokenStore.build(tmp_path / "store", [(sentence, sentence)], plain, progress=False)
    drawn = PieceSampler(plain, ALPHA).draw(store, np.zeros(DRAWS, int), FREE, "1")
    found = Counter(tuple(x) for side in SIDES for x in drawn.rows(side, np.arange(DRAWS)))
    scores = dict(zip(plain.source_pieces, plain.scores("source"), strict=True))
    ways = dict(segmentations("▁" + sentence.replace(" ", "▁"), scores))
    weights = {
        tuple(plain.source_pieces.index(x) for x in way): np.exp(ALPHA * score)
        for way, score in ways.items()
    }
    total = sum(weights.values())
    expected = {way: 2 * DRAWS * weight / total for way, weight in weights.items()}
    assert len(ways) > 50 and found.keys() <= expected.keys()
    assert chi_square_excess(found, expected) < 5
    options = {"enable_sampling": True, "nbest_size": -1, "alpha": ALPHA}
    processor = plain._source
    theirs = Counter(tuple(processor.encode(sentence, **options)) for _ in range(2 * DRAWS))
    assert chi_square_excess(theirs, expected) < 5
    wrong = {way: weight**1.1 for way, weight in weights.items()}
    wrong = {way: 2 * DRAWS * weight / sum(wrong.values()) for way, weight in wrong.items()}
    assert chi_square_excess(found, wrong) > 20


def test_the_text_prefixes_and_unknown_characters_stay(tokenizer, store):
    every = np.arange(len(store))
    drawn = PieceSampler(tokenizer, alpha=0.1).draw(store, every, FREE, "1")
    pieces = np.array(tokenizer.source_pieces)
    (prefix,) = tokenizer.target_prefix_ids
    for side in SIDES:
        before, after = (x.rows(side, every) for x in (store, drawn))
        changed = [x != y for x, y in zip(before, after, strict=True)]
        assert np.mean(changed) > 0.95 and changed[-1]
        for best, other in zip(before, after, strict=True):
            assert "".join(pieces[best]) == "".join(pieces[other])
            assert best.count(UNK) == other.count(UNK)
            assert side == "source" or other[0] == prefix
            assert best.count(prefix) == other.count(prefix) or side == "source"


def test_a_large_exponent_or_no_room_gives_the_best_pieces(tokenizer, store):
    every = np.arange(len(store))
    best, narrow = PieceSampler(tokenizer, alpha=1e4), PieceSampler(tokenizer, alpha=0.1)
    for drawn in (best.draw(store, every, FREE, "1"), narrow.draw(store, every, (1, 1), "1")):
        for side in SIDES:
            np.testing.assert_array_equal(drawn.pieces(side, every), store.pieces(side, every))
    limit = 30
    lengths = narrow.draw(store, every, (limit, limit), "1").lengths("source", every)
    assert ((lengths <= limit) | (lengths == store.lengths("source"))).all()


def test_each_pass_and_seed_has_the_same_sentences_in_other_pieces(tokenizer, store):
    def texts_and_labels(seed, first):
        sampler = PieceSampler(tokenizer, ALPHA)
        plan = BatchPlan(store, 400, seed, samplers=[sampler])
        size = plan.batches_per_pass
        rows = [x for step in range(size) for x in plan.batch(first * size + step)[1]]
        rows = [tuple(x[x > 0].tolist()) for x in rows if x.any()]
        return sorted(tokenizer.decode_target(rows)), Counter(rows)

    passes = [texts_and_labels(*x) for x in ((1, 0), (1, 1), (2, 0))]
    best = [[*x, 3] for x in store.rows("target", np.arange(len(store)))]
    for text, labels in passes:
        assert text == sorted(tokenizer.decode_target(best))
        assert (labels & Counter(map(tuple, best))).total() < len(store) / 4
    assert passes[0][1] != passes[1][1] != passes[2][1]
