"""A run in the files of its peers. As a program: a worker that writes them.

The run needs a joint vocabulary. Each peer gets its own model with the weights of the run, so that
all translate alike.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common

from keras_transformer.translation.open_run import open_model


def _exporting(run: Path, folder: Path) -> dict[str, Callable[..., Any]]:
    from keras_transformer.formats import export_ctranslate2, export_hugging_face
    from keras_transformer.runs.run import Run

    opened = Run.open(run)
    save = {"ctranslate2": export_ctranslate2, "hugging_face": export_hugging_face}

    def text() -> str:
        """The source of the run's test set, downloaded if the recipe says so."""
        return str(opened.text.files("test")[0])

    def export(peers: list[str]) -> dict[str, str]:
        """Returns, for each peer without an export, why it has none."""
        tokenizer = opened.tokenizer()
        if not tokenizer.joint:
            raise RuntimeError(f"{run} has two vocabularies; the benchmark needs a joint one")
        model = open_model(opened)
        problems = {}
        for peer in peers:
            try:
                save[peer](model, tokenizer, folder / peer)
            except (ImportError, ValueError) as error:
                problems[peer] = f"{type(error).__name__}: {error}"
        return problems

    return {"text": text, "export": export}


def main() -> None:
    run, folder = map(Path, sys.argv[1:])
    _common.serve(lambda: _exporting(run, folder))


if __name__ == "__main__":
    main()
