"""What GitHub runs for each change: the commands of CONTRIBUTING.md, in a form that it accepts."""

import os
import re
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

ROOT = Path(__file__).parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
WORKFLOW = WORKFLOWS / "test.yml"
SCHEMA = ["--builtin-schema", "vendor.github-workflows"]


@pytest.mark.parametrize("name", ["test.yml", "release.yml"])
@pytest.mark.parametrize("runner, status", [("ubuntu-24.04", 0), ("[]", 1)])
def test_the_workflow_has_the_form_that_github_accepts(name, runner, status, tmp_path):
    file = tmp_path / name
    file.write_text((WORKFLOWS / name).read_text().replace("ubuntu-24.04", runner))
    result = CliRunner().invoke(check_jsonschema, [*SCHEMA, str(file)])
    assert result.exit_code == status, result.output


def test_it_runs_the_four_commands_on_all_backends_and_versions_of_python():
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    commands = {step["run"].split()[0] for step in steps if "run" in step}
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    ours = re.findall(r"^    (scripts/\w+) ", contributing, re.MULTILINE)
    assert commands == {*ours, "python"}
    assert all(os.access(ROOT / command, os.X_OK) for command in ours)
    project = (ROOT / "pyproject.toml").read_text()
    versions = re.findall(r"Python :: (3\.\d+)", project)
    assert jobs["test"]["strategy"]["matrix"]["python"] == versions
    assert jobs["versions"]["strategy"]["matrix"]["python"] == versions
    assert jobs["quickstart"]["strategy"]["matrix"]["backend"] == ["tensorflow", "jax", "torch"]


def test_only_what_was_checked_is_published_and_by_no_password():
    jobs = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]
    publish = jobs["publish"]
    assert publish["needs"] == ["build", "inventory"] and publish["permissions"] == {
        "id-token": "write"
    }
    assert "secrets." not in (WORKFLOWS / "release.yml").read_text()
    assert [step["run"] for step in jobs["build"]["steps"] if "run" in step][-1] == (
        "scripts/release --dry-run --output dist"
    )
