"""Contains code that differs by backend. This file: what is installed, processes, `with` blocks."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any

BACKENDS = ("tensorflow", "jax", "torch")
_SECONDS_TO_END = 5
_users: dict[str, int] = {}  # the id of the process that first used an engine


def installed_backends() -> list[str]:
    """Returns the names of the installed backends."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


@contextmanager
def set_to(variable: ContextVar[Any], value: object) -> Iterator[None]:
    """Gives a context variable a value in the `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def replaced(owner: object, attributes: dict[str, Any]) -> Iterator[None]:
    """Replaces attributes of an object, untracked by Keras, in the `with` block."""
    before = dict(vars(owner))
    vars(owner).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            vars(owner).pop(name)
            if name in before:
                vars(owner)[name] = before[name]


def without_tensorflow() -> AbstractContextManager[None]:
    """Prevents Keras from importing TensorFlow, if it is not imported, within this context.

    When Keras saves a model or sets the random seed, it imports TensorFlow to find out whether it
    is installed, which takes seconds and hundreds of megabytes of memory.
    """
    import keras
    from keras.src.utils.module_utils import tensorflow

    is_needed = keras.config.backend() == "tensorflow" or "tensorflow" in sys.modules
    return nullcontext() if is_needed else replaced(tensorflow, {"_available": False})


def check_not_forked(engine: str) -> None:
    """Raises `RuntimeError` in a forked child of the process that has used an engine.

    The engine's threads do not exist there, so the child would wait for them forever. PyTorch has
    none if it computes with one thread.
    """
    if _users.setdefault(engine, os.getpid()) != os.getpid():
        if engine == "torch":
            import torch

            if torch.get_num_threads() == 1:
                return
        raise RuntimeError(
            f"{engine} cannot compute in a forked process after the process before the fork has "
            "used it: load the model only after the fork (gunicorn: without --preload), or start "
            'the process by multiprocessing.get_context("spawn")'
        )


def check_trains_alone() -> None:
    """Raises `RuntimeError` if `torchrun` started several processes, each with its own model."""
    import keras

    if keras.config.backend() == "torch" and os.environ.get("WORLD_SIZE", "1") != "1":
        raise RuntimeError(
            "the launcher started several processes, which would train as many different models: "
            "call `fit` within `Distribution.all_devices().fitting(model)`. "
            f"Received: WORLD_SIZE={os.environ['WORLD_SIZE']}"
        )


@contextmanager
def child_process(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Starts a process for a `with` block, and ends it if an error or Ctrl-C ends the block.

    The process has its own session, which Ctrl-C in a terminal does not reach. It gets SIGINT,
    after which a Python process ends those that it has started, and SIGKILL after 5 seconds.
    """
    with subprocess.Popen(words, start_new_session=True, **options) as child:
        try:
            yield child
        except BaseException:
            for number in (signal.SIGINT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_SECONDS_TO_END)
                    break
            raise
