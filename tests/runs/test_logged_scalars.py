"""Numbers in event files, read without TensorFlow and NumPy."""

from keras_transformer.runs.checkpoints import logged_scalars
from keras_transformer.training.tensorboard import TensorBoardWriter


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    with TensorBoardWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.report(step, {"loss": 4.0 / step, "text": "a | b"})
    with TensorBoardWriter(tmp_path, first_step=2) as writer:
        writer.report(2, {"loss": 1.5, "validation/bleu": 7.0})
    assert logged_scalars(tmp_path) == {"loss": {1: 4.0, 2: 1.5}, "validation/bleu": {2: 7.0}}
    assert logged_scalars(tmp_path, "validation/") == {"validation/bleu": {2: 7.0}}
