"""Text noise: what changes, how often, and in which batches."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from support.parallel_text import SENTENCES

from keras_transformer.data import BatchPlan, Tokenizer, TokenStore
from keras_transformer.data.piece_sampler import PieceSampler
from keras_transformer.data.text_noise import TextNoise

FREE = (10**6, 10**6)  # room for all changes
REPEATS = 500
TEXT = [(x[:-2].capitalize() + ".", y[:-2].capitalize() + ".") for x, y in SENTENCES]
UNKNOWN = ("Kinder ☃ spielen.", "Children play.")


@pytest.fixture(scope="module")
def tokenizer():
    tag = ">>German<<"
    words = [(word, word) for pair in TEXT for text in pair for word in re.findall(r"\w+", text)]
    text = [*TEXT, *words]  # so that there are pieces of whole words
    plain = Tokenizer.train(text, vocabulary_size=88, model_type="unigram", tags=[tag])
    prefix = next(x for x in plain.target_pieces if len(x) > 1 and x[0] == "▁")
    return Tokenizer(plain.source_model, source_prefix=["▁" + tag], target_prefix=[prefix])


@pytest.fixture(scope="module")
def store(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise") / "store"
    return TokenStore.build(folder, [*TEXT, UNKNOWN], tokenizer, progress=False)


def texts(tokenizer, sentences, pairs):
    """The text of each pair, after the tag that SentencePiece writes as it is."""
    tagged = tokenizer.decode(sentences.rows("source", pairs), "source")
    sources = [x.removeprefix(">>German<< ") for x in tagged]
    return [*zip(sources, tokenizer.decode_target(sentences.rows("target", pairs)), strict=True)]


def edits(before, after):
    """Levenshtein distance in which a swap of neighbours is one edit, by the usual table."""
    table = np.zeros((len(before) + 1, len(after) + 1), int)
    table[:, 0], table[0] = range(len(before) + 1), range(len(after) + 1)
    for i, x in enumerate(before, start=1):
        for j, y in enumerate(after, start=1):
            ways = [table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (x != y)]
            if i > 1 and j > 1 and (x, before[i - 2]) == (after[j - 2], y):
                ways.append(table[i - 2, j - 2] + 1)
            table[i, j] = min(ways)
    return table[-1, -1]


def test_a_pair_gets_one_kind_of_change_as_often_as_asked(tokenizer, store):
    count = len(store) - 1
    pairs = np.tile(np.arange(count), REPEATS)
    drawn = TextNoise(tokenizer, 0.4).draw(store, pairs, FREE, "1")
    kinds = Counter()
    before, after = (
        texts(tokenizer, text, places)
        for text, places in ((store, pairs), (drawn, np.arange(len(pairs))))
    )
    for (source, target), (new_source, new_target) in zip(before, after, strict=True):
        if (new_source, new_target) == (source, target):
            kinds["none"] += 1
        elif new_target == target.rstrip("."):
            kinds["mark"] += new_source == source.rstrip(".")
        elif new_source == source.lower():
            kinds["case"] += new_target == target
        else:
            assert new_target == target
            assert 1 <= edits(source, new_source) <= math.ceil(len(source.split()) / 8)
            before, after = (re.findall(r"\w+", x) for x in (source, new_source))
            changed = [x for x, y in zip(before, after, strict=True) if x != y]
            assert all("▁" + word in tokenizer.source_pieces for word in changed)
            assert new_source[0] == source[0] and new_source[-1] == source[-1]
            kinds["typo"] += 1
    assert kinds.total() == len(pairs)
    # A letter can be replaced by itself, or swapped with the same letter.
    shares = {kind: number / len(pairs) for kind, number in kinds.items()}
    assert shares["mark"] == pytest.approx(0.4 * 0.05, abs=0.01)
    assert shares["case"] == pytest.approx(0.4 * 0.05, abs=0.01)
    assert 0.4 * 0.76 < shares["typo"] < 0.4 * 0.93


def test_frames_unknown_characters_and_sentences_without_room_stay(tokenizer, store):
    every = np.arange(len(store))
    changes = TextNoise(tokenizer, 0.999)
    drawn = changes.draw(store, every, FREE, "1")
    (tag,), (prefix,) = tokenizer.source_prefix_ids, tokenizer.target_prefix_ids
    assert all(ids[0] == tag and tag not in ids[1:] for ids in drawn.rows("source", every))
    assert all(ids[0] == prefix for ids in drawn.rows("target", every))
    rows = [(x.rows("source", every), x.rows("target", every)) for x in (store, drawn)]
    assert rows[0][0][-1] == rows[1][0][-1] and rows[0][0][:-1] != rows[1][0][:-1]
    narrow = changes.draw(store, every, (1, 1), "1")
    assert (narrow.rows("source", every), narrow.rows("target", every)) == rows[0]


def test_each_pass_has_other_changes_for_which_there_is_room(tokenizer, store):
    samplers = [TextNoise(tokenizer, 0.5), PieceSampler(tokenizer, 0.3)]
    plan = BatchPlan(store, 400, samplers=samplers)
    assert max(x.source_length for x in plan.shapes) <= store.lengths("source").max() + 8
    first, second = (plan.batch(x * plan.batches_per_pass)[0]["source_ids"] for x in range(2))
    assert not np.array_equal(first, second)


def test_earlier_steps_than_the_first_have_no_noise(tokenizer, store):
    steps = [3, 99]
    plans = [BatchPlan(store, 400, samplers=[TextNoise(tokenizer, 0.9, x)]) for x in steps]
    for step, is_same in ((2, True), (3, False)):
        one, other = (plan.batch(step)[0]["source_ids"] for plan in plans)
        assert np.array_equal(one, other) == is_same
