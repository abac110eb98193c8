"""The C program: built, then run where there is no Python."""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import requests

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[1] / "support" / "translate.c"


def package_folder(name: str) -> Path:
    return Path(find_spec(name).submodule_search_locations[0])


def output_of(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout


def test_the_c_program_translates_lines_without_python(exported, server, tmp_path):
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    program, tensorflow = tmp_path / "translate", package_folder("tensorflow")
    flags = "-std=c11 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Werror".split()
    libraries = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    output_of(
        "cc", *flags, f"-I{tensorflow}/include", "-o", program, SOURCE,
        f"-L{tensorflow}", *libraries, f"-Wl,-rpath,{tensorflow}",
    )  # fmt: skip
    linked = output_of("ldd", program, text=True)
    assert "libtensorflow_cc.so.2" in linked
    assert "libpython" not in linked and "not found" not in linked

    kernels = package_folder("tensorflow_text") / "python/ops/_sentencepiece_tokenizer.so"
    model = exported.version
    signature = ["--dir", model, "--tag_set", "serve", "--signature_def", "serving_default"]
    shown = output_of("saved_model_cli", "show", *signature, text=True)
    name = r"\['{}'\] tensor_info:.*?name: (\S+):(\d+)"
    (text, _), translation = (
        re.search(name.format(key), shown, re.DOTALL).groups() for key in ("text", "translation")
    )
    lines = [f"bad {number} {'cab ' * (number % 7)}".encode() for number in range(70)]
    lines[3], lines[4] = b"", "ÿ a".encode()
    found = output_of(
        program, model, kernels, text, *translation,
        input=b"\n".join(lines),  # the last line has no end
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": os.defpath},
    )  # fmt: skip
    body = {"inputs": {"text": [line.decode() for line in lines]}}
    answer = requests.post(f"{server.rest}/v1/models/model:predict", json=body)
    assert found.decode().splitlines() == answer.json()["outputs"]["translation"]
