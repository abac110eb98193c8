"""Batches of the server, by a translator that a test stops."""

import asyncio
import threading

from keras_transformer.serving.batcher import Batcher, ServerOptions
from keras_transformer.translation.markup import Segment


class Stopped:
    """Notes its batches, and begins the first when `go` is set."""

    def __init__(self):
        self.batches, self.go = [], threading.Event()

    def __call__(self, kind, segments):
        assert self.go.wait(20)
        self.batches.append([kind, *(x.text for x in segments)])
        if any(x.text == "bad" for x in segments):
            raise ValueError
        return [x.text.upper() for x in segments]


async def begun(batcher, *requests):
    """Starts requests, each a kind and texts, one after the other."""
    tasks = []
    for kind, *texts in requests:
        tasks.append(asyncio.create_task(batcher.translate(kind, [*map(Segment, texts)])))
        await asyncio.sleep(0.05)
    return tasks


def run(requests, then=lambda tasks: None, **options):
    """Returns the batches after the first, which is of "first", and the answers."""
    stopped = Stopped()

    async def whole():
        batcher = Batcher(stopped, ServerOptions(**options), sizes.append)
        tasks = await begun(batcher, (0, "first"), *requests)
        then(tasks)
        await asyncio.sleep(0.05)
        stopped.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert batcher.waiting == 0
        batcher.close()
        return found

    sizes = []
    found = asyncio.run(whole())
    return stopped.batches[1:], found[1:], sizes[1:]


def test_a_batch_has_one_kind_and_keeps_the_order():
    batches, found, sizes = run([(0, "a", "b"), (1, "c"), (0, "d")])
    assert batches == [[0, "a", "b", "d"], [1, "c"]] and sizes == [3, 1]
    assert found == [["A", "B"], ["C"], ["D"]]


def test_a_batch_has_at_most_so_many_segments_and_about_so_many_characters():
    assert run([(0, *"abcde")], max_batch=2)[0] == [[0, "a", "b"], [0, "c", "d"], [0, "e"]]
    texts = ["a" * 7, "bb", "c"]
    assert run([(0, *texts)], char_limit=8)[0] == [[0, *texts[:2]], [0, "c"]]
