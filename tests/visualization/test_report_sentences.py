"""The sentences that a report chooses."""

from keras_transformer.visualization.report import (
    COUNT,
    System,
    best_and_worst,
    most_changed,
)

REFERENCES = ["a b c d", "a b", "a", "x y", "x y z", "u v", "p q r"]


def system(chrf, name="a"):
    return System(name, REFERENCES, chrf, None)


def test_best_and_worst_prefer_long_sentences_and_share_none():
    best, worst = best_and_worst([100, 100, 20, 0, 0, 50, 60], REFERENCES)
    assert best == [0, 1, 6, 5, 2] and len(best) == COUNT
    assert worst == [4, 3]


def test_most_changed_leaves_out_what_is_equal():
    first = system([10, 50, 30, 30, 30, 30, 30])
    second = system([10, 20, 35, 30, 30, 30, 90])
    assert most_changed(first, second) == [6, 1, 2]
