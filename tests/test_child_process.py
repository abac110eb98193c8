"""Processes that end when this process is stopped."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from keras_transformer._child_process import child_process

WAITS = "import time; time.sleep(100)"
FAMILY = """
import os, sys, time
from keras_transformer._child_process import child_process

print(os.getpid(), flush=True)
descendants = int(sys.argv[1])
if descendants:
    with child_process([sys.executable, __file__, str(descendants - 1)]) as child:
        child.wait()
time.sleep(100)
"""


def is_running(process) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_whole_family(number, tmp_path):
    (tmp_path / "family.py").write_text(FAMILY)
    words = [sys.executable, tmp_path / "family.py", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, text=True, **pipes)
    children = [int(process.stdout.readline()) for _ in range(3)][1:]
    assert all(map(is_running, children))
    process.send_signal(number)
    assert process.wait(20) != 0
    for _ in range(100):  # The system removes processes whose parent has ended.
        if not any(map(is_running, children)):
            break
        time.sleep(0.1)
    assert not any(map(is_running, children))


def test_an_error_in_the_block_ends_the_process():
    with pytest.raises(ZeroDivisionError):
        with child_process([sys.executable, "-c", WAITS]) as child:
            raise ZeroDivisionError
    assert child.returncode == -signal.SIGTERM


def test_the_handler_of_sigterm_is_the_old_one_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with child_process([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE) as child:
        assert child.communicate() == (b"1\n", None)
    assert signal.getsignal(signal.SIGTERM) == before


def test_another_thread_can_start_a_process():
    def run():
        with child_process([sys.executable, "-c", "pass"]) as child:
            codes.append(child.wait())

    codes = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert codes == [0]
