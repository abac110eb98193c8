"""A model server for all tests of this folder, in a process of its own."""

from collections.abc import Iterator

import pytest
from support.exporting import Exporting, exporting_fixture  # noqa: F401
from support.served_model import Server, serving

BATCHING = """
max_batch_size { value: 1000 }
batch_timeout_micros { value: 20000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 1 }
"""


@pytest.fixture(scope="session")
def server(exporting: Exporting, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the model of exporting_process.py."""
    batching = tmp_path_factory.mktemp("served") / "batching.txt"
    batching.write_text(BATCHING)
    with serving(exporting.folder / "model", batching) as started:
        yield started
