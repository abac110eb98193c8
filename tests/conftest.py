"""Fixtures and settings shared by all tests."""

import gc
import os
import re
import shutil
import signal
import sys
from importlib.metadata import version

# Before Keras loads its backend: one quiet, CPU-only process that does not fight for cores.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# Thousands of small programs would only fill the disk.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """In quick tests and on JAX, XLA makes no effort for speed, which small models do not get back.

    JAX and TensorFlow then compile in half the time. Optimization level 0 with fusion emitters
    computes wrong attention in bfloat16. Without fusion emitters, TensorFlow rounds float32 to
    float16 and then to float8; its float8 tests are slow ones.

    The programs of all tests stay in memory. Split into parts, they would need more mapped pieces
    of memory than Linux allows a process (65,530), and TensorFlow would end with a segmentation
    fault.
    """
    if os.environ.get("KERAS_BACKEND") == "jax" and not version("jax").startswith("0.10."):
        return  # A JAX that does not know one of these flags ends the process.
    flags = "--xla_cpu_parallel_codegen_split_count=1"
    if _is_quick(config) or os.environ.get("KERAS_BACKEND") == "jax":
        flags += (
            " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
            "--xla_cpu_use_fusion_emitters=false"
        )
    os.environ.setdefault("XLA_FLAGS", flags)


# Tests in these folders may depend on the backend; of the others, those marked `each_backend` do.
EACH = {"_backend", "decoding", "layers", "models"}
# Long tests that the quick suite runs on one backend, and `scripts/test --slow` on each.
IF_SLOW = "each_backend_if_slow"


def _depends_on_backend(path: Path) -> bool:
    return path.relative_to(Path(__file__).parent).parts[0] in EACH


def _is_quick(config: pytest.Config) -> bool:
    return "not slow" in config.option.markexpr


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where tests marked `once` do not run, files that have no others are not imported."""
    if "not once" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    if _depends_on_backend(collection_path):
        return re.search("^pytestmark = .*mark.once", text, re.MULTILINE) is not None or None
    return "each_backend" not in (text.replace(IF_SLOW, "") if _is_quick(config) else text) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that `scripts/test` runs on one backend only."""
    for item in items:
        is_long = item.get_closest_marker(IF_SLOW) is not None
        on_each = (
            _depends_on_backend(item.path) or is_long or item.get_closest_marker("each_backend")
        )
        if not on_each or (is_long and _is_quick(item.config)):
            item.add_marker(pytest.mark.once)


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> None:
    """Hides the objects made before from collections, which take a tenth of the tests' time.

    Keras makes one at every layer that it quantizes, and Python at every 700 new objects.
    """
    gc.set_threshold(100_000, 50, 1_000)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Same random numbers in every test, whichever tests ran before it."""
    import keras

    keras.utils.set_random_seed(20170612)


@pytest.fixture(autouse=True)
def _same_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes of every test have its backend, although the option --backend changes it."""
    import keras

    monkeypatch.setenv("KERAS_BACKEND", keras.config.backend())


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows progress as bars, as in a notebook and on a terminal. In log files, it is lines."""
    monkeypatch.setitem(sys.modules, "ipykernel", None)


@pytest.fixture(scope="session")
def tokenizer():
    """A tokenizer of few sentences, unless a folder or file has another."""
    from support.parallel_text import SENTENCES

    from keras_transformer import Tokenizer

    return Tokenizer.train(SENTENCES, vocabulary_size=120)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory):
    """A small model as a SavedModel."""
    from support.exporting import export

    return export(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="session")
def browser():
    """Chromium. Playwright allows one a process."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is an optional dependency"
    )
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets; tests that need it skip without it."""
    folder = os.environ.get("KERAS_TRANSFORMER_DATA")
    if not folder:
        pytest.skip("KERAS_TRANSFORMER_DATA names no folder with the real data sets")
    return Path(folder)


@pytest.fixture(autouse=True)
def handlers():
    """Handles Ctrl-C, which a job in the background ignores, and restores the handlers afterwards.

    A command that was interrupted leaves the default handlers of the system.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        if handler is not None:  # It was not set by Python.
            signal.signal(number, handler)
