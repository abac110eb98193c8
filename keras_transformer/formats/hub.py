"""Uploads runs to the Hugging Face hub, with a model card made of the recipe and the scores."""

import tempfile
from pathlib import Path
from typing import Literal

import jinja2
import yaml

from keras_transformer._files import read_json
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError, imported
from keras_transformer.formats.model_files import PREFIX
from keras_transformer.formats.run_export import ExportOptions, export_run
from keras_transformer.formats.run_folder import current_scores, without_folders
from keras_transformer.runs.run import Run, opened_runs


def push_to_hub(
    run: Run | str | Path,
    name: str,
    format: Literal["hugging_face", "run"] = "hugging_face",
    *,
    search: SearchOptions | None = None,
    private: bool = False,
    licence: str | None = None,
) -> str:
    """Exports a run, uploads the export with a model card, and returns its address.

    You need the extra `hub`, and a token: `hf auth login`, or the environment variable `HF_TOKEN`.

    Example:

    >>> push_to_hub("runs/quickstart", "me/quickstart", licence="apache-2.0")

    Args:
        run: The run, its folder or its name.
        name: Organization or user, and name on the hub. What is there already gets a new commit.
        format: `"hugging_face"`, which transformers and `import_run` read, or `"run"`.
        search: The search options of the export for transformers, such as `length_penalty=0`.
            Defaults to those of the recipe.
        private: Whether a new repository is private. Defaults to False.
        licence: Identifier of the hub, such as "apache-2.0". Defaults to that of the model that the
            run was imported from.

    Raises:
        UserError: If the export is refused, see `export_run`, or the hub refuses it.
    """
    hub = imported("huggingface_hub", "hub", "uploading needs")
    (run,) = opened_runs(run)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "export")
        export_run(run, ExportOptions(format=format, output=folder, search=search))
        (folder / "README.md").write_text(model_card(run, name, format, licence), "utf-8")
        try:
            url = hub.create_repo(name, private=private or None, exist_ok=True)
            hub.upload_folder(repo_id=url.repo_id, folder_path=folder)
        except Exception as error:  # Its HTTP client, which changes, has errors of its own.
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"{name} cannot be uploaded: {type(error).__name__}: {reason}"
            ) from error
    return str(url)


def model_card(run: Run, name: str, format: str, licence: str | None = None) -> str:
    """Returns the README.md of a run on the hub. The arguments are those of `push_to_hub`."""
    origin = read_json(run.origin_path) if run.origin_path.is_file() else {}
    source = str(origin.get("source", ""))
    source = source if source.startswith(PREFIX) else Path(source).name
    data = run.recipe.data
    metadata = {
        "language": [data.source_language, data.target_language],
        "license": licence or origin.get("licence"),
        "library_name": "transformers" if format == "hugging_face" else "keras",
        "pipeline_tag": "translation",
        "tags": ["translation", "keras_transformer"],
    }
    newest = {(x["metric"], x["split"]): x for x in current_scores(run)}
    text = Path(__file__).with_name("model_card.md").read_text("utf-8")
    return jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        metadata=yaml.safe_dump({x: y for x, y in metadata.items() if y}, sort_keys=False),
        name=name,
        format=format,
        recipe=run.recipe,
        source=source,
        scores=[*newest.values()],
        settings=without_folders(run.recipe).to_yaml().strip(),
    )
