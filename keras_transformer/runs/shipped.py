"""Finds the trained runs that the package contains, such as "tatoeba_en_de"."""

import hashlib
from pathlib import Path
from shutil import copyfile

from filelock import FileLock

from keras_transformer._files import atomic_write, keras_home, sha256_of
from keras_transformer.errors import UserError

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "_saved_models", _PACKAGE.parent / "saved_models")  # installed, source tree

# What a shipped run consists of. In a source tree, `export` may write other files beside it.
_PARTS = ("README.md", "recipe.yaml", "model.keras", "tokenizer", "text")
# Evaluating a copy adds scores, so the check for changes leaves this file out.
_SCORES = "scores.json"


def find_run(directory: str | Path) -> Path:
    """Returns the folder of a run.

    Args:
        directory: A run folder, or the name of a run in the package. If the package has a run of
            this name and no run folder has the path `directory`, the result is a copy of that run
            in `keras_transformer/runs` in `KERAS_HOME`, by default in `~/.keras`. So scores and
            conversions can be written beside the model.

    Raises:
        UserError: If there is no such run, or if a file of the copy was changed.
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
        reason = "it does not exist"
        if similar := _similar_runs(directory):
            reason += f" (did you mean {similar[0]}?)"
    raise UserError(
        f"{directory} is no run folder: {reason}. The package has {', '.join(shipped) or 'no runs'}"
    )


def _similar_runs(directory: Path) -> list[str]:
    """Returns run folders with similar names, the most similar first.

    They are in `runs` if there is a run with exactly this name, otherwise beside `directory`.
    """
    import difflib

    if (Path("runs") / directory / "recipe.yaml").is_file():
        return [str(Path("runs") / directory)]
    names = [path.parent.name for path in directory.parent.glob("*/recipe.yaml")]
    close = difflib.get_close_matches(directory.name, names)
    return [str(directory.parent / name) for name in close]


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
    """Copies a run to a folder that depends on its content, once."""
    fingerprint = _fingerprint(shipped)
    copy = _copies() / fingerprint / shipped.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(copy.parent / ".lock"):
        if not copy.exists():
            with atomic_write(copy) as partial:
                scores = [shipped / _SCORES] if (shipped / _SCORES).is_file() else []
                for file in (*_files(shipped), *scores):
                    target = partial / file.relative_to(shipped)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    copyfile(file, target)
    if _fingerprint(copy) != fingerprint:
        raise UserError(f"{copy} must be a copy of {shipped}, but was changed: remove the folder")
    return copy


def _files(run: Path) -> list[Path]:
    """Returns the files of a shipped run that never change. File managers add hidden files."""
    paths = [path for part in _PARTS for path in (run / part, *(run / part).rglob("[!.]*"))]
    return sorted(path for path in paths if path.is_file())


def _fingerprint(run: Path) -> str:
    """Returns 16 hex digits of a SHA-256 of the names and contents of `_files(run)`."""
    digest = hashlib.sha256()
    for path in _files(run):
        digest.update(f"{path.relative_to(run).as_posix()}\0".encode())
        digest.update(bytes.fromhex(sha256_of(path)))
    return digest.hexdigest()[:16]
