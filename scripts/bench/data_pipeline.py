"""Encode a WMT-sized corpus once and stream batches from it: speed and memory.

    .venv/bin/python scripts/bench/data_pipeline.py --json data_pipeline.json

The corpus is generated while it is encoded: each sentence is a stretch of a text of made-up words
whose frequencies follow Zipf's law, of a length as in WMT14 English-German (mean about 26 words).
It goes through the package as any text does: strings, SentencePiece, token store, batch plan.
"""

import argparse
import itertools
import json
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.data import BatchPlan, Tokenizer, TokenStore

VOCABULARY_SIZE = 8_000
DISTINCT_WORDS = 50_000
WORDS_OF_TEXT = 1_000_000


class GeneratedText:
    """Pairs of sentences of made-up words, the same at every iteration."""

    def __init__(self, pairs: int) -> None:
        self.pairs = pairs
        rng = np.random.default_rng(1)
        letters = np.array(list("etaoinsrhldcumfpgwybvkxjqz"))
        words = ["".join(rng.choice(letters, size)) for size in rng.integers(1, 12, DISTINCT_WORDS)]
        ranks = np.minimum(rng.zipf(1.2, WORDS_OF_TEXT) - 1, DISTINCT_WORDS - 1)
        self._text = [words[rank] for rank in ranks]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        rng = np.random.default_rng(2)
        for start in range(0, self.pairs, 10_000):
            count = min(10_000, self.pairs - start)
            source = np.clip(rng.lognormal(3.05, 0.65, count), 1, 120).astype(int)
            target = np.clip(source * rng.normal(0.95, 0.12, count), 1, 120).astype(int)
            begin = rng.integers(0, WORDS_OF_TEXT - 240, count)
            for words, other_words, at in zip(source, target, begin, strict=True):
                middle = at + words
                yield (
                    " ".join(self._text[at:middle]),
                    " ".join(self._text[middle : middle + other_words]),
                )


def encode(pairs: int, folder: Path) -> tuple[TokenStore, dict[str, Any]]:
    tokenizer = Tokenizer.train(GeneratedText(20_000), VOCABULARY_SIZE)
    started = time.perf_counter()
    store = TokenStore.build(folder / "store", GeneratedText(pairs), tokenizer)
    seconds = time.perf_counter() - started
    return store, {
        "pairs": len(store),
        "target_tokens": int(store.lengths("target").sum()) + len(store),
        "encoding_seconds": round(seconds, 1),
        "encoding_pairs_per_s": round(len(store) / seconds),
        "store_mib": mebibytes(sum(path.stat().st_size for path in store.directory.iterdir())),
    }


def plan_batches(store: TokenStore, tokens_per_batch: int) -> tuple[BatchPlan, dict[str, Any]]:
    """Time and memory of the plan with the orders of two passes, which is the most it holds."""
    tracemalloc.start()
    started = time.perf_counter()
    plan = BatchPlan(store, tokens_per_batch)
    plan.batch(0)
    seconds = time.perf_counter() - started
    plan.batch(plan.batches_per_pass)
    resident, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return plan, {
        "tokens_per_batch": tokens_per_batch,
        "batches_per_pass": plan.batches_per_pass,
        "shapes": plan.shapes,
        "seconds_to_first_batch": round(seconds, 1),
        "plan_bytes_per_pair": round(resident / len(store), 1),
        "plan_peak_bytes_per_pair": round(peak / len(store), 1),
    }


def stream(plan: BatchPlan, batches: int) -> dict[str, Any]:
    real = positions = 0
    started = time.perf_counter()
    for _, labels, sample_weight in itertools.islice(plan.batches(), batches):
        real += int(np.count_nonzero(sample_weight))
        positions += labels.size
    seconds = time.perf_counter() - started
    return {
        "streamed_batches": batches,
        "streamed_target_tokens": real,
        "streaming_tokens_per_s": round(real / seconds),
        "real_share_of_target_positions": round(real / positions, 3),
    }


def memory() -> dict[str, float]:
    """Of this process; pages of the mapped store count as resident while they are cached."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "peak_rss_mib": mebibytes(1024 * int(fields["VmHWM"].split()[0])),
        "own_rss_mib": mebibytes(1024 * int(fields["RssAnon"].split()[0])),
    }


def mebibytes(count: int) -> float:
    return round(count / 2**20, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4_500_000)
    parser.add_argument("--batches", type=int, default=4_000, help="how many to stream")
    parser.add_argument("--tokens-per-batch", type=int, default=25_000)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store, figures = encode(arguments.pairs, Path(folder))
        figures["after_encoding"] = memory()
        plan, plan_figures = plan_batches(store, arguments.tokens_per_batch)
        figures |= plan_figures | stream(plan, arguments.batches)
        figures["after_streaming"] = memory()
    for name, value in figures.items():
        print(f"{name:32} {value:,}" if isinstance(value, int) else f"{name:32} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
