"""The entry of the command `keras-transformer`.

It chooses the backend before anything imports Keras, so it lies outside the package, whose import
imports Keras.
"""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

BACKENDS = ("tensorflow", "jax", "torch")


def main() -> None:
    """Chooses the backend, and runs the command line."""
    try:
        choose_backend()
        _check_backend()
        with _log_lines_hidden():
            from keras_transformer.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line(prog_name="keras-transformer")


def installed_backends() -> list[str]:
    """Returns the names of the installed backends."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


def choose_backend() -> None:
    """Sets KERAS_BACKEND to the value of --backend, or to the only installed backend.

    A program that registers architectures and ends in `main()` calls this function before it
    imports Keras.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not os.environ.get("KERAS_HOME"):  # Keras takes "" for the current folder.
        os.environ.pop("KERAS_HOME", None)
    words = sys.argv[1:]
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "--backend" or word.startswith("--backend="):
            os.environ["KERAS_BACKEND"] = following if word == "--backend" else word[10:]
    installed, backend = installed_backends(), os.environ.get("KERAS_BACKEND")
    if not backend:
        if len(installed) == 1:
            (os.environ["KERAS_BACKEND"],) = installed
    elif backend not in BACKENDS:
        sys.exit(f"Error: the backend must be one of {', '.join(BACKENDS)}. Received: {backend!r}")
    elif backend not in installed:
        sys.exit(
            f"Error: the backend {backend} is not installed (installed: "
            f"{', '.join(installed) or 'none'}): pip install 'keras3-transformer[{backend}]'"
        )


def _check_backend() -> None:
    """Ends the process if a program imported Keras before it chose this backend."""
    keras, backend = sys.modules.get("keras"), os.environ.get("KERAS_BACKEND")
    if keras is not None and backend and keras.config.backend() != backend:
        sys.exit(
            f"Error: this program imported Keras before it knew --backend {backend}. Set "
            f"KERAS_BACKEND={backend}, or call `keras_transformer_cli.choose_backend()` first"
        )


@contextmanager
def _log_lines_hidden() -> Iterator[None]:
    """Hides what libraries write to stderr while they are imported, unless the import fails.

    TensorFlow writes lines that TF_CPP_MIN_LOG_LEVEL does not hide.
    """
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            hidden.seek(0)
            os.write(stderr, hidden.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


if __name__ == "__main__":
    main()
