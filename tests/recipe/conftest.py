"""A recipe with the fewest keys."""

import pytest

MINIMAL = """
name: minimal
data: {generator: {}}
training:
  steps: 7
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL)
    return path
