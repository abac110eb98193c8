"""The batching of the stand-in server, with a run that waits for the test."""

import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import numpy as np
import pytest
from support.stand_in_server.batching import BatchingParameters, BatchScheduler
from support.stand_in_server.errors import Code, RequestError

HOUR = 3_600_000_000  # microseconds


def doubled(signature, inputs):
    return {"y": 2 * inputs["x"]}


def x(*values):
    return {"x": np.array(values)}


def test_parameters_are_read_as_text_protobuf(tmp_path):
    file = tmp_path / "batching.txt"
    file.write_text(
        "max_batch_size { value: 16 }\nbatch_timeout_micros { value: 5000 }\n"
        'thread_pool_name { value: "t" }\nallowed_batch_sizes: 4\nallowed_batch_sizes: 16\n'
        "pad_variable_length_inputs: true\n"
    )
    assert BatchingParameters.read(file) == BatchingParameters(
        max_batch_size=16,
        batch_timeout_micros=5000,
        allowed_batch_sizes=(4, 16),
        pad_variable_length_inputs=True,
    )


def test_requests_that_fill_a_batch_run_together_and_get_their_own_rows():
    scheduler = BatchScheduler(doubled, BatchingParameters(6, HOUR))
    with ThreadPoolExecutor(3) as pool:
        requests = [x(1), x(2, 3), x(4, 5, 6)]
        answers = list(pool.map(lambda request: scheduler("s", request)["y"].tolist(), requests))
    assert answers == [[2], [4, 6], [8, 10, 12]]
    assert list(scheduler.sizes) == [6]


def test_a_batch_that_is_not_full_runs_when_its_time_is_up():
    scheduler = BatchScheduler(doubled, BatchingParameters(6, 1000))
    assert scheduler("s", x(1))["y"].tolist() == [2]


def test_signatures_do_not_mix():
    seen = []

    def run(signature, inputs):
        seen.append((signature, inputs["x"].tolist()))
        return doubled(signature, inputs)

    scheduler = BatchScheduler(run, BatchingParameters(2, HOUR))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: scheduler(name, x(ord(name))), "abab"))
    assert sorted(seen) == [("a", [97, 97]), ("b", [98, 98])]


def test_a_full_queue_refuses():
    begun, go_on = threading.Event(), threading.Event()

    def run(signature, inputs):
        begun.set()
        assert go_on.wait(60)
        return doubled(signature, inputs)

    parameters = BatchingParameters(
        2, batch_timeout_micros=0, max_enqueued_batches=1, num_batch_threads=1
    )
    scheduler = BatchScheduler(run, parameters)
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(scheduler, "s", x(1, 2))
        assert begun.wait(60)
        waiting = [pool.submit(scheduler, "s", x(3, 4)) for _ in range(2)]
        (refused,), _ = wait(waiting, return_when=FIRST_COMPLETED, timeout=60)
        go_on.set()
    assert refused.exception().code == Code.UNAVAILABLE
    assert sorted(future.exception() is None for future in waiting) == [False, True]
    assert running.result()["y"].tolist() == [2, 4]


def test_too_large_a_request_is_refused_or_split():
    with pytest.raises(RequestError, match="Task size 5 is larger than .* size 2"):
        BatchScheduler(doubled, BatchingParameters(2))("s", x(1, 2, 3, 4, 5))
    parameters = BatchingParameters(2, enable_large_batch_splitting=True)
    scheduler = BatchScheduler(doubled, parameters)
    assert scheduler("s", x(1, 2, 3, 4, 5))["y"].tolist() == [2, 4, 6, 8, 10]
    assert list(scheduler.sizes) == [2, 2, 1]


def test_batches_are_filled_to_an_allowed_size_and_answers_cut():
    seen = []

    def run(signature, inputs):
        seen.append(inputs["x"].tolist())
        return doubled(signature, inputs)

    parameters = BatchingParameters(8, allowed_batch_sizes=(4, 8))
    assert BatchScheduler(run, parameters)("s", x(1, 2, 3))["y"].tolist() == [2, 4, 6]
    assert seen == [[1, 2, 3, 1]]  # as the server does: with the first row of the last request


def test_errors_of_a_batch_reach_its_requests_alone():
    def run(signature, inputs):
        raise RequestError(Code.INVALID_ARGUMENT, "bad")

    scheduler = BatchScheduler(run, BatchingParameters(1))
    for _ in range(2):  # the thread goes on
        with pytest.raises(RequestError, match="^bad$"):
            scheduler("s", x(1))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": np.array(1)}, "at least one dimension"),
        ({"x": np.zeros(2), "z": np.zeros(3)}, "equal 0th-dimension size"),
    ],
)
def test_what_cannot_be_batched_is_refused(inputs, message):
    with pytest.raises(RequestError, match=message):
        BatchScheduler(doubled, BatchingParameters())("s", inputs)
