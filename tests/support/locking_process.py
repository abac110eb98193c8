"""A process that holds the training lock of a folder until it is killed."""

from contextlib import contextmanager
from multiprocessing import get_context
from threading import Event

from keras_transformer.runs.run import training_lock


def _lock(directory, told):
    with training_lock(directory):
        told.send("locked")
        Event().wait()


@contextmanager
def locked_by_another_process(directory):
    fork = get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=_lock, args=(directory, there))
    child.start()
    try:
        assert here.poll(60) and here.recv() == "locked"
        yield
    finally:
        child.kill()
        child.join()
