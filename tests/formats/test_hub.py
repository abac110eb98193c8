"""A pushed run has a model card, and comes back from the hub."""

import base64
import json
import sys

import pytest
import yaml
from support.command_line import run_python
from support.foreign_models import hugging_face_folder
from support.local_server import answer, local_server

from keras_transformer import Run, UserError, import_run
from keras_transformer.formats import push_to_hub
from keras_transformer.formats.hub import model_card

CLIENT = """
from keras_transformer import UserError
from keras_transformer.formats import push_to_hub
try:
    print(push_to_hub("run", "me/mine", "{format}"))
except UserError as error:
    print("refused:", error)
"""


@pytest.fixture
def run(tmp_path):
    run = import_run(hugging_face_folder(tmp_path / "model"), tmp_path / "run")
    score = {"split": "test", "metric": "BLEU", "score": 12.345, "signature": "nrefs:1"}
    run.scores_path.write_text(json.dumps([{**score, "score": 1.0}, score]))
    return run


def hub_answers(files, refuses=False):
    """A hub that keeps the files of a commit."""

    def body(handler):
        return handler.rfile.read(int(handler.headers["Content-Length"]))

    def created(handler):
        reply = {"url": f"http://{handler.headers['Host']}/me/mine", "name": "me/mine"}
        body(handler)
        answer(json.dumps(reply).encode(), 403 if refuses else 200)(handler)

    def preupload(handler):
        names = [x["path"] for x in json.loads(body(handler))["files"]]
        modes = [{"path": x, "uploadMode": "regular", "shouldIgnore": False} for x in names]
        answer(json.dumps({"files": modes}).encode())(handler)

    def commit(handler):
        for line in body(handler).splitlines():
            if (entry := json.loads(line))["key"] == "file":
                files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        reply = {"commitUrl": "http://hub/me/mine/commit/0", "commitOid": "0" * 40}
        answer(json.dumps(reply).encode())(handler)

    def valid(handler):
        body(handler)
        answer(b"{}")(handler)

    return {
        "/api/repos/create": created,
        "/api/validate-yaml": valid,
        "/api/models/me/mine/preupload/main": preupload,
        "/api/models/me/mine/commit/main": commit,
    }


@pytest.mark.parametrize("format", ["hugging_face", "run"])
def test_a_pushed_run_comes_back_with_its_card(format, run, tmp_path):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is an optional dependency")
    files: dict[str, bytes] = {}
    code = CLIENT.replace("{format}", format)
    with local_server() as server:
        environment = {
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN": "hf_x",
        }
        server.answers = hub_answers(files)
        assert run_python(code, cwd=tmp_path, **environment) == f"{server.url}/me/mine"
        server.answers = hub_answers({}, refuses=True)
        assert "refused: me/mine cannot be uploaded" in run_python(
            code, cwd=tmp_path, **environment
        )
    for name, content in files.items():
        (tmp_path / "back" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "back" / name).write_bytes(content)
    if format == "hugging_face":
        back = import_run(tmp_path / "back", tmp_path / "again")
        assert json.loads(back.origin_path.read_text())["licence"] == "cc-by-4.0"
    else:
        back = Run.open(tmp_path / "back")
    assert back.tokenizer().files == run.tokenizer().files
    assert files["README.md"].decode() == model_card(run, "me/mine", format)


def test_a_card_has_the_recipe_the_newest_scores_and_the_licence(run):
    _, head, text = model_card(run, "me/mine", "run", "mit").split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert (metadata["language"], metadata["license"]) == (["en", "de"], "mit")
    assert "| BLEU | test | 12.35 | `nrefs:1` |" in text and "1.00" not in text
    assert yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])["name"] == "run"
    run.scores_path.unlink()
    run.origin_path.unlink()
    plain = model_card(run, "me/mine", "hugging_face")
    assert "license" not in plain.partition("## Use")[0] and "## Scores" not in plain


def test_the_hub_needs_its_package(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"keras3-transformer\[hub\]"):
        push_to_hub(run, "me/mine")
