"""`keras-transformer average`."""

import os

from support.command_line import fails, invoke, succeeds


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


def test_more_checkpoints_than_there_are(run):
    assert fails("average", run, "--last", 3) == f"{run} has only 2 checkpoints. Received: --last 3"
