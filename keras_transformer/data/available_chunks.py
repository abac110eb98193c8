"""Batching of items from a source that may be slow, such as standard input."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")

# How long to wait for further items of a chunk. A person who types does not notice it.
PATIENCE_SECONDS = 0.05


class _End(NamedTuple):
    """Marks the end of the queue; holds the exception that `items` raised, or None."""

    error: BaseException | None


def available_chunks(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    r"""Yields lists of the items that are available: at least one item, at most `most`.

    A thread reads the items, so that the next ones arrive while the caller works on a chunk. A
    person who types gets an answer to each line, and a long file is processed in large chunks. The
    queue holds at most `most` items.

    Example:

    >>> for lines in available_chunks(sys.stdin, 1024):
    ...     print(*translator.translate(lines), sep="\n", flush=True)

    Args:
        items: May block while no item is available.
        most: Maximum number of items per chunk, at least 1.

    Yields:
        Non-empty lists of items, in the same order.

    Raises:
        Exception: The exception that `items` raises, after all items before it were yielded.
    """
    arrived: queue.Queue[Any] = queue.Queue(most)
    is_abandoned = threading.Event()
    arguments = (items, arrived, is_abandoned)
    threading.Thread(target=_take, args=arguments, daemon=True).start()
    end = None
    try:
        while end is None:
            chunk = _next_chunk(arrived, most)
            if isinstance(chunk[-1], _End):
                end = chunk.pop()
            if chunk:
                yield chunk
    finally:
        is_abandoned.set()
    if end.error is not None:
        raise end.error


def _take(items: Iterable[Any], arrived: "queue.Queue[Any]", is_abandoned: threading.Event) -> None:
    """Puts all items into the queue, then an `_End`; stops when the caller has stopped reading."""
    try:
        for item in items:
            _put(arrived, item, is_abandoned)
            if is_abandoned.is_set():
                return
    except BaseException as error:  # re-raised in the thread that reads the queue
        _put(arrived, _End(error), is_abandoned)
    else:
        _put(arrived, _End(None), is_abandoned)


def _put(arrived: "queue.Queue[Any]", item: Any, is_abandoned: threading.Event) -> None:
    while not is_abandoned.is_set():
        try:
            return arrived.put(item, timeout=1)
        except queue.Full:
            pass


def _next_chunk(arrived: "queue.Queue[Any]", most: int) -> list[Any]:
    chunk = [arrived.get()]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(chunk) < most and not isinstance(chunk[-1], _End):
        try:
            chunk.append(arrived.get(timeout=max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            break
    return chunk
