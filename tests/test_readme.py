"""The Python of the README runs as printed, in one go."""

import re
from pathlib import Path

import keras

README = Path(__file__).parent.parent / "README.md"


def test_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    namespace: dict = {}
    for block in blocks:
        if "conformance(" in block and keras.config.backend() != "jax":
            continue  # starts all backends itself, so once is enough
        exec(compile(block, str(README), "exec"), namespace)
    assert namespace["result"].ids.shape == (2, 1, 12)


def test_readme_names_only_scripts_and_recipes_that_exist():
    root = README.parent
    for path in set(re.findall(r"\b(?:scripts|recipes)/[\w/.]+", README.read_text())):
        assert (root / path.rstrip(".")).exists(), path
