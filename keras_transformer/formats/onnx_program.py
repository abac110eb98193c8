"""Translates with an exported ONNX model, and needs only NumPy, onnxruntime and sentencepiece.

`export_onnx` copies this file to its output folder, as `translate.py`. Example of use:

    pip install numpy onnxruntime sentencepiece
    python FOLDER/translate.py < in.txt > out.txt

This file imports no module of keras_transformer, so `translate.py` runs without that package.
"""

import argparse
import io
import itertools
import json
import sys
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import sentencepiece

LINES = 1024  # maximum number of lines that the command translates together


class OnnxModel:
    """Runs the exported encoder and decoder.

    Example:

    >>> model = OnnxModel("exports/quickstart/onnx")
    >>> state = model.encode(np.array([[17, 25, 3]]))
    >>> outputs = ["candidate_ids", "candidate_log_probabilities"]
    >>> (ids, _), state = model.step(np.array([[2]]), np.array([[0]]), state, outputs, 1)
    >>> ids[0, 0, 0]  # the most probable first token

    Args:
        directory: A folder written by `export_onnx`.
        num_threads: Number of threads per operation. Defaults to 0, which means one per core.
    """

    def __init__(self, directory: str | Path, num_threads: int = 0) -> None:
        self.config = json.loads(Path(directory, "config.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        # Busy waiting (spinning) slows down other threads on the same cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(Path(directory, name), options, ["CPUExecutionProvider"])
            for name in ("encoder.onnx", "step.onnx")
        )
        self._memory = [output.name for output in self._encoder.get_outputs()]
        shapes = {x.name: x.shape for x in self._decoder.get_inputs()}
        # The axes of a cached tensor are sentences, hypotheses, heads, tokens and features.
        self._sizes = {name: x[2::2] for name, x in shapes.items() if name.startswith("past_")}

    def encode(self, source_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the state for the first decoder step, for pieces and eos `(B, S)`, padded.

        The state contains the keys and values of the source, and an empty cache.
        """
        memory = self._encoder.run(self._memory, {"source_ids": source_ids.astype("int64")})
        past = {
            name: np.zeros((len(source_ids), 1, heads, 0, width), "float32")
            for name, (heads, width) in self._sizes.items()
        }
        return {**dict(zip(self._memory, memory, strict=True)), **past}

    def step(
        self,
        token_ids: np.ndarray,
        parents: np.ndarray,
        state: dict[str, np.ndarray],
        outputs: Sequence[str],
        num_candidates: int = 1,
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Predicts the next token of each hypothesis.

        Args:
            token_ids: int `(B, N)`, the newest token of each hypothesis, bos in the first step.
            parents: int `(B, N)`, the index of each hypothesis's parent among the hypotheses of the
                previous step, 0 in the first step.
            state: The result of `encode`, or the state that the previous step returned.
            outputs: Names of outputs of `step.onnx`, such as "logits".
            num_candidates: Number C of next tokens for each hypothesis, at most V. Defaults to 1.

        Returns:
            The values of `outputs`, and the state for the next step.
        """
        numbers = {"token_ids": token_ids, "parents": parents, "num_candidates": [num_candidates]}
        feed = {**state, **{name: np.asarray(x, "int64") for name, x in numbers.items()}}
        cache = [name.removeprefix("past_") for name in self._sizes]
        found = self._decoder.run([*outputs, *cache], feed)
        past = dict(zip(self._sizes, found[len(outputs) :], strict=True))
        return found[: len(outputs)], {**state, **past}


class StandaloneTranslator:
    """Translates lists of sentences by beam search, as `keras_transformer.Translator` does.

    The arguments are the options of the program, and the maximum number of source tokens in a
    batch. Raises `OSError` if the folder does not exist, `ValueError` if an option is out of range.
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
        self.max_length = config["search_max_length"] if max_length is None else max_length
        self.tokens_per_batch = tokens_per_batch
        for name, lowest, highest in (
            ("beam_size", 1, config["target_vocabulary_size"] // 2),
            ("length_penalty", 0, 10),
            ("max_length", 1, config["max_length"]),
        ):
            value = getattr(self, name)
            if value is not None and not lowest <= value <= highest:
                raise ValueError(f"`{name}` must be from {lowest} to {highest}. Received: {value}")
        paths = (
            Path(directory, "tokenizer", config[f"{x}_tokenizer"]) for x in ("source", "target")
        )
        self._source, self._target = (
            sentencepiece.SentencePieceProcessor(model_file=str(path)) for path in paths
        )

    def translate(self, sentences: Sequence[str]) -> list[tuple[str, float]]:
        """Returns the best translation of each sentence, and its score.

        The translation of a blank sentence is "". A sentence without a known word is copied, and
        one with more tokens than the model supports is truncated, with a warning.
        """
        config = self.model.config
        before, after = config["source_prefix_ids"], [config["eos_id"]] * config["source_eos"]
        seen = ["" if self._is_invisible(sentence) else sentence for sentence in sentences]
        split = [self._split(sentence.strip()) for sentence in seen]
        pieces = self._source.encode([text for _, text in split])
        sources = []
        for (tag, text), ids in zip(split, pieces, strict=True):
            is_known = {*tag} & {*config["tag_ids"].values()}  # It replaces the prefix.
            start = tag if is_known else [*before, *tag]
            most = config["max_length"] - len(start) - len(after)
            if len(ids) > most:
                message = f"Only {most:,} of {len(ids):,} pieces are translated: {text[:40]!r}..."
                warnings.warn(message, stacklevel=2)
            sources.append([*start, *ids[:most], *after])
        found = [("", 0.0)] * len(sources)
        for index, ids in enumerate(pieces):
            words = "".join(self._source.id_to_piece([i for i in ids if i != config["unk_id"]]))
            if config["unk_id"] in ids and not any(map(str.isalnum, words)):
                found[index], pieces[index] = (split[index][1].strip(), 0.0), []
                warnings.warn(f"Copied without translation: {found[index][0][:40]!r}", stacklevel=2)
        order = [index for index, ids in enumerate(pieces) if ids]
        order.sort(key=lambda index: -len(sources[index]))
        while order:
            width = len(sources[order[0]])
            rows = max(1, self.tokens_per_batch // width)
            indices, order = order[:rows], order[rows:]
            source_ids = np.full((len(indices), width), config["pad_id"])
            for row, index in zip(source_ids, indices, strict=True):
                row[: len(sources[index])] = sources[index]
            lengths = np.sum(source_ids != config["pad_id"], axis=1)
            limits = np.minimum(lengths + config["extra_length"], config["max_length"])
            if self.max_length is not None:
                limits[:] = self.max_length
            for index, (ids, score) in zip(indices, self.search(source_ids, limits), strict=True):
                ids = ids[len(config["target_prefix_ids"]) :]
                text = self._target.decode([id for id in ids if id != config["eos_id"]])
                found[index] = text, score
        return found

    def _is_invisible(self, text: str) -> bool:
        kinds, others = ("Cc", "Cf", "Zs", "Zl", "Zp"), self.model.config["invisible"]
        return all(unicodedata.category(x) in kinds or x in others for x in text)

    def _split(self, text: str) -> tuple[list[int], str]:
        """Returns the id of a tag such as ">>fra<<" at the beginning of a text, and the rest."""
        ids, end = self.model.config["tag_ids"], text.find("<<") + 2
        if ids and text.startswith(">>") and end > 1:
            return [ids.get(text[:end], self.model.config["unk_id"])], text[end:]
        return [], text

    def search(self, source_ids: np.ndarray, limits: np.ndarray) -> list[tuple[list[int], float]]:
        """Returns ids and score of the best hypothesis of each source, int `(B, S)`, padded.

        The search of a sentence ends if it has `beam_size` finished hypotheses, or if no unfinished
        hypothesis can reach a higher score. `limits`, int `(B,)`, are the maximum lengths.
        """
        config, beams, batch = self.model.config, self.beam_size, len(source_ids)
        shape = (batch, beams, 1 + int(limits.max()))
        ids = np.full(shape, config["pad_id"])  # of unfinished hypotheses; bos comes first
        ids[:, :, 0] = config["bos_id"]
        totals = np.full(shape[:2], -np.inf, "float32")  # their log-probabilities
        totals[:, 0] = 0.0  # one empty hypothesis
        parents = np.zeros(shape[:2], "int64")
        best_ids, best_scores = ids[:, 0].copy(), np.full(batch, -np.inf, "float32")
        num_finished = np.zeros(batch, "int64")
        state = self.model.encode(source_ids)
        for length, forced in enumerate(config["target_prefix_ids"][: shape[-1] - 1], start=1):
            _, state = self.model.step(ids[:, :, length - 1], parents, state, [])
            ids[:, :, length] = forced
            parents[:] = np.arange(beams)
        for length in range(1 + len(config["target_prefix_ids"]), shape[-1]):
            outputs = ["candidate_log_probabilities", "candidate_ids"]
            newest = ids[:, :, length - 1]
            candidates, state = self.model.step(newest, parents, state, outputs, 2 * beams)
            continued = (totals[:, :, None] + candidates[0]).reshape(batch, -1)
            totals, order = _largest(continued, 2 * beams)  # of which at most `beams` end
            parents = order // (2 * beams)
            tokens = np.take_along_axis(candidates[1].reshape(batch, -1), order, axis=1)
            ids = np.take_along_axis(ids, parents[:, :, None], axis=1)
            ids[:, :, length] = tokens
            ends = (tokens == config["eos_id"]) | (limits <= length)[:, None]
            scores = np.where(ends, totals, -np.inf)[:, :beams] / self._divisor(length)
            num_finished += np.sum(scores > -np.inf, axis=1)
            rows = np.flatnonzero(scores.max(axis=1) > best_scores)
            first = scores.argmax(axis=1)[rows]
            best_ids[rows], best_scores[rows] = ids[rows, first], scores[rows, first]
            totals, chosen = _largest(np.where(ends, -np.inf, totals), beams)
            parents = np.take_along_axis(parents, chosen, axis=1)
            ids = np.take_along_axis(ids, chosen[:, :, None], axis=1)
            is_open = (totals[:, 0] / self._divisor(limits) > best_scores) & (num_finished < beams)
            totals[~is_open] = -np.inf
            if not is_open.any():
                break
        kept = [[id for id in row[1:].tolist() if id != config["pad_id"]] for row in best_ids]
        return list(zip(kept, best_scores.tolist(), strict=True))

    def _divisor(self, length: Any) -> Any:
        base = np.asarray(length, "float32")
        if self.model.config["length_penalty_form"] == "wu":
            base = (5.0 + base) / 6.0
        return base ** np.float32(self.length_penalty)


def _largest(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `count` largest numbers in each row, largest first, and their indices."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(values, order, axis=1), order


def main(words: Sequence[str] | None = None) -> None:
    """Translates a file or standard input, and prints one line for each line of input."""
    parser = argparse.ArgumentParser(
        description="Translate FILE or standard input (UTF-8), one sentence per line."
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE")
    add("--model", default=Path(__file__).parent, help="exported folder; default: this file's")
    add("--beam-size", type=int, help="number of beams; default: the exported one")
    add("--length-penalty", type=float, help="exponent, in the exported form; default: exported")
    add("--max-length", type=int, help="most tokens; default: exported, or source + 50")
    add("--threads", dest="num_threads", type=int, default=0, help="default: 0, one per core")
    options = vars(parser.parse_args(words))
    path = options.pop("file")
    try:
        translator = StandaloneTranslator(options.pop("model"), **options)
        binary = open(path, "rb") if path else sys.stdin.buffer
        # Only "\n" and "\r\n" end a line.
        with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="\n") as file:
            while lines := list(itertools.islice(file, LINES)):
                for text, _ in translator.translate(lines):
                    line = text.replace("\n", " ").replace("\r", " ")
                    sys.stdout.buffer.write(f"{line}\n".encode())
                sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
