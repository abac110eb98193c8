"""Translates with an exported ONNX model, and needs only NumPy, onnxruntime and sentencepiece.

`export_onnx` copies this file to its output folder, as `translate.py`. Examples of use:

    pip install numpy onnxruntime sentencepiece
    python FOLDER/translate.py < in.txt > out.txt
    python -m keras_transformer.export.onnx_translator --model FOLDER in.txt --beam-size 1

This file imports no module of keras_transformer, so `translate.py` runs without that package.
"""

import argparse
import gzip
import itertools
import json
import sys
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import sentencepiece

LINES = 1024  # maximum number of lines that the command translates together
LONGEST_LINE = 1024 * 1024  # maximum number of bytes of a line
MOST_THREADS = 1024


class Step(NamedTuple):
    """Result of one decoder step. Contains the C most probable next tokens and the logits."""

    log_probabilities: np.ndarray  # float32 (B, N, C), descending; -inf for padding and bos
    ids: np.ndarray  # int64 (B, N, C)
    logits: Any  # `OrtValue`, float32 (B, N, V)
    state: dict[str, Any]  # the argument `state` of the next step


class Translation(NamedTuple):
    """The best hypothesis of a sentence."""

    ids: list[int]  # end with eos, unless the maximum length was reached
    score: float  # log-probability in nats, divided by the length penalty


class OnnxModel:
    """Runs the exported encoder and decoder. `OnnxTranslator` documents the arguments.

    Example:

    >>> model = OnnxModel("runs/quickstart/onnx")
    >>> state = model.encode(np.array([[17, 25, 3]]))
    >>> step = model.step(np.array([[2]]), np.array([[0]]), 1, state)
    >>> step.ids[:, :, 0]  # (1, 1), the most probable first token
    """

    def __init__(self, directory: str | Path, num_threads: int = 0) -> None:
        if not 0 <= num_threads <= MOST_THREADS:
            rule = f"`num_threads` must be from 0 to {MOST_THREADS}"
            raise ValueError(f"{rule}. Received: num_threads={num_threads}")
        directory = Path(directory)
        self.config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        # Busy waiting (spinning) slows down other threads on the same cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(directory / name, options, ["CPUExecutionProvider"])
            for name in ("encoder.onnx", "step.onnx")
        )
        self._memory = [output.name for output in self._encoder.get_outputs()]
        self._predictions = ["logits", "candidate_log_probabilities", "candidate_ids"]
        outputs = [output.name for output in self._decoder.get_outputs()]
        self._cache = [name for name in outputs if name not in self._predictions]
        shapes = {input.name: input.shape for input in self._decoder.get_inputs()}
        # The axes of a cached tensor are sentences, hypotheses, heads, tokens and features.
        self._sizes = {name: shapes[f"past_{name}"][2::2] for name in self._cache}

    def encode(self, source_ids: np.ndarray) -> dict[str, Any]:
        """Returns the state for the first decoder step.

        The state contains the keys and values of the source, and an empty cache.

        Args:
            source_ids: int `(B, S)`, pieces followed by eos, padded at the end.
        """
        feed = {"source_ids": _value(source_ids)}
        memory = self._encoder.run_with_ort_values(self._memory, feed)
        past = {
            f"past_{name}": _value(np.zeros((len(source_ids), 1, heads, 0, width), "float32"))
            for name, (heads, width) in self._sizes.items()
        }
        return {**dict(zip(self._memory, memory, strict=True)), **past}

    def step(
        self, token_ids: np.ndarray, parents: np.ndarray, num_candidates: int, state: dict[str, Any]
    ) -> Step:
        """Predicts the next token of each hypothesis.

        Args:
            token_ids: int `(B, N)`, the newest token of each hypothesis. In the first step, it is
                bos.
            parents: int `(B, N)`, the index of each hypothesis's parent among the hypotheses of the
                previous step. In the first step, all indices are 0.
            num_candidates: Number C of next tokens to return for each hypothesis, at most V. The
                most probable tokens are returned.
            state: The result of `encode`, or the `state` of the previous `Step`.
        """
        feed = {
            "token_ids": _value(token_ids),
            "parents": _value(parents),
            "num_candidates": _value(np.array([num_candidates])),
            **state,
        }
        names = [*self._predictions, *self._cache]
        logits, log_probabilities, ids, *cache = self._decoder.run_with_ort_values(names, feed)
        past = {f"past_{name}": value for name, value in zip(self._cache, cache, strict=True)}
        return Step(log_probabilities.numpy(), ids.numpy(), logits, {**state, **past})


class OnnxTranslator:
    """Translates lists of sentences by beam search, as `keras_transformer.Translator` does.

    Example:

    >>> OnnxTranslator("runs/quickstart/onnx").translate(["twenty-six"])

    Args:
        directory: A folder written by `export_onnx`.
        beam_size: Number of beams per sentence. 1 means greedy search. Defaults to the exported
            value.
        length_penalty: Exponent alpha of the length penalty ((5 + n) / 6) ** alpha for n tokens (Wu
            et al. 2016), at least 0. Defaults to the exported value.
        max_length: Maximum number of tokens of a translation, including eos. The largest allowed
            value is `max_length` in `config.json`. Defaults to the exported value. If the exported
            value is None, a translation can have 50 tokens more than the source.
        tokens_per_batch: Maximum number of source tokens in a batch, including padding, at least 1.
            Defaults to 1024.
        num_threads: Number of threads per operation, at most 1024. Defaults to 0, which means one
            thread per core.

    Raises:
        OSError: If the folder does not exist.
        ValueError: If an option is out of range.
    """

    def __init__(
        self,
        directory: str | Path,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        tokens_per_batch: int = 1024,
        num_threads: int = 0,
    ) -> None:
        self.model = OnnxModel(directory, num_threads)
        config = self.model.config
        self.beam_size = config["beam_size"] if beam_size is None else beam_size
        self.length_penalty = config["length_penalty"] if length_penalty is None else length_penalty
        self.max_length = config.get("search_max_length") if max_length is None else max_length
        self.tokens_per_batch = tokens_per_batch
        self._check()
        self._source, self._target = (
            sentencepiece.SentencePieceProcessor(
                model_file=str(Path(directory) / "tokenizer" / config[f"{side}_tokenizer"])
            )
            for side in ("source", "target")
        )

    def _check(self) -> None:
        size, longest = (self.model.config[x] for x in ("target_vocabulary_size", "max_length"))
        is_fitting = self.max_length is None or 1 <= self.max_length <= longest
        for name, is_valid, rule in (
            ("beam_size", 1 <= 2 * self.beam_size <= size, f"from 1 to half of the {size} tokens"),
            ("length_penalty", 0 <= self.length_penalty <= 10, "from 0 to 10"),
            ("max_length", is_fitting, f"from 1 to the model's {longest}"),
            ("tokens_per_batch", self.tokens_per_batch >= 1, "at least 1"),
        ):
            if not is_valid:
                received = f"{name}={getattr(self, name)}"
                raise ValueError(f"`{name}` must be {rule}. Received: {received}")

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """Returns the best translation of each sentence.

        The translation of a blank sentence is "". A sentence with more tokens than the model
        supports is truncated with a warning.

        Raises:
            TypeError: If `sentences` is a single string.
        """
        return [text for text, _ in self.translate_with_scores(sentences)]

    def translate_with_scores(self, sentences: Sequence[str]) -> list[tuple[str, float]]:
        """Returns the best translation of each sentence and its score."""
        if isinstance(sentences, str):
            raise TypeError(f"`sentences` must be a list of strings. Received: {sentences!r:.200}")
        eos_id, longest = self.model.config["eos_id"], self.model.config["max_length"]
        pieces = self._source.encode([sentence.strip() for sentence in sentences])
        for sentence, ids in zip(sentences, pieces, strict=True):
            if len(ids) >= longest:
                warnings.warn(
                    f"Only the first {longest - 1:,} of {len(ids):,} pieces of "
                    f"{sentence[:40]!r}... are translated.",
                    stacklevel=3,
                )
        found = self.search([[*ids[: longest - 1], eos_id] for ids in pieces if ids])
        texts = self._target.decode([[id for id in one.ids if id != eos_id] for one in found])
        results = zip(texts, (one.score for one in found), strict=True)
        return [next(results) if ids else ("", 0.0) for ids in pieces]

    def search(self, sources: Sequence[Sequence[int]]) -> list[Translation]:
        """Translates sources given as token ids. Each source ends with eos.

        A source must not have more tokens than `max_length` in `config.json`.
        """
        found: dict[int, Translation] = {}
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        while order:  # sources of similar length form a batch; the longest sources are first
            rows = max(1, self.tokens_per_batch // len(sources[order[0]]))
            indices, order = order[:rows], order[rows:]
            batch = [sources[index] for index in indices]
            limits = np.array([self._limit(len(source)) for source in batch])
            results = self._beam_search(_padded(batch, self.model.config["pad_id"]), limits)
            found.update(zip(indices, results, strict=True))
        return [found[index] for index in range(len(sources))]

    def _limit(self, source_length: int) -> int:
        config = self.model.config
        return self.max_length or min(source_length + config["extra_length"], config["max_length"])

    def _beam_search(self, source_ids: np.ndarray, limits: np.ndarray) -> list[Translation]:
        """Returns the best hypothesis of each source, as `keras_transformer.search` does.

        `source_ids` is int64 `(B, S)`. `limits` `(B,)` is the maximum length of each translation.
        """
        config, beams, batch = self.model.config, self.beam_size, len(source_ids)
        shape = (batch, beams, 1 + int(limits.max()))
        ids = np.full(shape, config["pad_id"])  # unfinished hypotheses, bos first
        ids[:, :, 0] = config["bos_id"]
        totals = np.full((batch, beams), -np.inf, "float32")  # log-probabilities of `ids`
        totals[:, 0] = 0.0  # starts with one empty hypothesis
        parents = np.zeros((batch, beams), "int64")
        best = _Best(batch, shape[-1], config["pad_id"])
        state = self.model.encode(source_ids)
        for length in range(1, shape[-1]):
            step = self.model.step(ids[:, :, length - 1], parents, 2 * beams, state)
            state = step.state
            totals, parents, tokens = _candidates(totals, step, 2 * beams)
            candidates = np.take_along_axis(ids, parents[:, :, None], axis=1)
            candidates[:, :, length] = tokens
            ends = (tokens == config["eos_id"]) | (limits <= length)[:, None]
            best.update(candidates, totals, ends, beams, self._divisor(length))
            chosen, totals = _most_probable(np.where(ends, -np.inf, totals), beams)
            parents = np.take_along_axis(parents, chosen, axis=1)
            ids = np.take_along_axis(candidates, chosen[:, :, None], axis=1)
            is_open = best.can_be_beaten(totals[:, 0] / self._divisor(limits), beams)
            totals[~is_open] = -np.inf
            if not is_open.any():
                break
        return best.translations()

    def _divisor(self, length: Any) -> Any:
        return ((5.0 + np.asarray(length, "float32")) / 6.0) ** np.float32(self.length_penalty)


class _Best:
    """Stores each sentence's best finished hypothesis, and counts the finished hypotheses."""

    def __init__(self, batch: int, length: int, pad_id: int) -> None:
        self._pad_id = pad_id
        self._ids = np.full((batch, length), pad_id)
        self._scores = np.full(batch, -np.inf, "float32")
        self._counts = np.zeros(batch, "int64")

    def update(
        self, candidates: np.ndarray, totals: np.ndarray, ends: np.ndarray, beams: int, divisor: Any
    ) -> None:
        """Counts the finished hypotheses of each sentence, and keeps the best finished hypothesis.

        Uses only the first `beams` candidates of each sentence.
        """
        scores = np.where(ends, totals, -np.inf)[:, :beams] / divisor
        self._counts += np.sum(scores > -np.inf, axis=-1)
        chosen = np.argmax(scores, axis=-1)
        rows = np.flatnonzero(scores.max(axis=-1) > self._scores)
        self._ids[rows] = candidates[rows, chosen[rows]]
        self._scores[rows] = scores[rows, chosen[rows]]

    def can_be_beaten(self, bounds: np.ndarray, beams: int) -> np.ndarray:
        """Returns a bool array `(B,)`, True for each sentence whose search must go on.

        The search of a sentence stops if the sentence has `beams` finished hypotheses. It also
        stops if no unfinished hypothesis can reach a higher score than the best finished
        hypothesis. `bounds` `(B,)` is the highest score that an unfinished hypothesis of each
        sentence can reach.
        """
        return (bounds > self._scores) & (self._counts < beams)

    def translations(self) -> list[Translation]:
        ids = [[id for id in row[1:].tolist() if id != self._pad_id] for row in self._ids]
        return [Translation(*one) for one in zip(ids, self._scores.tolist(), strict=True)]


def _candidates(
    totals: np.ndarray, step: Step, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the log-probabilities, parents and last tokens of the `count` best continuations.

    Each result has the shape `(B, count)`.
    """
    batch, _, per_beam = step.ids.shape
    all_totals = (totals[:, :, None] + step.log_probabilities).reshape(batch, -1)
    order, totals = _most_probable(all_totals, count)
    return totals, order // per_beam, np.take_along_axis(step.ids.reshape(batch, -1), order, axis=1)


def _most_probable(totals: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices and values of the `count` largest numbers in each row, largest first.

    Equal numbers keep their order.
    """
    order = np.argsort(-totals, axis=-1, kind="stable")[:, :count]
    return order, np.take_along_axis(totals, order, axis=-1)


def _padded(sources: Sequence[Sequence[int]], pad_id: int) -> np.ndarray:
    ids = np.full((len(sources), max(map(len, sources))), pad_id)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source)] = source
    return ids


def _value(array: np.ndarray) -> Any:
    """Converts an array to an `OrtValue`. Integers become int64."""
    array = array if array.dtype == np.float32 else array.astype("int64")
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Translate FILE or standard input, one sentence per line."
    )
    parser.add_argument("file", nargs="?", metavar="FILE")
    parser.add_argument(
        "--model",
        default=Path(__file__).parent,
        help="folder of the exported model; default: the folder of this file",
    )
    parser.add_argument("--beam-size", type=int, help="default: the exported beam size")
    parser.add_argument("--length-penalty", type=float, help="default: the exported length penalty")
    parser.add_argument(
        "--max-length",
        type=int,
        help="maximum tokens of a translation; default: the exported value, or source length plus "
        "50 if none was exported",
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="number of threads; default: 0, one per core"
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Translates a file or standard input, and prints one line for each line of input."""
    arguments = _arguments(words)
    try:
        search = arguments.beam_size, arguments.length_penalty, arguments.max_length
        translator = OnnxTranslator(arguments.model, *search, num_threads=arguments.threads)
        for lines in _chunks(arguments.file):
            for translation in translator.translate(lines):
                line = translation.replace("\n", " ").replace("\r", " ")
                sys.stdout.buffer.write(f"{line}\n".encode())
            sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        sys.exit(f"Error: {error}")


def _chunks(path: str | None) -> Iterator[list[str]]:
    """Yields lists of at most `LINES` lines.

    If a line is invalid, first yields all lines before this line, then raises ValueError.
    """
    chunk: list[str] = []
    try:
        for line in _lines(path):
            chunk.append(line)
            if len(chunk) == LINES:
                yield chunk
                chunk = []
    except ValueError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _lines(path: str | None) -> Iterator[str]:
    r"""Yields the lines of a UTF-8 file or of standard input. Both may be gzipped.

    A byte order mark is removed. Only "\n" and "\r\n" end a line. A single "\r" and the other line
    separators of Unicode belong to the text.

    Raises:
        ValueError: If a line is not UTF-8 or is too long, or the gzip file is damaged.
    """
    name, number = path or "standard input", 0
    source: Any = open(path, "rb") if path else sys.stdin.buffer
    with source as file:
        is_gzip = file.peek(2)[:2] == b"\x1f\x8b"
        try:
            unpacked = gzip.open(file) if is_gzip else file
            for number in itertools.count(1):
                line = unpacked.readline(LONGEST_LINE + 1)
                if len(line) > LONGEST_LINE:
                    rule = f"a line must have at most {LONGEST_LINE:,} bytes"
                    raise ValueError(f"{name}, line {number:,}: {rule}. Received: a longer line")
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if not line:
                    return
                yield line.removesuffix(b"\r\n").removesuffix(b"\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number:,}: text must be UTF-8. "
                f"Received: byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
            ) from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{name}, after line {number - 1:,}: damaged gzip file: {error}"
            ) from None


if __name__ == "__main__":
    main()
