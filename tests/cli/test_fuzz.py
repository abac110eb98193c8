"""500 fuzzed commands, and dozens of processes with odd streams.

A command ends in time, with status 0, or with status 2 and a line of error; no file that was there
loses a byte. `SEED` and the number of a command make it again: `hostile_command(number)`.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import invoke
from support.time_limit import time_limit

pytestmark = pytest.mark.slow

SEED, COMMANDS, GROUPS = 20170612, 500, 10
RUN = Path(__file__).parents[1] / "fixtures" / "trained_run"
PATHS = [
    *("in", "empty", "no-utf8", "nul", "folder", "dangling", "loop", "run", "run/model.keras"),
    *("run/recipe.yaml", "link-to-run", "absent", "absent/deeper", "read-only", "damaged-run"),
    *("/proc", "/proc/self", "/proc/self/mem", "/dev/null", "/dev/full", "/", "", "-", "--", "~"),
    *("x" * 300, "x/" * 3000, "\udcff", "é", "*", ".", "run/../run", "quickstart", "digits.yaml"),
]
NUMBERS = [
    *("0", "-1", "1", "2", "3", "1e3", "1e400", "1e-320", "nan", "inf", "-inf", "x", "", "0x10"),
    *("2147483647", "2147483648", "18446744073709551615", "18446744073709551616", "9" * 5000),
    *(" 1", "1_0", "-0.0", "0.5", "１"),
]
SETTINGS = [
    *("training.steps=1", "training.steps=-1", "x", "=", "a.b=c", "data=1", "name=../x", "name="),
    *("training.steps=" + "9" * 50, "data.generator.train=1000000000", "model.num_heads=7"),
    *("evaluation.beam_size=99999999999", "seed=1.5", "data.train.source=in", "description=\udcff"),
]
NUMERIC = {
    "translate": "beam-size length-penalty coverage-penalty n-best num-beam-groups max-length "
    "min-length diversity-penalty repetition-penalty no-repeat-ngram-size temperature top-k top-p "
    "seed sample mbr",
    "client": "timeout batch-size n-best beam-size length-penalty max-length model-version",
    "evaluate": "beam-size length-penalty max-length",
    "export": "beam-size length-penalty",
    "average": "last",
    "budget": "memory",
    "score": "",
    "train": "",
}
FILES = {
    "translate": ("prefix", "required", "forbidden", "ensemble", "output"),
    "client": ("output",),
    "evaluate": ("output", "json", "baseline", "source", "reference", "hypotheses"),
}
POSITIONS = {"translate": 2, "score": 3, "client": 2}
UNREACHABLE = ("--retries", "0", "--address", "http://127.0.0.1:9")


def hostile_command(number):
    """The arguments of a command; what trains or exports for minutes has one wrong argument."""
    draw = random.Random(SEED * 1000 + number)
    name = draw.choices(list(NUMERIC), [8, 3, 2, 1, 2, 1, 2, 2])[0]
    positions = [draw.choice(PATHS) for _ in range(POSITIONS.get(name, 1))]
    if draw.random() < 0.6 and name not in ("client", "budget", "train"):
        positions[:2] = ["run", "in"][: len(positions)]
    numeric, files = NUMERIC[name].split(), FILES.get(name, ())
    options = []
    for option in draw.sample(numeric, draw.randint(0, min(len(numeric), 2))):
        options += [f"--{option}", draw.choice(NUMBERS)]
    for option in draw.sample(files, draw.randint(0, min(len(files), 2))):
        options += [f"--{option}", draw.choice(PATHS)]
    if name in ("train", "budget"):
        options += ["--set", draw.choice(SETTINGS), "--set", "no.such=key"]
    if name == "export":
        options += ["--format", draw.choice(["onnx", "saved_model", "x"]), "--quantization", "x"]
    if name == "client":
        options += UNREACHABLE
    return [name, *options, *positions]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a run and with files that are hard to read."""
    shutil.copytree(RUN, tmp_path / "run")
    damaged = shutil.copytree(RUN, tmp_path / "damaged-run")
    (damaged / "model.keras").write_bytes(b"PK\3\4")
    (damaged / "scores.json").write_text("{")
    contents = {"in": b"one\n", "empty": b"", "no-utf8": b"one\n\xff\n", "nul": b"\0\n"}
    for name, content in {**contents, "read-only": b"keep"}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "read-only").chmod(0o400)
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link-to-run").symlink_to("run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents_of(folder, without):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        path: path.read_bytes()
        for path in files
        if not any(os.path.realpath(path) == os.path.realpath(other) for other in without)
    }


@pytest.mark.parametrize("group", range(GROUPS))
def test_commands_end_well_and_keep_all_files(folder, group):
    for number in range(group, COMMANDS, GROUPS):
        words = hostile_command(number)
        pairs = zip(words, words[1:], strict=False)
        outputs = [b for a, b in pairs if a in ("--output", "--json")]
        before = contents_of(folder, outputs)
        with time_limit(300):
            result = invoke(*words, input=b"one\n")
        place = f"command {number}: {words}"
        assert result.exception is None or isinstance(result.exception, SystemExit), place
        assert result.exit_code in (0, 2), place
        if result.exit_code == 2:
            assert "Error: " in result.stderr, place
        after = contents_of(folder, outputs)
        changed = [path for path in before if after.get(path) != before[path]]
        kept = ("scores.json", "test.txt")
        assert all(path.name in kept for path in changed), place
        if result.exit_code == 2:  # what stood where the output goes is still there
            assert (folder / "in").read_bytes() == b"one\n", place


NO_OUTPUT = [">&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full"]
STREAMS = ["", "<&-", "2>&-", "| true", *NO_OUTPUT]
PROGRAMS = [
    "translate run --beam-size 1 --max-length 4",
    "client m --retries 0 --address http://127.0.0.1:9",
]


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("files", ["in", "in --output out", "absent"])
def test_processes_with_odd_streams_end_well(folder, program, files, streams):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = f"{sys.executable} -m keras_transformer {program} {files} {streams}"
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=300,
    )
    assert b"Traceback" not in found.stderr
    writes_to_stdout = "output" not in files
    is_refused = writes_to_stdout and streams in NO_OUTPUT
    if streams == "| true":
        assert found.returncode in (0, 1, 2)
    elif program.startswith("client") or files == "absent" or is_refused:
        assert found.returncode == 2
    else:
        assert found.returncode == 0, found.stderr[-2000:]
        answer = found.stdout if writes_to_stdout else (folder / "out").read_bytes()
        assert answer.count(b"\n") == 1
    assert (folder / "in").read_bytes() == b"one\n"
