#!/usr/bin/env python
"""A run in the formats that it can be exported to: size, speed, BLEU, and what is translated alike.

Every format translates the source file in a process of its own, tokenization included, on 2 CPU
threads, by the same beam search without length penalty, as CTranslate2 knows no other that this
package has; each sleeps while another one works. Seconds are those of the median round, CPU seconds
those that all threads of the process have used in it, which tell more where other jobs run beside;
a ratio is that of Keras' seconds to a format's in the same rounds. `same` is the share of
translations that are, letter by letter, those of Keras in float32. The type is that in which the
weights are stored: what the processor cannot compute in it, CTranslate2 converts to float32 when
it loads them. A format whose package is missing is left out. The first translation, which
compiles, is not timed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _common import ROOT, THREADS, Worker, limit_threads, serve, table, write_json
from _decoding_engines import CTRANSLATE2_NO_PENALTY
from _decoding_file import TOKENS_PER_BATCH
from tqdm import tqdm

from keras_transformer.translation.open_run import open_model

BACKENDS = ("tensorflow", "jax", "torch")
FORMATS = {
    "mb": ",.1f",
    "seconds": ",.2f",
    "cpu_seconds": ",.2f",
    "sentences_per_s": ",.1f",
    "ratio": ".2f",
    "cpu_ratio": ".2f",
    "bleu": ".2f",
    "same": ".1%",
}
EXAMPLES = """examples:
  scripts/bench/export.py runs/multi30k_en_de test_2016.en test_2016.de
  scripts/bench/export.py runs/multi30k_en_de test.en test.de --exports exports --json export.json
"""


class Variant(NamedTuple):
    """A format and the type of its weights."""

    format: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.format}-{self.dtype}"


KERAS = Variant("keras", "float32")
EXPORTED = (
    Variant("saved_model", "float32"),
    Variant("ctranslate2", "float32"),
    Variant("ctranslate2", "float16"),
    Variant("ctranslate2", "bfloat16"),
    Variant("ctranslate2", "int8"),
    Variant("onnx", "float32"),
    Variant("onnx", "int8"),
)


class Turn(NamedTuple):
    """Seconds that one translation of the file took: of the clock, and of all threads."""

    seconds: float
    cpu_seconds: float


def export(run: Path, variant: Variant, folder: Path, backend: str, beam_size: int) -> bool:
    """Writes `folder/<variant>` by the command line, unless it is there; says why if it cannot."""
    output = folder / str(variant)
    if output.exists():
        return True
    options = ["--quantization", variant.dtype]
    if variant.format == "saved_model":
        options = ["--beam-size", str(beam_size), "--length-penalty", "0"]
    words = ["export", str(run), "--format", variant.format, "--output", str(output), *options]
    result = subprocess.run(
        [sys.executable, "-m", "keras_transformer_cli", *words],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        tqdm.write(f"{variant} is left out: {(result.stderr.splitlines() or ['?'])[-1]}")
    return result.returncode == 0


def take_turns(
    workers: Mapping[Variant, Worker], rounds: int, progress: tqdm
) -> tuple[dict[Variant, list[str]], dict[Variant, list[Turn]]]:
    """The translations of each, and its turns, one a round."""
    translations = {}
    for variant, worker in workers.items():
        progress.set_description(f"{variant}, first time")
        translations[variant] = worker.ask("translate")["translations"]
        progress.update()
    found: dict[Variant, list[Turn]] = {variant: [] for variant in workers}
    turns = list(workers.items())
    for _ in range(rounds):
        for variant, worker in turns:
            progress.set_description(str(variant))
            answer = worker.ask("translate")
            found[variant].append(Turn(answer["seconds"], answer["cpu_seconds"]))
            progress.update()
        turns.append(turns.pop(0))  # so that no format always has the first turn
    return translations, found


def report(
    translations: Mapping[Variant, Sequence[str]],
    turns: Mapping[Variant, Sequence[Turn]],
    sizes: Mapping[Variant, int],
    bleu: Callable[[Sequence[str]], float],
) -> list[dict[str, Any]]:
    """A row for each format, Keras' first."""
    keras, ours = turns[KERAS], translations[KERAS]
    rows = []
    for variant, own in turns.items():
        theirs = translations[variant]
        seconds = median(turn.seconds for turn in own)
        pairs = list(zip(keras, own, strict=True))
        rows.append(
            {
                "format": variant.format,
                "dtype": variant.dtype,
                "mb": round(sizes[variant] / 1e6, 2),
                "seconds": round(seconds, 3),
                "cpu_seconds": round(median(turn.cpu_seconds for turn in own), 3),
                "sentences_per_s": round(len(theirs) / seconds, 1),
                "ratio": round(median(a.seconds / b.seconds for a, b in pairs), 3),
                "cpu_ratio": round(median(a.cpu_seconds / b.cpu_seconds for a, b in pairs), 3),
                "bleu": round(bleu(theirs), 3),
                "same": round(sum(map(str.__eq__, ours, theirs)) / len(ours), 4),
            }
        )
    return rows


def size_of(*paths: Path) -> int:
    """Bytes of files and of those in folders."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in files if file.is_file())


def measure(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    from keras_transformer.evaluation.run_evaluation import bleu
    from keras_transformer.runs.run import Run

    run = Run.open(arguments.run)
    references = _lines(arguments.target)
    variants = [
        variant
        for variant in tqdm(EXPORTED, desc="exporting", unit="format")
        if export(arguments.run, variant, folder, arguments.backend, arguments.beam_size)
    ]
    sizes = {variant: size_of(folder / str(variant)) for variant in variants}
    sizes[KERAS] = size_of(run.model_path, run.tokenizer_dir)
    total = (1 + len(variants)) * (1 + arguments.rounds)
    with ExitStack() as stack, tqdm(total=total, unit="file") as progress:
        workers = {
            variant: stack.enter_context(_start(variant, arguments, folder))
            for variant in (KERAS, *variants)
        }
        translations, turns = take_turns(workers, arguments.rounds, progress)
    return report(
        translations,
        turns,
        sizes,
        lambda found: bleu(found, references, run.recipe.evaluation),
    )


def _lines(path: Path) -> list[str]:
    from keras_transformer.data import read_lines

    return list(read_lines(path))


def _start(variant: Variant, arguments: argparse.Namespace, folder: Path) -> Worker:
    place = arguments.run if variant == KERAS else folder / str(variant)
    words = ("worker", variant.format, place, arguments.source, arguments.beam_size)
    return Worker(Path(__file__), *map(str, words), KERAS_BACKEND=arguments.backend)


# --- Workers -------------------------------------------------------------------------------------

Translate = Callable[[list[str]], list[str]]


def load_keras(folder: Path, beam_size: int) -> Translate:
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.runs.run import Run
    from keras_transformer.translation.translator import Translator

    run = Run.open(folder)
    return Translator(
        open_model(run),
        run.tokenizer(),
        SearchOptions(beam_size=beam_size, length_penalty=0.0),
        tokens_per_batch=TOKENS_PER_BATCH,
    ).translate


def load_saved_model(folder: Path, beam_size: int) -> Translate:
    """The newest version; its default signature has the beam size that it was exported with."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    newest = max((path for path in folder.iterdir() if path.name.isdigit()), key=_version)
    loaded = tf.saved_model.load(str(newest))
    signature = loaded.signatures["serving_default"]

    def translate(texts: list[str]) -> list[str]:
        assert loaded  # It holds the variables.
        found = signature(text=tf.constant(texts))["translation"].numpy()
        return [text.decode("utf-8") for text in found]

    return translate


def _version(path: Path) -> int:
    return int(path.name)


def load_ctranslate2(folder: Path, beam_size: int) -> Translate:
    import ctranslate2

    from keras_transformer.data import Tokenizer
    from keras_transformer.translation.base_translator import EXTRA_LENGTH

    tokenizer = Tokenizer.load(folder / "tokenizer")
    pieces = tokenizer.source_pieces
    ids_of = {piece: id for id, piece in enumerate(tokenizer.target_pieces)}
    translator = ctranslate2.Translator(str(folder), inter_threads=THREADS, intra_threads=1)

    def translate(texts: list[str]) -> list[str]:
        encoded = tokenizer.encode_source(texts)
        results = translator.translate_batch(
            [[pieces[id] for id in ids] for ids in encoded],
            max_batch_size=TOKENS_PER_BATCH,
            batch_type="tokens",
            beam_size=beam_size,
            length_penalty=CTRANSLATE2_NO_PENALTY,
            min_decoding_length=0,
            max_decoding_length=max(map(len, encoded)) + 1 + EXTRA_LENGTH,
        )
        found = [[ids_of[piece] for piece in result.hypotheses[0]] for result in results]
        return tokenizer.decode_target(found)

    return translate


def load_onnx(folder: Path, beam_size: int) -> Translate:
    from keras_transformer.export.onnx_program import StandaloneTranslator

    translator = StandaloneTranslator(
        folder,
        beam_size=beam_size,
        length_penalty=0.0,
        tokens_per_batch=TOKENS_PER_BATCH,
        num_threads=THREADS,
    )
    return lambda texts: [text for text, _ in translator.translate(texts)]


LOADERS = {
    "keras": load_keras,
    "saved_model": load_saved_model,
    "ctranslate2": load_ctranslate2,
    "onnx": load_onnx,
}


def work(format: str, place: str, source: str, beam_size: str) -> dict[str, Callable[..., Any]]:
    """What a worker can be asked for."""
    texts = _lines(Path(source))
    translate_all = LOADERS[format](Path(place), int(beam_size))

    def translate() -> dict[str, Any]:
        start, cpu_start = time.perf_counter(), time.process_time()
        translations = translate_all(texts)
        return {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "translations": translations,
        }

    return {"translate": translate}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("source", type=Path, help="text to translate, plain or .gz")
    parser.add_argument("target", type=Path, help="reference translations, line by line")
    parser.add_argument("--backend", choices=BACKENDS, default="tensorflow", help="of Keras")
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--exports", type=Path, help="folder that keeps the exports; those in it are used"
    )
    parser.add_argument("--json", type=Path, help="file for the rows")
    return parser.parse_args()


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        serve(lambda: work(*sys.argv[2:]))
        return
    arguments = parse_arguments()
    limit_threads()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.exports or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure(arguments, folder)
    print(f"\n{table(rows, FORMATS)}")
    if arguments.json:
        write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
