"""Finds the trained runs that the package contains, such as "tatoeba_en_de"."""

import hashlib
from fnmatch import fnmatch
from pathlib import Path
from shutil import copytree, ignore_patterns

from filelock import FileLock

from keras_transformer._files import atomic_write, keras_home
from keras_transformer.errors import UserError

_PACKAGE = Path(__file__).parent
_FOLDERS = (_PACKAGE / "_saved_models", _PACKAGE.parent / "saved_models")  # installed, source tree

# In a source tree, `export` writes versions of a SavedModel (1, 2, ...) beside a run of its name.
_NOT_OF_RUN = ("[0-9]*", ".*")


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
    raise UserError(
        f"{directory} is no run folder: it holds no recipe.yaml. The package has "
        f"{', '.join(shipped) or 'no runs'}"
    )


def shipped_runs() -> dict[str, Path]:
    """Returns the folders of the package's runs by name."""
    recipes = (recipe for folder in _FOLDERS for recipe in sorted(folder.glob("*/recipe.yaml")))
    return {recipe.parent.name: recipe.parent for recipe in recipes}


def _copy(shipped: Path) -> Path:
    """Copies a run to a folder that depends on its content, once."""
    copy = keras_home() / "keras_transformer" / "runs" / _fingerprint(shipped) / shipped.name
    if not copy.is_dir():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(copy.parent / ".lock"):
            if not copy.is_dir():
                with atomic_write(copy) as partial:
                    copytree(shipped, partial, ignore=ignore_patterns(*_NOT_OF_RUN))
    return copy


def _fingerprint(folder: Path) -> str:
    """Returns 16 hex digits of a SHA-256 of the names and contents of all files of a run."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(fnmatch(name.parts[0], x) for x in _NOT_OF_RUN):
            digest.update(f"{name.as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
