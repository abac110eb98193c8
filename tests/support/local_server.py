"""A web server of this machine alone, whose answers a test writes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], Any]


class LocalServer:
    """Answers GET, HEAD and POST by `answers`; keeps the requests that came.

    Attributes:
        url: Its address.
        answers: From the path, such as "/data/train.en", to a function of the request handler.
        requests: Path and headers of each request.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []


def answer(body: bytes, status: int = 200, **headers: str) -> Answer:
    """An answer with its Content-Length; `Content_Encoding="gzip"` becomes a header."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return send


@contextmanager
def local_server() -> Iterator[LocalServer]:
    """A server for as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            local.requests.append((self.path, dict(self.headers)))
            try:
                local.answers.get(self.path, answer(b"", 404))(self)
            except OSError:  # the client has gone
                pass

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        local = LocalServer(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield local
        finally:
            server.shutdown()
            thread.join()
