"""Prefixes and words of each sentence, as arrays of few shapes."""

import numpy as np
import pytest

from keras_transformer.translation.hypothesis import NO_HYPOTHESIS, Hypothesis, SourcePart
from keras_transformer.translation.target_constraints import ConstraintError, TargetConstraints

# Three sentences, the second in two parts.
PARTS = [
    SourcePart(0, 0, [3], "", 0),
    *(SourcePart(1, n, [3], "", 0) for n in (0, 1)),
    SourcePart(2, 0, [3], "", 0),
]


class Letters:
    """A tokenizer with one piece per letter: "a" is id 10, "?" is unknown."""

    pad_id, unk_id = 0, 1
    target_prefix_ids = ()

    def encode_target(self, texts):
        assert not isinstance(texts, str)
        return [
            [1 if letter == "?" else ord(letter) - ord("a") + 10 for letter in text]
            for text in texts
        ]


def arrays_of(**constraints):
    found = TargetConstraints(Letters(), PARTS, 3, **constraints).arrays(PARTS, 4)
    return {name: array for name, array in found.items() if array is not None}


def test_every_part_leaves_out_the_forbidden_words():
    (forbidden_ids,) = arrays_of(forbidden=[[], ["ab", "", "c", "def"], ["a"]]).values()
    assert forbidden_ids.shape == (4, 4, 4)
    expected = [[10, 11, 0, 0], [12, 0, 0, 0], [13, 14, 15, 0], [0, 0, 0, 0]]
    assert not forbidden_ids[0].any()
    np.testing.assert_array_equal(forbidden_ids[1], expected)
    np.testing.assert_array_equal(forbidden_ids[2], expected)
    np.testing.assert_array_equal(forbidden_ids[3, :2, :2], [[10, 0], [0, 0]])


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"prefixes": ["a"]}, "one entry for each of 3 sentences. Received: 1"),
        ({"forbidden": ["ab", "c", "d"]}, "`forbidden\\[0\\]` must be a list of strings"),
        ({"required": [[], ["b"], []]}, "longer than the model accepts. Received: required=.'b'"),
        ({"required": [["a", "b?c"], [], []]}, "characters that the tokenizer knows.*'b.c'"),
        ({"prefixes": ["", "", "a?"]}, "characters that the tokenizer knows.*prefix='a.'"),
    ],
)
def test_mistakes_are_named(constraints, message):
    with pytest.raises((TypeError, ValueError), match=message):
        arrays_of(**constraints)


def test_a_forbidden_word_with_unknown_characters_has_no_effect():
    assert arrays_of(forbidden=[["?"], ["a?"], []]) == {}
    assert arrays_of(forbidden=[["?", "a"], [], []])["forbidden_ids"].shape == (4, 1, 1)


@pytest.mark.parametrize(("prefix", "required"), [("a", []), ("", ["a"])])
def test_constraints_of_a_blank_sentence_are_refused(prefix, required):
    lists = [["", "", prefix], [[], [], required], [[]] * 3]
    rule = r"^sentences\[2\]: .*A blank sentence must have no prefix.* Received: "
    with pytest.raises(ConstraintError, match=rule) as raised:
        TargetConstraints(Letters(), PARTS[:-1], 3, *lists)
    assert raised.value.sentence == 2


def test_a_hypothesis_that_does_not_meet_the_constraints_is_refused():
    constraints = TargetConstraints(
        Letters(), PARTS, 3, ["ab", "b", ""], [["ba"], [], []], [[], [], ["c"]]
    )

    def check(*found):
        best = [Hypothesis("", ids, score, score, len(ids)) for ids, score in found]
        assert constraints.met(PARTS, [[x] for x in best]) == [[x] for x in best]

    good = ((10, 11, 10), -1.0), ((11,), -1.0), ((12,), -1.0), ((), -1.0)
    check(*good)
    wrong = [(0, ((10, 11), -1.0)), (0, ((11, 10), -1.0)), (1, ((), -1.0)), (3, ((), -np.inf))]
    for part, hypothesis in wrong:
        found = [*good[:part], hypothesis, *good[part + 1 :]]
        sentence = PARTS[part].sentence
        with pytest.raises(
            ConstraintError, match=rf"^sentences\[{sentence}\]: The search found no"
        ):
            check(*found)


def test_lower_hypotheses_without_the_required_words_are_not_returned():
    constraints = TargetConstraints(Letters(), PARTS[-1:], 3, required=[[], [], ["ba"]])
    good, bad = (Hypothesis("", ids, -1.0, -1.0, 2) for ids in ((11, 10), (10, 11)))
    found = [[good, bad, good]]
    assert constraints.met(PARTS[-1:], found) == [[good, NO_HYPOTHESIS, good]]
