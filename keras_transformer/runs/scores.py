"""The scores of a run, and the translations that were scored."""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keras_transformer._files import read_entries, read_text, sha256_of, write_json, write_text
from keras_transformer.data.text_files import read_lines
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.runs.folder import run_command, writing_lock
from keras_transformer.runs.text import RunText, Split


class RunScores:
    """Reads and writes `scores.json` and the folder `hypotheses` of a run."""

    def __init__(self, directory: Path, text: RunText) -> None:
        self._directory, self._text = directory, text
        self._scores_path, self._model_path = directory / "scores.json", directory / "model.keras"

    def entries(self) -> list[dict[str, Any]]:
        """Returns all entries of scores.json, oldest first. `UserError` if it is damaged."""
        return read_entries(self._scores_path)

    def add(
        self,
        *,
        split: Split,
        options: SearchOptions,
        use_shortlist: bool = False,
        files: tuple[Path, Path] | None = None,
        scored: dict[str, str] | None = None,
        **score: Any,
    ) -> dict[str, Any]:
        """Appends a score to scores.json. Returns the new entry.

        `score` has `metric`, `score` and `signature`. `files` are the source and reference file, if
        the text is not that of `split`. `scored` is the result of `scored_model` for a checkpoint.
        """
        paths = [str(file.resolve()) for file in files or ()]
        text = dict(zip(("source", "reference"), paths, strict=True)) if files else {"split": split}
        entry = {
            **text,
            **score,
            **(scored or self.scored_model(None)),
            "beam_size": options.beam_size,
            "length_penalty": options.length_penalty,
            **options.model_dump(exclude_defaults=True),
            **({"shortlist": True} if use_shortlist else {}),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with writing_lock(self._directory):
            write_json(self._scores_path, [*self.entries(), entry])
        return entry

    def scored_model(self, checkpoint: Path | None) -> dict[str, str]:
        """Returns what identifies a model in scores.json: its hash, and the name of a checkpoint.

        `checkpoint` is a folder, or None for `model.keras`.
        """
        folder = checkpoint or self._directory
        found = {"checkpoint_sha256": sha256_of(folder / "model.keras")}
        return {"checkpoint": checkpoint.name, **found} if checkpoint else found

    def hypotheses(self, split: Split) -> list[str]:
        """Returns the translations of the finished model that the last evaluation of a split wrote.

        Raises `UserError` if there are none, or if model or source text have changed since.
        """
        path = self._directory / "hypotheses" / f"{split}.txt"
        if not (path.exists() and self._model_path.exists() and self._is_current(split, path)):
            name = self._text.recipe.model.architecture
            command = run_command(self._directory, name, "evaluate", f"--split {split}")
            raise UserError(
                f"no translations {path} of {self._model_path} and of the {split} text. To make "
                f"them: {command}"
            )
        return list(read_lines(path))

    def _is_current(self, split: Split, path: Path) -> bool:
        sources = (source for source, _ in self._text.pairs(split, tagged=False))
        hashes = self._hashes(self.scored_model(None), sources)
        return read_text(path.with_suffix(".sha256")) == hashes

    def keep_hypotheses(
        self,
        split: Split,
        sources: Iterable[str],
        hypotheses: Iterable[str],
        scored: dict[str, str],
    ) -> None:
        """Writes the translations of a split, one per line, and the hashes of model and sources.

        `scored` is the result of `scored_model` for the model that translated.
        """
        name = f"{split}.{scored['checkpoint']}" if "checkpoint" in scored else split
        path = self._directory / "hypotheses" / f"{name}.txt"
        with writing_lock(self._directory):
            write_text(path, "".join(f"{line}\n" for line in hypotheses))
            write_text(path.with_suffix(".sha256"), self._hashes(scored, sources))

    @staticmethod
    def _hashes(scored: dict[str, str], sources: Iterable[str]) -> str:
        lines = "".join(f"{line}\n" for line in sources)
        return f"{scored['checkpoint_sha256']}\n{hashlib.sha256(lines.encode()).hexdigest()}"
