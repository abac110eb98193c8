"""Finds run folders, by their path or by the name of a trained run in the package."""

import difflib
import hashlib
import shutil
from pathlib import Path

from filelock import FileLock

from keras_transformer._files import atomic_write, keras_home, sha256_of
from keras_transformer.errors import UserError

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "_saved_models", _PACKAGE.parent / "saved_models")  # installed, source tree

# What a shipped run consists of. Scores are copied too, but a new score makes no other run of it.
_PARTS = ("README.md", "recipe.yaml", "model.keras", "tokenizer", "text")
_SCORES = "scores.json"


def find_run(directory: str | Path) -> Path:
    """Returns the folder of a run.

    Args:
        directory: A run folder, or the name of a run in the package. If the package has a run of
            this name and no run folder has the path `directory`, the result is a copy of that run
            in `keras_transformer/runs` in `KERAS_HOME`, by default in `~/.keras`. So scores and
            conversions can be written beside the model.

    Raises:
        UserError: If there is no such run.
    """
    directory = Path(directory)
    if (directory / "recipe.yaml").is_file():
        return directory
    shipped = shipped_runs()
    if str(directory) in shipped:
        return _copy(shipped[str(directory)])
    if directory.is_file():
        reason = "it is a file. A recipe's run is in runs/ and has the recipe's name"
    elif directory.exists():
        reason = "it holds no recipe.yaml"
    elif " " in str(directory):
        reason = "it looks like a sentence. Write sentences to standard input or into a file"
    else:
        reason = f"it does not exist{_hint(directory)}"
    raise UserError(
        f"{directory} is no run folder: {reason}. The package has {', '.join(shipped) or 'no runs'}"
    )


def _hint(directory: Path) -> str:
    """Names the run in `runs` that has exactly this name, or a run beside it with a similar one."""
    close = [Path("runs") / directory]
    if not (close[0] / "recipe.yaml").is_file():
        names = [path.parent.name for path in directory.parent.glob("*/recipe.yaml")]
        close = [directory.parent / x for x in difflib.get_close_matches(directory.name, names)]
    return f" (did you mean {close[0]}?)" if close else ""


def shipped_runs() -> dict[str, Path]:
    """Returns the folders of the package's runs by name."""
    recipes = (recipe for folder in _FOLDERS for recipe in sorted(folder.glob("*/recipe.yaml")))
    return {recipe.parent.name: recipe.parent for recipe in recipes}


def name_of(run: Path) -> str:
    """Returns what names a run in a command: the path of its folder, or the name in the package."""
    return run.name if run.parent.parent == _copies() else str(run)


def _copies() -> Path:
    return keras_home() / "keras_transformer" / "runs"


def _copy(shipped: Path) -> Path:
    """Copies a run once, to a folder whose name depends on the content of the run."""
    files = [path for part in _PARTS for path in (shipped / part, *(shipped / part).rglob("[!.]*"))]
    files = sorted(path for path in files if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(shipped).as_posix()}\0".encode())
        digest.update(bytes.fromhex(sha256_of(path)))
    copy = _copies() / digest.hexdigest()[:16] / shipped.name
    if copy.exists():
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(copy.parent / ".lock"):
        if not copy.exists():  # Another process may have copied it.
            with atomic_write(copy) as partial:
                for path in (*files, *shipped.glob(_SCORES)):
                    target = partial / path.relative_to(shipped)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
    return copy
