"""Wheel and sdist: what they contain, and that they work where nothing else is installed."""

import os
import re
import shutil
import subprocess
import tarfile
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import keras
import pytest
import requests
from support.running_server import serving

from keras_transformer import open_translator
from scripts.release import Environment, build, check_backend

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder():
    """A folder that is removed at once, because an environment has up to some gigabytes."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def built(folder):
    """The sdist and the wheel."""
    return build(folder, folder / "dist")


@pytest.mark.each_backend
def test_wheel_and_sdist_contain_what_they_should(built):
    sdist, wheel = built
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    package = {name for name in tracked if name.startswith("keras_transformer/")}
    data = {name for name in tracked if re.match("recipes/|saved_models/.+/", name)}
    assert len(data) > 5
    assert package | {f"keras_transformer/_{x}" for x in data} <= set(ZipFile(wheel).namelist())
    in_sdist = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    wanted = ("scripts/", "tests/", "docs/", "LICENSE", "README", "pyproject.toml")
    assert {name for name in tracked if name.startswith(wanted)} | package | data <= in_sdist


# What people write here. Everything else is someone's data or program.
WRITTEN = {*".py .pyi .typed .html .css .js .svg .yaml .yml .txt .config".split()}


def test_the_wheel_is_small_and_names_the_licence_of_what_is_in_it(built):
    wheel = ZipFile(built[1])
    assert built[1].stat().st_size < 8 * 2**20
    (notice,) = (wheel.read(x).decode() for x in wheel.namelist() if x.endswith("/NOTICE"))
    named = re.findall(r"^(keras_transformer/\S+)", notice, re.M)
    for name in wheel.namelist():
        if name.startswith("keras_transformer/_saved_models/"):
            assert any(fnmatch(name, pattern) for pattern in named), name
        elif name.startswith("keras_transformer"):
            assert Path(name).suffix in WRITTEN, name
            lines = wheel.read(name).decode()
            assert not re.search(r"copyright \(c\)|@license|SPDX", lines, re.I), name


@pytest.mark.each_backend
def test_readmes_commands_run_where_only_the_wheel_and_its_backend_are_installed(built, folder):
    check_backend(built[1], keras.config.backend(), folder / "fresh")


@pytest.mark.parametrize("is_last", [True, False])
def test_the_other_package_with_this_folder_is_named_in_any_order(built, folder, is_last):
    environment = Environment(folder / f"both{is_last}")
    environment.run("python", "-m", "pip", "install", "-q", "setuptools", "wheel", "lazy_loader")
    packages = [built[1], "keras-transformer==0.40.0"]
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
    environment.install(f"{built[1]}[ctranslate2,server]")
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
