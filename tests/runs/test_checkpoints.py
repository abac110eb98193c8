"""What models, checkpoints and logs hold."""

import math

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_transformer.runs.checkpoints import (
    ValidationHistory,
    logged_scalars,
)
from keras_transformer.training.tensorboard import TensorBoardWriter

FALLS_THEN_RISES = {2: 3.0, 4: 1.0, 6: 1.5, 8: 1.0, 10: 1.2}


def test_the_best_have_the_lowest_losses_and_patience_counts_the_checkpoints_after_them():
    history = ValidationHistory(FALLS_THEN_RISES)
    assert [history.best(count) for count in (1, 2, 3)] == [[4], [4, 8], [4, 8, 10]]
    assert [history.is_over(x) for x in (None, 2, 3, 4)] == [False, True, True, False]


def test_what_is_not_a_number_is_never_best():
    history = ValidationHistory({1: math.nan, 2: 9.0})
    history.report(3, {"validation/loss": math.nan, "validation/bleu": 9.0})
    history.report(4, {"loss": 1.0})
    assert history.losses.keys() == {1, 2, 3}
    assert history.best(1) == [2] and history.is_over(1)


def test_logs_of_a_resumed_run_replace_what_it_repeats(tmp_path):
    with TensorBoardWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.report(step, {"loss": 4.0 / step, "text": "a | b"})
    with TensorBoardWriter(tmp_path, first_step=2) as writer:
        writer.report(2, {"loss": 1.5, "validation/bleu": 7.0})
    of_tensorboard = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [(x.step, x.value) for x in of_tensorboard] == [(1, 4.0), (2, 1.5)]
    (file,) = sorted(tmp_path.glob("events*"))[-1:]
    file.write_bytes(file.read_bytes() + b"\x09\0\0")  # ends within a record
    assert logged_scalars(tmp_path) == {"loss": {1: 4.0, 2: 1.5}, "validation/bleu": {2: 7.0}}
    assert logged_scalars(tmp_path, "validation/") == {"validation/bleu": {2: 7.0}}
