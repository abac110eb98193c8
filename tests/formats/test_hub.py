"""A pushed run has a model card, and comes back from the hub."""

import json
import shutil
from unittest.mock import create_autospec

import pytest
import yaml
from support.foreign_models import hugging_face_folder

from keras_transformer import Run, UserError, import_run
from keras_transformer.formats.hub import model_card, push_to_hub


@pytest.fixture
def run(tmp_path):
    run = import_run(hugging_face_folder(tmp_path / "model"), tmp_path / "run")
    score = {"split": "test", "metric": "BLEU", "score": 12.345, "signature": "nrefs:1"}
    other = {**score, "score": 2.0, "checkpoint_sha256": "of an older model"}
    score |= run.scores.scored_model(None)
    run.scores_path.write_text(json.dumps([{**score, "score": 1.0}, score, other]))
    return run


def test_a_pushed_run_comes_back_with_its_card(run, tmp_path, monkeypatch):
    """Of the hub's own functions, only the names of their arguments are checked."""
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is an optional dependency")
    url, pushed = hub.RepoUrl("https://huggingface.co/me/mine"), []
    created = create_autospec(hub.create_repo, return_value=url)
    monkeypatch.setattr(hub, "create_repo", created)

    def upload(*, folder_path, **_):
        pushed.append(shutil.copytree(folder_path, tmp_path / f"pushed{len(pushed)}"))

    uploaded = create_autospec(hub.upload_folder, side_effect=upload)
    monkeypatch.setattr(hub, "upload_folder", uploaded)
    assert push_to_hub(run, "me/mine") == push_to_hub(run, "me/mine", "run", private=True) == url
    assert [x.kwargs["private"] for x in created.call_args_list] == [None, True]
    assert {x.kwargs["repo_id"] for x in uploaded.call_args_list} == {"me/mine"}
    for folder, format in zip(pushed, ("hugging_face", "run"), strict=True):
        assert (folder / "README.md").read_text("utf-8") == model_card(run, "me/mine", format)
    back = import_run(pushed[0], tmp_path / "again")
    assert json.loads(back.origin_path.read_text())["licence"] == "cc-by-4.0"
    for other in (back, Run.open(pushed[1])):
        assert other.tokenizer().files == run.tokenizer().files
    uploaded.side_effect = OSError("403\n  Forbidden")
    with pytest.raises(UserError, match="^me/mine cannot be uploaded: OSError: 403 Forbidden$"):
        push_to_hub(run, "me/mine", "run")


def test_a_card_has_the_recipe_the_newest_scores_and_the_licence(run):
    _, head, text = model_card(run, "me/mine", "run", "mit").split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert (metadata["language"], metadata["license"]) == (["en", "de"], "mit")
    assert "| BLEU | test | 12.35 | `nrefs:1` |" in text
    assert "1.00" not in text and "2.00" not in text
    assert yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])["name"] == "run"
    run.scores_path.unlink()
    run.origin_path.unlink()
    plain = model_card(run, "me/mine", "hugging_face")
    assert "license" not in plain.partition("## Use")[0] and "## Scores" not in plain
