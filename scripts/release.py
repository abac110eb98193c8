"""Builds and checks a release, and installs its wheel into new environments.

Called by scripts/release. Without an option, a tag is set after the checks; the workflow
.github/workflows/release.yml publishes what is tagged.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
BACKENDS = "tensorflow", "jax", "torch"
TOPLEVEL = "keras_transformer,keras_transformer_cli.py"
EXAMPLE = ROOT / "saved_models" / "tatoeba_en_de" / "text"

# README's commands, made small: the text has 500 pairs, the training has 2 steps.
SMALL = {
    "train": "--set model.num_layers=1 --set model.num_decoder_layers=1 --set model.d_model=16 "
    "--set model.num_heads=2 --set model.d_ff=16 --set training.steps=2 "
    "--set training.checkpoint_every=2 --set evaluation.average_last=1",
}
# What README shows, but this environment cannot end or does not have.
LEFT_OUT = r"keras-transformer serve|scripts/|pip install|git clone|cd |python3 -m venv|source "

# What shows that an extra works, in an environment of it and JAX. The others are checked below.
WORKS = {
    "quickstart": "keras-transformer train quickstart --set training.steps=1 "
    "--set training.checkpoint_every=1 --set evaluation.average_last=1",
    "ctranslate2": "keras-transformer translate tatoeba_en_de in.txt --engine ctranslate2",
    "files": "keras-transformer translate tatoeba_en_de page.md --output seite.md",
    "hub": "python -c 'import huggingface_hub'",
    "language-id": "keras-transformer init corpus.en corpus.de --output x.yaml "
    "&& grep -q 'wrong_language: true' x.yaml",
    "onnx": "keras-transformer export tatoeba_en_de --format onnx",
    "server": "KERAS_BACKEND=jax python -c 'from keras_transformer.serving import server'",
    "visualization": "keras-transformer attention tatoeba_en_de Hello. --output a.png",
    **dict.fromkeys(BACKENDS, "keras-transformer translate tatoeba_en_de in.txt"),
}
# Gigabytes, a GPU, or for a checkout: pip finds versions that go together, and installs nothing.
RESOLVED = "tensorflow-cuda", "jax-cuda12", "jax-cuda13", "comet", "bench", "docs", "dev"


class Environment:
    """A new virtual environment in `folder`, which sees no package of this one."""

    def __init__(self, folder: Path):
        venv.create(folder, with_pip=True)
        self.programs, self.folder = folder / "bin", folder
        hidden = {"KERAS_BACKEND", "PYTHONPATH", "KERAS_TRANSFORMER_DATA"}
        self._variables = {k: v for k, v in os.environ.items() if k not in hidden}
        # Keras would read the configuration of the user.
        self._variables |= {"KERAS_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
        self._variables["PATH"] = f"{self.programs}:{os.environ['PATH']}"

    def run(self, program: str, *arguments: object, **options: object) -> str:
        """Runs a program in this folder, of this environment if it has it; returns its output."""
        command = [shutil.which(program, path=self._variables["PATH"]), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.folder, env=self._variables, capture_output=True, text=True, **options
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def install(self, *requirements: object) -> None:
        constraints = ROOT / "tests" / "constraints.txt"
        self.run("python", "-m", "pip", "install", "-q", "-c", constraints, *requirements)

    def write_example(self) -> None:
        """The files that README's commands read."""
        for language in ("en", "de"):
            lines = (EXAMPLE / f"test.{language}").read_text("utf-8").splitlines(keepends=True)
            (self.folder / f"corpus.{language}").write_text("".join(lines[:500]), "utf-8")
        (self.folder / "in.txt").write_text("How are you?\n")
        (self.folder / "page.md").write_text("# How are you?\n")

    @property
    def mebibytes(self) -> float:
        return sum(x.stat().st_size for x in self.folder.rglob("*") if x.is_file()) / 2**20


def build(folder: Path, output: Path) -> tuple[Path, Path]:
    """Builds the sdist, and the wheel from the sdist, and checks both. Returns the two files."""
    tools = Environment(folder / "tools")
    tools.install("build", "check-wheel-contents", "twine")
    tools.run("python", "-m", "build", "--outdir", output, ROOT)
    (sdist,), (wheel,) = (list(output.glob(kind)) for kind in ("*.tar.gz", "*.whl"))
    tools.run("twine", "check", "--strict", sdist, wheel)
    tools.run("check-wheel-contents", "--toplevel", TOPLEVEL, wheel)
    return sdist, wheel


def check_backend(wheel: Path, backend: str, folder: Path) -> None:
    """Installs the wheel with one backend, and runs README's programs and commands there."""
    environment = Environment(folder)
    environment.install(f"{wheel}[{backend},onnx]")
    listed = environment.run("python", "-m", "pip", "list", "--format=freeze")
    installed = {line.partition("==")[0] for line in listed.splitlines()}
    assert installed & {*BACKENDS} == {backend}
    environment.run("python", "-m", "pip", "check")
    environment.write_example()
    readme = (ROOT / "README.md").read_text("utf-8")
    for language, block in re.findall(r"^```(bash|python)\n(.*?)^```", readme, re.M | re.S):
        if language == "python":
            environment.run("env", f"KERAS_BACKEND={backend}", "python", "-c", block)
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(LEFT_OUT, line) or ("saved_model" in line and backend != "tensorflow"):
                continue
            command = line.partition(" #")[0]
            small = SMALL.get(command.partition("keras-transformer ")[2].partition(" ")[0], "")
            environment.run("bash", "-c", f"{command} {small}")


def check_backends(wheel: Path, folder: Path) -> None:
    for backend in BACKENDS:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as place:
            check_backend(wheel, backend, Path(place, "environment"))
        print(f"{backend}: {(time.monotonic() - start) / 60:.1f} minutes", flush=True)


def check_extra(wheel: Path, extra: str, folder: Path) -> tuple[float, float]:
    """Installs one extra, runs what shows that it works, and returns seconds and mebibytes."""
    environment = Environment(folder)
    before, start = environment.mebibytes, time.monotonic()
    environment.install(f"{wheel}[{extra}]" if extra else wheel)
    seconds, size = time.monotonic() - start, environment.mebibytes - before
    environment.run("python", "-m", "pip", "check")
    if extra in WORKS:
        if extra not in BACKENDS:
            environment.install("jax")
        environment.write_example()
        environment.run("bash", "-c", WORKS[extra])
    return seconds, size


def check_extras(wheel: Path, folder: Path) -> None:
    """Prints the table of extras: what each takes alone, in a new environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*WORKS, *RESOLVED} == {*project["optional-dependencies"]}
    print("| extra | MiB | seconds |\n|---|---|---|")
    for extra in ("", *WORKS):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            seconds, size = check_extra(wheel, extra, Path(place, "environment"))
        print(f"| {f'`{extra}`' if extra else 'none'} | {size:.0f} | {seconds:.0f} |", flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        environment = Environment(Path(place, "environment"))
        for extra in RESOLVED:
            environment.run(
                "python", "-m", "pip", "install", "-q", "--dry-run", f"{wheel}[{extra}]"
            )
            print(f"| `{extra}` | resolved | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="set no tag")
    parser.add_argument("--extras", action="store_true", help="install each extra alone")
    parser.add_argument("--output", type=Path, help="keep sdist and wheel in this new folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sdist, wheel = build(folder, (arguments.output or folder / "dist").resolve())
        print(f"{sdist.name}, {wheel.name}", flush=True)
        if arguments.extras:
            return check_extras(wheel, folder)
        check_backends(wheel, folder)
    version = wheel.name.split("-")[1]
    if arguments.dry_run:
        return print(f"{version} can be released; no tag was set")
    if "dev" in version or subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT):
        sys.exit(f"a release has a clean checkout, and no version of development: {version}")
    subprocess.check_call(["git", "tag", f"v{version}"], cwd=ROOT)
    print(f"git push origin v{version} publishes it")


if __name__ == "__main__":
    main()
