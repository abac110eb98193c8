"""A file translated by this checkout and by another one in turn, with the weights of one run.

As a program: a worker that translates with the package that `PYTHONPATH` leads to. An older commit
cannot open today's runs, so the worker makes the model from its settings and weights.
"""

import hashlib
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _decoding_baseline import compared, take_turns
from _decoding_file import BEAM_SIZE
from tqdm import tqdm

from keras_transformer.translation.open_run import open_model

FORMATS = {"ours": ".3f", "baseline": ".3f", "ratio": ".3f"}
EXPORT = "export"


def measure_baseline_file(
    checkout: Path,
    run: Path,
    text: Path,
    backends: Sequence[str],
    sentences_before: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """One row per backend, with the median seconds of the whole file in float32.

    Args:
        checkout: The root of the other checkout.
        sentences_before: Sentences that each process has translated before the first round.
    """
    rows = []
    total = len(backends) * rounds
    with tempfile.TemporaryDirectory() as folder, tqdm(total=total, unit="round") as progress:
        with _worker(_common.ROOT, backends[0], EXPORT, str(run), folder) as worker:
            worker.ask("export")
        for backend in backends:
            progress.set_description(backend)
            arguments = (backend, str(run / "tokenizer"), str(text), folder)
            with (
                _worker(_common.ROOT, *arguments) as ours,
                _worker(checkout, *arguments) as baseline,
            ):
                workers = [ours, baseline]
                found = [worker.ask("warm_up", sentences_before) for worker in workers]
                seconds = take_turns(workers, ["seconds"], rounds, progress)
            row = {"backend": backend, "sentences_before": sentences_before, **compared(seconds)}
            rows.append({**row, "same": found[0] == found[1]})
    print(f"\n{_common.table(rows, FORMATS)}")
    return rows


def _worker(root: Path, backend: str, *arguments: str) -> _common.Worker:
    environment = {"PYTHONPATH": str(root), "KERAS_BACKEND": backend}
    return _common.Worker(Path(__file__), *arguments, **environment)


# --- Workers -------------------------------------------------------------------------------------


def _exporting(run: Path, folder: Path) -> dict[str, Callable[..., Any]]:
    from keras_transformer.runs.run import Run

    def export() -> None:
        model = open_model(Run.open(run))
        (folder / "config.json").write_text(json.dumps(model.get_config()))
        np.savez(folder / "weights.npz", *(np.asarray(w, "float32") for w in model.get_weights()))

    return {"export": export}


def _translating(tokenizer: Path, text: Path, folder: Path) -> dict[str, Callable[..., Any]]:
    translate = _load_translator(tokenizer, folder)
    lines = [line for line in text.read_text("utf-8").splitlines() if line.strip()]

    def warm_up(sentences: int) -> str:
        for _ in range(-(-sentences // len(lines))):
            found = translate(lines)
        return hashlib.sha256("\n".join(found).encode()).hexdigest()

    def seconds() -> float:
        start = time.perf_counter()
        translate(lines)
        return time.perf_counter() - start

    return {"warm_up": warm_up, "seconds": seconds}


def _load_translator(tokenizer: Path, folder: Path) -> Callable[[list[str]], list[str]]:
    import keras_transformer
    from keras_transformer import Transformer, Translator
    from keras_transformer.data import Tokenizer

    known = inspect.signature(Transformer.__init__).parameters
    config = json.loads((folder / "config.json").read_text())
    config = {name: config[name] for name in config if name in known}
    model = Transformer(**{**config, "dtype": "float32"})
    with np.load(folder / "weights.npz") as weights:
        model.set_weights([weights[name] for name in weights.files])
    options = {"beam_size": BEAM_SIZE, "length_penalty": 0.0}
    if hasattr(keras_transformer, "SearchOptions"):
        options = {"options": keras_transformer.SearchOptions(**options)}
    return Translator(model, Tokenizer.load(tokenizer), **options).translate


def main() -> None:
    if sys.argv[1] == EXPORT:
        run, folder = map(Path, sys.argv[2:])
        _common.serve(lambda: _exporting(run, folder))
    else:
        tokenizer, text, folder = map(Path, sys.argv[1:])
        _common.serve(lambda: _translating(tokenizer, text, folder))


if __name__ == "__main__":
    main()
