"""Finds the checkpoints in a folder, by the names that the package gives them."""

import re
from pathlib import Path


def checkpoint_folders(directory: str | Path) -> list[Path]:
    """Returns the folders named `step-` followed by eight digits, oldest first."""
    entries = Path(directory).glob("step-*")
    return sorted(x for x in entries if re.fullmatch(r"step-\d{8}", x.name) and x.is_dir())


def checkpoint_step(path: Path) -> int:
    """Returns the optimizer step in the name of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))
