"""A pushed run has a model card, and comes back from the hub."""

import base64
import json

import pytest
import yaml
from support.command_line import run_python
from support.foreign_models import hugging_face_folder
from support.local_server import answer, local_server

from keras_transformer import Run, import_run
from keras_transformer.formats.hub import model_card

# Pushes to a hub that accepts two commits.
CLIENT = """
from keras_transformer import UserError
from keras_transformer.formats import push_to_hub
print(push_to_hub("run", "me/mine"))
print(push_to_hub("run", "me/mine", "run", private=True))
try:
    push_to_hub("run", "me/mine", "run")
except UserError as error:
    print(error)
"""


@pytest.fixture
def run(tmp_path):
    run = import_run(hugging_face_folder(tmp_path / "model"), tmp_path / "run")
    score = {"split": "test", "metric": "BLEU", "score": 12.345, "signature": "nrefs:1"}
    other = {**score, "score": 2.0, "checkpoint_sha256": "of an older model"}
    score |= run.scores.scored_model(None)
    run.scores_path.write_text(json.dumps([{**score, "score": 1.0}, score, other]))
    return run


def hub_answers(repositories, commits):
    """A hub that keeps what repositories are asked for, and the files of commits."""

    def reply(handler, content, status=200):
        answer(json.dumps(content).encode(), status)(handler)

    def body(handler):
        return handler.rfile.read(int(handler.headers["Content-Length"]))

    def created(handler):
        repositories.append(json.loads(body(handler)))
        url = f"http://{handler.headers['Host']}/me/mine"
        reply(handler, {"url": url, "name": "me/mine"}, 200 if len(repositories) < 3 else 403)

    def preupload(handler):
        names = [x["path"] for x in json.loads(body(handler))["files"]]
        modes = [{"path": x, "uploadMode": "regular", "shouldIgnore": False} for x in names]
        reply(handler, {"files": modes})

    def commit(handler):
        lines = map(json.loads, body(handler).splitlines())
        files = [line["value"] for line in lines if line["key"] == "file"]
        commits.append({x["path"]: base64.b64decode(x["content"]) for x in files})
        url = f"http://{handler.headers['Host']}/me/mine/commit/{'0' * 40}"
        reply(handler, {"commitUrl": url, "commitOid": "0" * 40})

    def valid(handler):
        body(handler)
        reply(handler, {})

    return {
        "/api/repos/create": created,
        "/api/validate-yaml": valid,
        "/api/models/me/mine/preupload/main": preupload,
        "/api/models/me/mine/commit/main": commit,
    }


@pytest.mark.slow
def test_a_pushed_run_comes_back_with_its_card(run, tmp_path):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is an optional dependency")
    repositories, commits, environment = [], [], {"HF_HOME": str(tmp_path / "home")}
    with local_server() as server:
        server.answers = hub_answers(repositories, commits)
        environment |= {"HF_ENDPOINT": server.url, "HF_TOKEN": "hf_x"}
        *printed, refused = run_python(CLIENT, cwd=tmp_path, **environment).splitlines()
        assert printed == [f"{server.url}/me/mine"] * 2
    assert "me/mine cannot be uploaded: HfHubHTTPError" in refused
    asked = [x.get("visibility") == "private" or bool(x.get("private")) for x in repositories]
    assert asked == [False, True, False]
    for format, files in zip(("hugging_face", "run"), commits, strict=True):
        for name, content in files.items():
            (tmp_path / f"of_{format}" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"of_{format}" / name).write_bytes(content)
        assert files["README.md"].decode() == model_card(run, "me/mine", format)
    back = import_run(tmp_path / "of_hugging_face", tmp_path / "again")
    assert json.loads(back.origin_path.read_text())["licence"] == "cc-by-4.0"
    for other in (back, Run.open(tmp_path / "of_run")):
        assert other.tokenizer().files == run.tokenizer().files


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
