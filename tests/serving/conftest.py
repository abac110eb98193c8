"""A model server for all tests of this folder, in a process of its own."""

from collections.abc import Iterator

import pytest
from support.exporting import Exported
from support.served_model import Server, serving

BATCHING = """
max_batch_size { value: 1000 }
batch_timeout_micros { value: 20000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 1 }
"""


@pytest.fixture(scope="session")
def server(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the exported model."""
    batching = tmp_path_factory.mktemp("served") / "batching.txt"
    batching.write_text(BATCHING)
    with serving(exported.version.parent, batching) as started:
        yield started
