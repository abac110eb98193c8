"""Splitting a corpus into training, validation and test text."""

import random

import pytest

from keras_transformer.data.held_out import hold_out, sentence_key
from keras_transformer.errors import UserError

# Sentence n has n % 3 + 1 translations; every fifth translation is shared by two sentences.
PAIRS = [
    (f"Sentence {n}.", f"Satz {n - n % 2 if n % 5 == 0 else n}, Fassung {version}.")
    for n in range(200)
    for version in range(n % 3 + 1)
]


def keys(pairs):
    return [{sentence_key(text) for text in side} for side in zip(*pairs, strict=True)]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sizes_are_exact_and_all_pairs_without_a_held_out_sentence_are_for_training(seed):
    split = hold_out(PAIRS, validation=20, test=30, seed=seed)
    assert (len(split.validation), len(split.test)) == (20, 30)
    assert not keys(split.validation)[1] & keys(split.test)[1]
    sources, targets = keys(split.validation + split.test)
    assert len(sources) == 50
    others = [
        (source, target)
        for source, target in PAIRS
        if sentence_key(source) not in sources and sentence_key(target) not in targets
    ]
    assert list(split.train()) == others
    assert split.dropped == len(PAIRS) - len(others) - 50 > 0
    assert len(others) > 250


def test_order_of_the_corpus_does_not_matter_but_the_seed_does():
    pairs = [(source, target) for source, target in PAIRS if target.endswith("0.")]
    shuffled = random.Random(0).sample(pairs, len(pairs))
    first, again, other = (
        hold_out(*x) for x in ((pairs, 20, 30), (shuffled, 20, 30), (pairs, 20, 30, 2))
    )
    assert (first.validation, first.test) == (again.validation, again.test)
    assert first.test != other.test


def test_case_spaces_and_punctuation_make_no_other_sentence():
    assert sentence_key("Don't go!") == sentence_key("dont GO …")
    assert sentence_key("Geh ins Haus.") != sentence_key("Geh in das Haus.")
    assert sentence_key("?!") == sentence_key(" ? ! ") == "?!"
    assert sentence_key("가자!") == sentence_key("가 자.") != sentence_key("가지")


def test_pairs_with_an_empty_side_are_not_held_out():
    pairs = [("", "leer"), ("empty", " "), *((f"a {n}", f"b {n}") for n in range(8))]
    split = hold_out(pairs, validation=2, test=2)
    assert all(
        source.strip() and target.strip() for source, target in split.validation + split.test
    )
    assert [pair for pair in split.train() if not all(map(str.strip, pair))] == pairs[:2]


@pytest.mark.parametrize("targets", [lambda n: n, lambda n: n % 2])
def test_a_corpus_that_is_too_small_is_refused(targets):
    pairs = [(f"a {n}", f"b {targets(n)}") for n in range(10)]
    counts = (3, 3) if targets(9) == 9 else (1, 4)
    with pytest.raises(
        UserError, match=rf"data.held_out: .* Received: {counts[0]} for validation and {counts[1]}"
    ):
        hold_out(pairs, *counts)
