"""Two replicas of Ray Serve on one machine answer as the translator does."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from keras_transformer import Translator

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "fixtures" / "trained_run"
LINES = ["twenty-six", "one", "three hundred", "x"] * 4


@pytest.mark.slow
def test_two_replicas_answer_as_the_translator(tmp_path):
    pytest.importorskip("ray.serve", reason="needs pip install 'ray[serve]'")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [sys.executable, ROOT / "recipes" / "ray_serve.py", RUN, "--engine", "keras"]
    options = ["--replicas", "2", "--cpus", "2", "--port", str(port)]
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    log = tmp_path / "log"
    with (
        log.open("w") as file,
        subprocess.Popen([*program, *options], stdout=file, stderr=file, env=environment) as server,
    ):
        try:

            def ask(line):
                url = f"http://127.0.0.1:{port}/translate"
                return requests.post(url, json={"q": line}, timeout=60).json()["translatedText"]

            deadline = time.monotonic() + 240
            while "ready at" not in log.read_text():
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(1)
            with ThreadPoolExecutor(8) as pool:
                assert [*pool.map(ask, LINES)] == Translator.from_run(RUN).translate(LINES)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
