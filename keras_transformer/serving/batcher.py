"""Translates together what the requests of a server ask for at the same time."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from keras_transformer.translation.markup import Segment


class ServerOptions(BaseModel):
    """What a server allows its clients."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    max_batch: int = Field(64, ge=1, title="N")
    """Maximum number of sentences that are translated together."""
    char_limit: int = Field(5000, ge=1, title="N")
    """Maximum number of characters of a request."""
    batch_limit: int = Field(100, ge=1, title="N")
    """Maximum number of texts of a request."""
    max_waiting: int = Field(2000, ge=1, title="N")
    """Number of waiting sentences of a pair from which requests are refused (status 503)."""
    timeout: float = Field(60, gt=0, allow_inf_nan=False, title="SECONDS")
    """Longest time for a request (then status 504), and for those in flight when the server is
    stopped."""
    cors: tuple[str, ...] = Field((), title="ORIGIN")
    """Let web pages of this origin use the server, such as https://example.org. Repeatable."""


class Full(Exception):
    """Too many sentences are waiting."""


class _Item(NamedTuple):
    kind: Hashable
    segment: Segment
    future: Future[Any]


class Batcher:
    """Translates segments in a thread, together with those of other requests.

    The thread takes what arrived while it was busy, and never waits for more. A batch has segments
    of one kind, and about as many characters as a request may have, so that none is long. If a
    batch fails, its segments are translated one by one. Segments of cancelled requests are skipped.

    Args:
        translate: Translates segments of one kind: `translate(kind, segments)`.
        options: `max_batch`, `char_limit` and `max_waiting`.
        observe: Is called with the number of segments of each batch.
    """

    def __init__(
        self,
        translate: Callable[[Any, list[Segment]], Sequence[Any]],
        options: ServerOptions,
        observe: Callable[[int], Any],
    ) -> None:
        self.waiting = 0
        self._translate, self._options, self._observe = translate, options, observe
        self._items: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    async def translate(self, kind: Hashable, segments: Sequence[Segment]) -> list[Any]:
        """Returns what `translate` finds. Raises `Full`, or what one of the segments raises."""
        if self.waiting and self.waiting + len(segments) > self._options.max_waiting:
            raise Full
        items = [_Item(kind, segment, Future()) for segment in segments]
        self.waiting += len(items)
        try:
            with self._changed:
                self._items.extend(items)
                self._changed.notify()
            return await asyncio.gather(*(asyncio.wrap_future(x.future) for x in items))
        finally:
            self.waiting -= len(items)
            for item in items:
                item.future.cancel()

    def close(self) -> None:
        """Ends the thread after its batch."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(self._options.timeout)

    def _work(self) -> None:
        while not self._is_closed:
            if items := self._take():
                self._observe(len(items))
                self._answer(items)

    def _take(self) -> list[_Item]:
        """Waits for segments, and takes the first with others of its kind."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_closed)
            taken: list[_Item] = []
            others: deque[_Item] = deque()
            room = self._options.char_limit
            for item in self._items:
                is_fitting = room > 0 and len(taken) < self._options.max_batch
                if not is_fitting or item.kind != self._items[0].kind:
                    others.append(item)
                elif item.future.set_running_or_notify_cancel():
                    taken.append(item)
                    room -= len(item.segment.text)
            self._items = others
            return taken

    def _answer(self, items: list[_Item]) -> None:
        try:
            found = self._translate(items[0].kind, [x.segment for x in items])
            pairs = [*zip(items, found, strict=True)]
        except Exception as error:
            if len(items) == 1:
                return items[0].future.set_exception(error)
            pairs = []
            for item in items:
                self._answer([item])
        for item, translation in pairs:
            item.future.set_result(translation)
