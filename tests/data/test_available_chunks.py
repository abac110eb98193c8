"""Lists of what is there."""

import queue
import threading

import pytest

from keras_transformer.data.available_chunks import available_chunks


def items_of(source):
    """Items that a test puts into a queue, until None."""
    return iter(source.get, None)


def test_what_is_there_goes_in_large_chunks_in_order():
    chunks = list(available_chunks(range(10), most=4))
    assert chunks == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(available_chunks([], most=4)) == []


def test_each_item_is_answered_before_the_next_one_comes():
    source = queue.Queue()
    chunks = available_chunks(items_of(source), most=8)
    for item in ("a", "b"):
        source.put(item)
        assert next(chunks) == [item]  # Would hang if it waited for more.
    source.put(None)
    assert list(chunks) == []


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        yield 2
        raise ValueError("third")

    chunks = available_chunks(items(), most=8)
    assert next(chunks) == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(chunks)


def test_only_so_many_items_are_taken_ahead():
    taken = []
    chunks = available_chunks((taken.append(n) or n for n in range(1000)), most=4)
    assert next(chunks) == [0, 1, 2, 3]
    assert len(taken) <= 4 + 4 + 1  # The chunk, the queue, and the one in the thread's hand.
    chunks.close()


def test_no_thread_is_left_when_nobody_wants_more():
    chunks = available_chunks(iter(int, 1), most=4)  # Endless.
    next(chunks)
    chunks.close()
    takers = [thread for thread in threading.enumerate() if thread.name.endswith("(_take)")]
    for thread in takers:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in takers)
