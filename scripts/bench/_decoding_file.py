"""A file translated by a trained run and by CTranslate2. As a program: a worker that does so.

Both get the text's lines and return strings, tokenization included, with beam 5 and no length
penalty. Blank lines are left out. CTranslate2 has one limit for the length of all translations, so
it gets that of the longest sentence.
"""

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import _common
import numpy as np
from _contest import Contest, Entrant, Measurement, pairs_of
from _decoding_engines import (
    CTRANSLATE2_NO_PENALTY,
    groups_of,
    model_log_probabilities,
    peak_memory_mib,
)
from _engines import OURS, Setting
from tqdm import tqdm

from keras_transformer import Run, open_model, open_shortlist

BEAM_SIZE = 5
TOKENS_PER_BATCH = 1024
TIE = 1e-4  # nats
COMPARISON = ("sentences", "identical", "tied", "ours_better", "theirs_better")
FORMATS = {
    "first_seconds": ".2f",
    "seconds": ".2f",
    "ratio": ".2f",
    "peak_memory_mib": ",.0f",
    **dict.fromkeys(COMPARISON, ",d"),
}

# A translation: its text and its ids, eos included where there is one.
Translation = tuple[str, list[int]]


def measure_file(
    run: Path,
    text: Path,
    engines: Sequence[str],
    backends: Sequence[str],
    rounds: int,
    shortlist: bool = False,
) -> list[dict[str, Any]]:
    """A row for this package in each setting against each peer, and one for each peer.

    Args:
        shortlist: Whether this package also translates with the run's shortlist.
    """
    groups = groups_of([e for e in engines if e in (OURS, "ctranslate2")], backends)
    if shortlist:
        groups += [[Setting(OURS, backend, shortlist=True)] for backend in backends]
    with tempfile.TemporaryDirectory() as folder, tqdm(unit="file") as progress:
        export(Run.open(run), Path(folder))
        start = partial(_start_translator, run, text, folder)
        contest = Contest(run.name, start, ("translate",), ("seconds",), progress)
        with contest.best(groups) as entrants:
            seconds = contest.take_turns(entrants, rounds)
            measured = [
                Measurement(text, setting, seconds[setting], entrant.worker.ask("peak_memory_mib"))
                for setting, entrant in entrants.items()
            ]
            return [row(*pair, entrants) for pair in pairs_of([measured])]


def row(
    measured: Measurement, peer: Measurement | None, entrants: Mapping[Setting, Entrant]
) -> dict[str, Any]:
    seconds, setting = median(measured.seconds), measured.setting
    mine = entrants[setting]
    comparison: dict[str, Any] = dict.fromkeys(COMPARISON)
    if peer:
        theirs = entrants[peer.setting].first["translations"]
        score = partial(mine.worker.ask, "log_probabilities")
        comparison = compare(mine.first["translations"], theirs, score)
    return {
        "engine": setting.engine,
        "backend": setting.backend,
        "dtype": setting.dtype,
        "shortlist": setting.shortlist,
        "first_seconds": round(mine.first["seconds"], 3),
        "seconds": round(seconds, 3),
        "ratio_to": peer and f"{peer.setting.engine} {peer.setting.dtype}",
        "ratio": peer and round(median(peer.seconds) / seconds, 3),
        "peak_memory_mib": round(measured.peak_memory_mib),
        **comparison,
    }


def compare(
    ours: Sequence[Translation],
    theirs: Sequence[Translation],
    log_probabilities: Callable[[list[int], list[list[int]]], list[float]],
) -> dict[str, int]:
    """How many translations are identical, and which of the others the model finds better.

    Args:
        ours: This package's translations.
        theirs: A peer's.
        log_probabilities: The model's, of the sentences of some rows, by ids of translations.
    """
    rows = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a[0] != b[0]]
    gain = np.zeros(0)
    if rows:
        of_ours, of_theirs = (
            np.array(log_probabilities(rows, [side[i][1] for i in rows])) for side in (ours, theirs)
        )
        gain = of_ours - of_theirs
    return {
        "sentences": len(ours),
        "identical": len(ours) - len(rows),
        "tied": int(np.sum(np.abs(gain) < TIE)),
        "ours_better": int(np.sum(gain >= TIE)),
        "theirs_better": int(np.sum(gain <= -TIE)),
    }


def export(run: Run, folder: Path) -> None:
    """Writes the run for CTranslate2, and the limits of this package for lengths."""
    from keras_transformer.formats import export_ctranslate2
    from keras_transformer.translation.base_translator import EXTRA_LENGTH

    model, tokenizer = open_model(run), run.tokenizer()
    (folder / "limits").write_text(f"{model.max_length} {EXTRA_LENGTH}")
    for dtype in ("float32", "int8"):
        export_ctranslate2(model, tokenizer, folder / dtype, dtype)


# --- Workers -------------------------------------------------------------------------------------


def _start_translator(run: Path, text: Path, folder: str, setting: Setting) -> _common.Worker:
    specification = json.dumps(dataclasses.asdict(setting))
    environment = {"KERAS_BACKEND": setting.backend} if setting.backend else {}
    words = (str(run), str(text), folder, specification)
    return _common.Worker(Path(__file__), *words, **environment)


def _translating(
    run: Path, texts: list[str], folder: Path, setting: Setting
) -> dict[str, Callable[..., Any]]:
    load = _load_keras_transformer if setting.engine == OURS else _load_ctranslate2
    translate_all, log_probabilities = load(run, folder, setting)

    def translate() -> dict[str, Any]:
        start = time.perf_counter()
        translations = translate_all(texts)
        return {"seconds": time.perf_counter() - start, "translations": translations}

    def log_probabilities_of(rows: list[int], ids: list[list[int]]) -> list[float]:
        return log_probabilities([texts[row] for row in rows], ids)

    return {
        "translate": translate,
        "seconds": lambda: translate()["seconds"],
        "log_probabilities": log_probabilities_of,
        "peak_memory_mib": peak_memory_mib,
    }


def _load_keras_transformer(run: Path, folder: Path, setting: Setting) -> Any:
    from keras_transformer.decoding.batch_search import FEW_SHAPES_SENTENCES
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.translation.translator import Translator

    opened = Run.open(run)
    model, tokenizer = open_model(opened), opened.tokenizer()
    if setting.dtype == "int8":
        model.quantize("int8")
    translator = Translator(
        model,
        tokenizer,
        SearchOptions(beam_size=BEAM_SIZE, length_penalty=0.0),
        tokens_per_batch=TOKENS_PER_BATCH,
        shortlist=open_shortlist(opened) if setting.shortlist else None,
    )
    # Measures a process that has translated many sentences before.
    translator._search.batch_search.num_sentences = FEW_SHAPES_SENTENCES

    def translate(texts: list[str]) -> list[Translation]:
        best = [hypotheses[0] for hypotheses in translator.translate_nbest(texts)]
        eos = [[tokenizer.eos_id] * (one.length - len(one.ids)) for one in best]
        return [(one.text, [*one.ids, *end]) for one, end in zip(best, eos, strict=True)]

    def log_probabilities(texts: list[str], ids: list[list[int]]) -> list[float]:
        sources = [[*pieces, tokenizer.eos_id] for pieces in tokenizer.encode_source(texts)]
        return model_log_probabilities(model, sources, ids)

    return translate, log_probabilities


def _load_ctranslate2(run: Path, folder: Path, setting: Setting) -> Any:
    """Two translators of one thread, or one of two."""
    import ctranslate2

    from keras_transformer.data.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder / setting.dtype / "tokenizer")
    source_pieces, target_pieces = tokenizer.source_pieces, tokenizer.target_pieces
    target_ids = {piece: id for id, piece in enumerate(target_pieces)}
    max_length, extra_length = map(int, (folder / "limits").read_text().split())
    translator = ctranslate2.Translator(
        str(folder / setting.dtype),
        compute_type=setting.dtype,
        inter_threads=_common.THREADS // setting.threads,
        intra_threads=setting.threads,
    )

    def translate(texts: list[str]) -> list[Translation]:
        sources = [ids[: max_length - 1] for ids in tokenizer.encode_source(texts)]
        longest = max(map(len, sources)) + 1
        results = translator.translate_batch(
            [[source_pieces[id] for id in source] for source in sources],
            max_batch_size=TOKENS_PER_BATCH,
            batch_type="tokens",
            beam_size=BEAM_SIZE,
            length_penalty=CTRANSLATE2_NO_PENALTY,
            min_decoding_length=0,
            max_decoding_length=min(longest + extra_length, max_length),
            return_end_token=True,
        )
        ids = [[target_ids[piece] for piece in result.hypotheses[0]] for result in results]
        return list(zip(tokenizer.decode_target(ids), ids, strict=True))

    return translate, None


def main() -> None:
    run, text, folder, specification = sys.argv[1:]
    texts = [line for line in Path(text).read_text("utf-8").splitlines() if line.strip()]
    setting = Setting(**json.loads(specification))
    _common.serve(lambda: _translating(Path(run), texts, Path(folder), setting))


if __name__ == "__main__":
    main()
