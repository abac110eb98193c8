"""The entry of the command `keras-transformer`.

It chooses the backend before anything imports Keras, so it lies outside the package, whose import
imports Keras.
"""

import gc
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

BACKENDS = ("tensorflow", "jax", "torch")
COLLISION = (
    "PyPI's package keras-transformer is another project in the same folder, and each overwrites "
    "files of the other: pip uninstall -y keras-transformer keras3-transformer, then install "
    "keras3-transformer again"
)


def main() -> None:
    """Chooses the backend, and runs the command line."""
    # Imports create hundreds of thousands of objects and no garbage: looking for it would take a
    # quarter of the time that Keras needs to start.
    gc.disable()
    open_closed_streams()
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # Packages ask for this folder on import.
        tempfile.tempdir = "/"
    if [*importlib.metadata.distributions(name="keras-transformer")]:
        sys.exit(f"Error: {COLLISION}")
    try:
        choose_backend()
        # These start in a fraction of the time, because they need no Keras.
        light = ([], ["serve"], ["compare"], ["evaluate-file"], ["schema"], ["--version"])
        is_light = sys.argv[1:2] in light
        if is_light or "--help" in sys.argv or _value("--engine") == "ctranslate2":
            os.environ["KERAS_TRANSFORMER_WITHOUT_KERAS"] = "1"
        with _log_lines_hidden():
            from keras_transformer.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    os.environ.pop("KERAS_TRANSFORMER_WITHOUT_KERAS", None)  # only for this import
    gc.freeze()
    gc.enable()
    command_line(prog_name="keras-transformer")


def open_closed_streams() -> None:
    """Opens the null device in place of closed standard streams, as daemons have them.

    Otherwise, the next file that the process opens would get the number of the stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
            os.set_inheritable(getattr(sys, name).fileno(), True)


def choose_backend() -> None:
    """Sets KERAS_BACKEND to the value of --backend, or to the only installed backend.

    A program that registers architectures and ends in `main()` calls this function before it
    imports Keras.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not os.environ.get("KERAS_HOME"):  # Keras takes "" for the current folder.
        os.environ.pop("KERAS_HOME", None)
    if (given := _value("--backend")) is not None:
        os.environ["KERAS_BACKEND"] = given
    installed = [name for name in BACKENDS if importlib.util.find_spec(name)]
    backend, keras = os.environ.get("KERAS_BACKEND"), sys.modules.get("keras")
    if not installed and _value("--engine") == "ctranslate2":
        return
    if not installed:
        sys.exit("Error: no backend is installed: pip install 'keras3-transformer[torch]'")
    elif not backend:
        if len(installed) == 1:
            (os.environ["KERAS_BACKEND"],) = installed
    elif backend not in BACKENDS:
        sys.exit(f"Error: the backend must be one of {', '.join(BACKENDS)}. Received: {backend!r}")
    elif backend not in installed:
        sys.exit(
            f"Error: the backend {backend} is not installed (installed: {', '.join(installed)}): "
            f"pip install 'keras3-transformer[{backend}]'"
        )
    elif keras is not None and keras.config.backend() != backend:
        sys.exit(
            f"Error: this program imported Keras before it knew --backend {backend}. Set "
            f"KERAS_BACKEND={backend}, or call `keras_transformer_cli.choose_backend()` first"
        )


def _value(option: str) -> str | None:
    """Returns the last value of an option on the command line."""
    value = None
    for word, following in zip(sys.argv[1:], [*sys.argv[2:], ""], strict=False):
        if word == option or word.startswith(f"{option}="):
            value = following if word == option else word.partition("=")[2]
    return value


@contextmanager
def _log_lines_hidden() -> Iterator[None]:
    """Hides what TensorFlow writes to stderr although TF_CPP_MIN_LOG_LEVEL is set."""
    stderr = os.dup(2)
    try:
        file: IO[bytes] = tempfile.TemporaryFile()
    except OSError:  # No folder can be written.
        file = open(os.devnull, "w+b")
    with file as hidden:
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
