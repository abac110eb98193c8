"""The scores of a run, and the translations that were scored."""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer._files import read_entries, read_text, sha256_of, write_json, write_text
from keras_transformer.data.text_files import read_lines
from keras_transformer.errors import UserError
from keras_transformer.runs.text import Split

if TYPE_CHECKING:
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.runs.run import Run


class RunScores:
    """Reads and writes `scores.json` and the folder `hypotheses` of a run."""

    def __init__(self, run: "Run") -> None:
        self._run = run

    def entries(self) -> list[dict[str, Any]]:
        """Returns all entries of scores.json, oldest first. `UserError` if it is damaged."""
        return read_entries(self._run.scores_path)

    def add(
        self,
        *,
        split: Split,
        options: "SearchOptions",
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
        with self._run.writing():
            write_json(self._run.scores_path, [*self.entries(), entry])
        return entry

    def scored_model(self, checkpoint: Path | None) -> dict[str, str]:
        """Returns what identifies a model in scores.json: its hash, and the name of a checkpoint.

        `checkpoint` is a folder, or None for `model.keras`.
        """
        folder = checkpoint or self._run.directory
        found = {"checkpoint_sha256": sha256_of(folder / "model.keras")}
        return {"checkpoint": checkpoint.name, **found} if checkpoint else found

    def hypotheses(self, split: Split) -> list[str]:
        """Returns the translations of the finished model that the last evaluation of a split wrote.

        Raises `UserError` if there are none, or if model or source text have changed since.
        """
        run = self._run
        if not run.model_path.exists():
            raise run.unfinished()
        path = self._hypotheses_path(split, scored := self.scored_model(None))
        sources = (source for source, _ in run.text.pairs(split, tagged=False))
        hashes = self._hashes(scored, sources)
        if not path.exists() or read_text(path.with_suffix(".sha256")) != hashes:
            raise UserError(
                f"no translations {path} of {run.model_path} and of the {split} text. To make "
                f"them: {run.command('evaluate', f'--split {split}')}"
            )
        return list(read_lines(path))

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
        path = self._hypotheses_path(split, scored)
        with self._run.writing():
            write_text(path, "".join(f"{line}\n" for line in hypotheses))
            write_text(path.with_suffix(".sha256"), self._hashes(scored, sources))

    def _hypotheses_path(self, split: Split, scored: dict[str, str]) -> Path:
        name = f"{split}.{scored['checkpoint']}" if "checkpoint" in scored else split
        return self._run.hypotheses_dir / f"{name}.txt"

    @staticmethod
    def _hashes(scored: dict[str, str], sources: Iterable[str]) -> str:
        lines = "".join(f"{line}\n" for line in sources)
        return f"{scored['checkpoint_sha256']}\n{hashlib.sha256(lines.encode()).hexdigest()}"
