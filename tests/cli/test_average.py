"""`keras-transformer average`."""

import os
import resource
from contextlib import contextmanager

from support.command_line import fails, invoke, succeeds

from keras_transformer.runs.run import Run
from keras_transformer.translation.open_run import open_model


@contextmanager
def full_disk():
    """Nothing larger than a kilobyte can be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_previous_model_is_kept(run):
    before = (run / "model.keras").read_bytes()
    succeeds("average", run, "--last", 2)
    assert (run / "model.previous.keras").read_bytes() == before
    assert (run / "model.keras").read_bytes() != before
    succeeds("average", run, "--last", 1)
    names = {path.name for path in run.iterdir() if "model" in path.name}
    assert names == {"model.keras", "model.previous.keras"}


def test_killed_at_any_rename_the_run_has_a_model(run, monkeypatch):
    """A kill is simulated by an error in the n-th rename, for every n."""
    before = (run / "model.keras").read_bytes()
    replace, count = os.replace, 0

    def killed(*paths):
        nonlocal count
        count -= 1
        if count < 0:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr(os, "replace", killed)
    for renames in range(2):
        count = renames
        invoke("average", run, "--last", 2)
        assert (run / "model.keras").read_bytes() == before
    count = 2
    succeeds("average", run, "--last", 2)
    assert (run / "model.keras").read_bytes() != before
    assert (run / "model.previous.keras").read_bytes() == before


def test_truncated_checkpoint(run):
    path = run / "checkpoints" / "step-00000004" / "model.keras"
    path.write_bytes(path.read_bytes()[:-100])
    before = (run / "model.keras").read_bytes()
    assert "step-00000004" in fails("average", run, "--last", 2)
    assert (run / "model.keras").read_bytes() == before


def test_a_damaged_model_is_replaced(run):
    model = run / "model.keras"
    model.write_bytes(model.read_bytes()[:1000])
    succeeds("average", run, "--last", 2)
    assert hasattr(open_model(Run.open(run)), "init_cache")


def test_more_checkpoints_than_there_are(run):
    assert fails("average", run, "--last", 3) == f"{run} has only 2 checkpoints. Received: --last 3"


def test_full_disk(run):
    before = (run / "model.keras").read_bytes()
    with full_disk():
        message = fails("average", run, "--last", 2)
    assert message.startswith("no space left on the disk for ")
    assert (run / "model.keras").read_bytes() == before
