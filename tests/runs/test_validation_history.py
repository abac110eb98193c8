"""The validation losses of a run, and the best checkpoints."""

import math

import pytest

from keras_transformer.errors import UserError
from keras_transformer.runs.checkpoints import (
    ValidationHistory,
    load_history,
)

FALLS_THEN_RISES = {2: 3.0, 4: 1.0, 6: 1.5, 8: 1.0, 10: 1.2}


@pytest.mark.parametrize("count, expected", [(1, [4]), (2, [4, 8]), (3, [4, 8, 10])])
def test_best_have_the_lowest_losses(count, expected):
    assert ValidationHistory(FALLS_THEN_RISES).best(count) == expected


@pytest.mark.parametrize("content", [b"", b"[]", b'{"validation_losses": {"a": 1}}'])
def test_a_damaged_state_has_no_history(tmp_path, content):
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(UserError, match="is incomplete"):
        load_history(tmp_path)


@pytest.mark.parametrize("patience, is_over", [(None, False), (2, True), (3, True), (4, False)])
def test_is_over_after_checkpoints_without_a_lower_loss(patience, is_over):
    assert ValidationHistory(FALLS_THEN_RISES).is_over(patience) == is_over


def test_what_is_not_a_number_is_never_best():
    history = ValidationHistory({1: math.nan, 2: 9.0, 3: math.nan})
    assert history.best(1) == [2]
    assert history.is_over(1)


def test_keeps_the_loss_of_what_is_reported():
    history = ValidationHistory({1: 5.0})
    history.report(2, {"loss": 1.0})
    history.report(3, {"validation/loss": 4.0, "validation/bleu": 9.0})
    assert history.losses == {1: 5.0, 3: 4.0}
