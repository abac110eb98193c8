"""The server in a thread with a translator without a model, and in a process of its own."""

import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.serving import ServerOptions, create_app
from support.document_doubles import Double, Vocabulary


class Upper(Double):
    """Writes texts in capitals, one batch at a time while `gate` is set.

    Attributes:
        batches: The texts of each batch.
    """

    def __init__(self) -> None:
        super().__init__(Vocabulary(), 50, SearchOptions())
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()

    def translate(self, texts: list[str]) -> list[str]:
        self.batches.append(texts)
        assert self.gate.wait(30)
        if "boom" in texts:
            raise ValueError(texts)
        return [text.upper() for text in texts]

    def translate_nbest(self, texts: list[str]) -> list[list[Any]]:
        found = ((x.upper(), x[::-1], x.upper()) for x in texts)
        return [[SimpleNamespace(text=x) for x in texts] for texts in found]

    def translate_segments(self, segments: Any, **settings: Any) -> Any:
        self.batches.append([x.text for x in segments])
        return super().translate_segments(segments, **settings)


@contextmanager
def running(translators: Any, *arguments: Any, **options: Any) -> Iterator[str]:
    """Serves translators, and yields the address."""
    app = create_app(translators, ServerOptions(**options), *arguments)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, access_log=False, timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@contextmanager
def serving(
    *command: Any, told: str = r"running on (\S+)", **settings: Any
) -> Iterator[tuple[Any, str]]:
    """Runs a command that serves at any port, and yields the process and what it says of it."""
    with (
        tempfile.NamedTemporaryFile("w") as file,
        subprocess.Popen(
            [*map(str, command), "--port", "0"], stderr=file, stdout=file, **settings
        ) as process,
    ):
        try:
            log = Path(file.name)
            while not (found := re.search(told, log.read_text())):
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            yield process, found[1]
        finally:
            process.kill()
