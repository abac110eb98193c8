"""Wheel and sdist: what they contain, and that they work where nothing else is installed."""

import os
import re
import shutil
import subprocess
import tarfile
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import keras
import pytest
import requests
from support.running_server import serving

from keras_transformer import open_translator

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow

TOPLEVEL = "keras_transformer,keras_transformer_cli.py"
SETTINGS = """\
data.generator={train: 200, validation: 8, test: 8}
tokenizer.vocabulary_size=100
model.num_layers=1
model.d_model=16
model.num_heads=2
model.d_ff=16
training.steps=2
training.checkpoint_every=2
training.tokens_per_batch=512
training.validation_bleu_sentences=0
evaluation.average_last=1
""".splitlines()


class Environment:
    """A new virtual environment in `folder`, which sees no package of this one."""

    def __init__(self, folder):
        venv.create(folder, with_pip=True)
        self.programs, self.folder = folder / "bin", folder
        hidden = {"KERAS_BACKEND", "PYTHONPATH", "KERAS_TRANSFORMER_DATA"}
        self._variables = {k: v for k, v in os.environ.items() if k not in hidden}
        # Keras would read the configuration of the user.
        self._variables |= {"KERAS_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}

    def run(self, program, *arguments, **options):
        done = subprocess.run(
            [self.programs / program, *map(str, arguments)],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            **options,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def install(self, *requirements):
        constraints = ROOT / "tests" / "constraints.txt"
        self.run("python", "-m", "pip", "install", "-q", "-c", constraints, *requirements)


@pytest.fixture(scope="module")
def folder():
    """A folder that is removed at once, because an environment has up to some gigabytes."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def built(folder):
    """Builds the sdist, and the wheel from the sdist. Returns the tools and the two files."""
    tools = Environment(folder / "tools")
    tools.install("build", "check-wheel-contents", "twine")
    tools.run("python", "-m", "build", "--outdir", folder / "dist", ROOT)
    (sdist,), (wheel,) = (list((folder / "dist").glob(kind)) for kind in ("*.tar.gz", "*.whl"))
    return tools, sdist, wheel


@pytest.mark.each_backend
def test_wheel_and_sdist_contain_what_they_should(built):
    tools, sdist, wheel = built
    tools.run("twine", "check", "--strict", sdist, wheel)
    tools.run("check-wheel-contents", "--toplevel", TOPLEVEL, wheel)
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    package = {name for name in tracked if name.startswith("keras_transformer/")}
    data = {name for name in tracked if re.match("recipes/|saved_models/.+/", name)}
    assert len(data) > 5
    assert package | {f"keras_transformer/_{x}" for x in data} <= set(ZipFile(wheel).namelist())
    in_sdist = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    wanted = ("scripts/", "tests/", "docs/", "LICENSE", "README", "pyproject.toml")
    assert {name for name in tracked if name.startswith(wanted)} | package | data <= in_sdist


@pytest.mark.each_backend
def test_installed_wheel_trains_and_translates(built, folder):
    """In an environment with this wheel and its backend: nothing else."""
    backend = keras.config.backend()
    environment = Environment(folder / "fresh")
    environment.install(f"{built[2]}[{backend},quickstart]")
    assert "translate" in environment.run("keras-transformer", "--help")
    listed = environment.run("python", "-m", "pip", "list", "--format=freeze")
    installed = {line.partition("==")[0] for line in listed.splitlines()}
    assert installed & {"tensorflow", "jax", "torch"} == {backend}
    environment.run("python", "-m", "pip", "check")
    settings = [f"--set={setting}" for setting in SETTINGS]
    environment.run("keras-transformer", "train", "quickstart", *settings)
    translate = ("keras-transformer", "translate", "runs/quickstart")
    assert len(environment.run(*translate, input="twenty-six\nten\n").splitlines()) == 2


@pytest.mark.parametrize("is_last", [True, False])
def test_the_other_package_with_this_folder_is_named_in_any_order(built, folder, is_last):
    environment = Environment(folder / f"both{is_last}")
    environment.run("python", "-m", "pip", "install", "-q", "setuptools", "wheel", "lazy_loader")
    packages = [built[2], "keras-transformer==0.40.0"]
    for package in packages if is_last else packages[::-1]:
        options = "-q", "--no-deps", "--no-build-isolation"
        environment.run("python", "-m", "pip", "install", *options, package)
    for command in ("keras-transformer", "--version"), ("python", "-c", "import keras_transformer"):
        with pytest.raises(AssertionError) as error:
            environment.run(*command)
        is_own = command[0] == "keras-transformer" or not is_last
        assert ("another project in the same folder" in str(error.value)) is is_own


def test_the_server_of_the_docker_image_needs_no_backend_and_writes_nothing(built, folder):
    run = shutil.copytree(ROOT / "saved_models" / "tatoeba_en_de", folder / "model")
    expected = open_translator(run, engine="ctranslate2").translate(["How are you?"])
    environment = Environment(folder / "served")
    environment.install(f"{built[2]}[ctranslate2,server]")
    for path in (run, *run.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    command = environment.programs / "keras-transformer", "serve", run, "--engine", "ctranslate2"
    variables = {"TMPDIR": "/nonexistent", "PATH": os.environ["PATH"]}
    try:
        with serving(*command, env=variables, cwd="/") as (_, url):
            body = {"q": ["How are you?"], "source": "en", "target": "de"}
            answer = requests.post(f"{url}/translate", json=body)
            assert answer.json() == {"translatedText": expected}
    finally:
        for path in (run, *run.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
