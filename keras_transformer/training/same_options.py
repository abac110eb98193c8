"""Keeps the options of a program beside its runs, so that other options are not mixed with them."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from keras_transformer._files import atomic_write
from keras_transformer.errors import UserError


def check_same_options(
    directory: str | Path, options: Mapping[str, Any], may_change: Collection[str] = ()
) -> None:
    """Checks that a program goes on with the options with which it began.

    `fit` resumes from the checkpoints in its folder, whatever options a program was called with. A
    program that calls this function first does not report the results of other options.

    The first call writes the options to `options.json` in the folder. Later calls compare.

    Example:

    >>> check_same_options("runs/mine", vars(parser.parse_args()), may_change=["data_dir"])

    Args:
        directory: The folder of the program's runs.
        options: The options by name. They are compared as texts.
        may_change: Names of options that may change between calls.

    Raises:
        UserError: If an option has changed.
    """
    path = Path(directory) / "options.json"
    given = {name: str(value) for name, value in options.items() if name not in may_change}
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as partial:
            partial.write_text(json.dumps(given, indent=2) + "\n", encoding="utf-8")
        return
    kept = json.loads(path.read_text(encoding="utf-8"))
    changed = [name for name in {**kept, **given} if kept.get(name) != given.get(name)]
    if changed:
        differences = ", ".join(f"{x}={given.get(x)}, before {kept.get(x)}" for x in changed)
        raise UserError(
            f"{directory} must be used with the options with which it was begun, or choose another "
            f"folder. Received: {differences}"
        )
