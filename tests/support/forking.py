"""Runs a function in a forked child."""

import os


def in_a_child(function):
    """The error of a function in a forked child, as text. The child is killed after a minute."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            function()
            os.write(writing, b"NoneType: ")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text
