"""The scores of a run, and the translations that were scored."""

import hashlib
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer._files import atomic_write, read_entries, read_text, sha256_of
from keras_transformer.data.corpus import read_lines
from keras_transformer.errors import UserError
from keras_transformer.runs.text import Split

if TYPE_CHECKING:
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.runs.run import Run


class RunScores:
    """Reads and writes `scores.json` and the folder `hypotheses` of a run.

    Args:
        run: The run.
    """

    def __init__(self, run: "Run") -> None:
        self._run = run

    def entries(self) -> list[dict[str, Any]]:
        """Returns all entries of scores.json, oldest first. `UserError` if it is damaged."""
        return read_entries(self._run.scores_path)

    def add(
        self,
        *,
        split: Split,
        metric: str,
        score: float,
        signature: str,
        options: "SearchOptions",
        use_shortlist: bool = False,
        files: tuple[Path, Path] | None = None,
        scored: dict[str, str] | None = None,
    ) -> None:
        """Appends a score to scores.json.

        `files` are the source and reference file, if the text is not that of `split`. `scored` is
        the result of `scored_model` for a checkpoint. Defaults to None, which means `model.keras`.
        """
        text: dict[str, str] = {"split": split}
        if files is not None:
            text = {"source": str(files[0].resolve()), "reference": str(files[1].resolve())}
        entry = {
            **text,
            "metric": metric,
            "score": score,
            "signature": signature,
            **(scored or self.scored_model(None)),
            "beam_size": options.beam_size,
            "length_penalty": options.length_penalty,
            **options.model_dump(exclude_defaults=True),
            **({"shortlist": True} if use_shortlist else {}),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with self._run.writing(), atomic_write(self._run.scores_path) as partial:
            partial.write_text(json.dumps([*self.entries(), entry], indent=2) + "\n", "utf-8")

    def scored_model(self, checkpoint: Path | None) -> dict[str, str]:
        """Returns what identifies a model in scores.json: its hash, and the name of a checkpoint.

        `checkpoint` is a folder, or None for `model.keras`.
        """
        folder, name = (checkpoint, checkpoint.name) if checkpoint else (self._run.directory, "")
        found = {"checkpoint_sha256": sha256_of(folder / self._run.model_path.name)}
        return {"checkpoint": name, **found} if name else found

    def hypotheses(self, split: Split) -> list[str]:
        """Returns the translations of the finished model that the last evaluation of a split wrote.

        Raises:
            UserError: If the finished model has not translated the split, if the source text of the
                split has changed, or if a file cannot be read.
        """
        if not self._run.model_path.exists():
            raise UserError(
                f"no translations of {self._run.model_path}, because the training has not "
                f"finished. {self._run.how_to_finish()}"
            )
        path = self._hypotheses_path(split, None)
        evaluate = self._run.command("evaluate", f"--split {split}")
        if not path.exists():
            raise UserError(f"no translations {path}. To make them: {evaluate}")
        found = self.scored_model(None)
        kept = read_text(path.with_suffix(".sha256")).partition("\n")
        if kept[0] != found.get("checkpoint_sha256"):
            raise UserError(
                f"{path} has translations of another model than {self._run.model_path}. "
                f"To make them again: {evaluate}"
            )
        if kept[2] != _sha256_of_lines(source for source, _ in self._run.text.pairs(split)):
            raise UserError(
                f"{path} has translations of another text than the {split} text. To make them "
                f"again: {evaluate}"
            )
        return list(read_lines(path))

    def keep_hypotheses(
        self,
        split: Split,
        sources: Iterable[str],
        hypotheses: Iterable[str],
        scored: dict[str, str],
        checkpoint: Path | None = None,
    ) -> None:
        """Writes the translations of a split, one per line, and the hashes of model and sources.

        `checkpoint` is the folder of the checkpoint that translated, or None for `model.keras`.
        `scored` is the result of `scored_model` for it.
        """
        path = self._hypotheses_path(split, checkpoint)
        of_both = path.with_suffix(".sha256")
        with self._run.writing():
            with atomic_write(path) as partial:
                partial.write_text("".join(f"{line}\n" for line in hypotheses), "utf-8")
                of_both.unlink(missing_ok=True)  # not before, on a full disk
            with atomic_write(of_both) as partial:
                hashes = f"{scored['checkpoint_sha256']}\n{_sha256_of_lines(sources)}"
                partial.write_text(hashes, "utf-8")

    def _hypotheses_path(self, split: Split, checkpoint: Path | None) -> Path:
        name = f"{split}.{checkpoint.name}" if checkpoint else split
        return self._run.hypotheses_dir / f"{name}.txt"

    def check(self) -> None:
        """Raises `UserError` if scores.json is damaged, or if it or hypotheses/ is not writable."""
        self.entries()
        for folder in (self._run.directory, self._run.hypotheses_dir):
            if folder.exists() and not os.access(folder, os.W_OK):
                raise UserError(f"{folder} is read-only, so the results cannot be written")


def _sha256_of_lines(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()
