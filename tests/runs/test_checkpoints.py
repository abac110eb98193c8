"""Names of checkpoints."""

from keras_transformer.runs.checkpoints import checkpoint_folders, checkpoint_step


def test_folders_are_listed_oldest_first_and_only_complete_ones(tmp_path):
    for name in ("step-00000020", "step-00000003", ".partial-step-00000040", "step-00000005.bak"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000001").touch()
    found = checkpoint_folders(tmp_path)
    assert [path.name for path in found] == ["step-00000003", "step-00000020"]
    assert [checkpoint_step(path) for path in found] == [3, 20]
