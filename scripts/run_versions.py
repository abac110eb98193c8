"""Tests the package with the oldest and the newest versions of its dependencies.

Called by `scripts/test --versions [BACKEND ...]`. For each Python that is found and each backend, a
new environment gets the newest versions, and the oldest Python also the lowest ones that
pyproject.toml names. About a tenth of the tests runs there.
"""

import itertools
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from run_tests import BACKENDS, ROOT

PYTHONS = "3.11", "3.12", "3.13"
TESTS = """
tests/test_golden.py tests/cli/test_each_backend.py tests/data/test_tokenizer.py
tests/data/test_languages.py tests/data/test_batch_plan.py tests/decoding/test_options.py
tests/evaluation tests/layers/test_saving.py tests/models/test_transformer.py
tests/recipe/test_settings.py tests/runs/test_checkpoints.py tests/runs/test_text.py
tests/training/test_tensorboard.py
""".split()
# What these tests import beside the package.
FOR_TESTS = "pytest", "hypothesis", "safetensors", "requests"


def lowest(requirements: list[str]) -> list[str]:
    """The lowest versions that requirements allow, such as "click==8.1" for "click>=8.1".

    Of two requirements of one package, the last counts: that of an extra.
    """
    found = (re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", x) for x in requirements)
    return [f"{name}=={version}" for name, version in {x[1]: x[2] for x in found if x}.items()]


def test(python: str, backend: str, versions: str, folder: Path) -> bool:
    """Whether the tests pass in a new environment."""
    subprocess.check_call([python, "-m", "venv", folder])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][extra] for extra in (backend, "quickstart")]
    pins = lowest([*project["dependencies"], *itertools.chain(*extras)])
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins if versions == "lowest" else []))
    program = folder / "bin" / "python"
    install = [program, "-m", "pip", "install", "-q", "-c", constraints, "--upgrade"]
    done = subprocess.run([*install, f"{ROOT}[{backend},quickstart]", *FOR_TESTS])
    if not done.returncode:
        marker = " and ".join(filter(None, ("not slow", BACKENDS[backend])))
        pytest = [program, "-m", "pytest", "-q", "-m", marker, *TESTS]
        done = subprocess.run(["env", f"KERAS_BACKEND={backend}", *pytest], cwd=ROOT)
    return not done.returncode


def main(backends: list[str]) -> int:
    found = [x for x in PYTHONS if _runs(f"python{x}")]
    jobs = [(python, "newest") for python in found] + [(found[0], "lowest")]
    failed = 0
    for (python, versions), backend in itertools.product(jobs, backends or BACKENDS):
        with tempfile.TemporaryDirectory() as folder:
            passes = test(f"python{python}", backend, versions, Path(folder))
        print(f"Python {python}, {versions}, {backend}: {'passes' if passes else 'FAILS'}")
        failed += not passes
    return failed


def _runs(python: str) -> bool:
    """Whether a Python is there: pyenv has programs that only say that it is not."""
    return bool(shutil.which(python)) and not subprocess.run([python, "-V"]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
