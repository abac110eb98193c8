"""What must hold of the project as a whole."""

import re
import tomllib
from pathlib import Path

import keras_transformer

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "keras_transformer"

# The graph of a SavedModel, which its exporter imports in a process of the TensorFlow backend, and
# what is imported only where its backend runs.
OF_ONE_BACKEND = {"translation_graph.py", "cuda_graphs.py", "compiled_step.py", "jax_kernels.py"}
OF_ONE_BACKEND |= {"compile_graph.py", "fully_sharded.py", "graphed_step.py", "recorder.py"}

# Files that are tested with those that use them.
TESTED_WITH = {
    **{
        f"_backend/{name}.py": "_backend/test_recorded_loops.py"
        for name in ("compile_graph", "cuda_graphs", "recorder")
    },
    "portability/inputs.py": "portability/test_comparison.py",
    "training/devices/tensorflow.py": "training/devices/test_base.py",
    "_backend/jax_kernels.py": "_backend/test_gpu_formulas.py",
    "_backend/fully_sharded.py": "training/test_own_model.py",
    "_backend/types.py": "models/test_equivalence.py",
    "data/buckets.py": "data/test_batch_plan.py",
    "formats/export_options.py": "formats/test_run_export.py",
    "data/tokenizer_training.py": "data/test_tokenizer.py",
    "recipe/sections.py": "recipe/test_settings.py",
    "training/callbacks.py": "training/test_fit_loop.py",
    "training/run/finish.py": "training/run/test_train.py",
    "training/run/prepare.py": "training/run/test_train.py",
    "training/devices/replica.py": "training/test_own_model.py",
    "cli/parameters.py": "cli/test_commands.py",
    "cli/process.py": "cli/test_train.py",
    **{
        f"documents/{name}.py": "documents/test_documents.py"
        for name in ("document", "html", "markdown", "messages", "subtitles", "units")
    },
    "decoding/request.py": "decoding/test_decoding_loop.py",
    "capabilities.py": "models/test_base.py",
    "models/protocol.py": "models/test_base.py",
    "models/seq2seq.py": "models/test_transformer.py",
    "layers/normalization.py": "layers/test_sublayers.py",
    **{
        f"layers/positions/{name}.py": "layers/positions/test_positional_encoding.py"
        for name in ("alibi", "learned", "rotary", "sinusoidal", "t5")
    },
    "runs/folder.py": "runs/test_run.py",
    "runs/base_model.py": "training/run/test_train.py",
    "serving/batcher.py": "serving/test_server.py",
    "layers/attention/cache.py": "layers/attention/test_decoding_step.py",
    "runs/loading.py": "runs/test_checkpoints.py",
    "translation/beam_tree.py": "visualization/test_beam.py",
    "formats/engines.py": "translation/test_open_run.py",
    "formats/exported_model.py": "formats/test_run_folder.py",
    "cli/import_run.py": "formats/test_imported_run.py",
    **{
        f"formats/{name}.py": "formats/test_imported_run.py" for name in ("foreign_model", "marian")
    },
}


def test_every_file_of_the_package_has_a_test_file():
    missing = []
    for path in PACKAGE.rglob("*.py"):
        if not path.name.startswith("__"):
            relative = path.relative_to(PACKAGE)
            own = relative.parent / f"test_{relative.name.lstrip('_')}"
            test = ROOT / "tests" / TESTED_WITH.get(relative.as_posix(), own)
            if not test.exists() or "def test_" not in test.read_text():
                missing.append(str(test.relative_to(ROOT)))
    assert missing == []


def test_package_files_do_not_import_a_backend_or_keras_internals_at_module_level():
    forbidden = re.compile(
        r"^(import|from) (tensorflow|torch|jax|keras_hub|keras_nlp|keras\.src)\b", re.MULTILINE
    )
    offenders = {path.name for path in PACKAGE.rglob("*.py") if forbidden.search(path.read_text())}
    assert offenders == OF_ONE_BACKEND


def test_version_is_stated_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", keras_transformer.__version__)


def test_the_documentation_has_a_formatter_of_signatures():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    docs = project["optional-dependencies"]["docs"]
    assert any(re.match("ruff|black", requirement) for requirement in docs)


def test_expected_skips_have_a_reason():
    for line in (ROOT / "tests" / "expected_skips.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"tests\.\S+: \S.*", line)
