"""The C program: built, then run where there is no Python."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.once]

SOURCE = Path(__file__).parents[1] / "support" / "translate.c"


def package_folder(name: str) -> Path:
    return Path(find_spec(name).submodule_search_locations[0])


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("c") / "translate"
    tensorflow = package_folder("tensorflow")
    flags = "-std=c11 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Werror".split()
    libraries = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    subprocess.run(
        ["cc", *flags, f"-I{tensorflow}/include", "-o", path, SOURCE]
        + [f"-L{tensorflow}", *libraries, f"-Wl,-rpath,{tensorflow}"],
        check=True,
    )
    return path


def run(program, *arguments, text=None):
    return subprocess.run(
        [program, *arguments],
        input=text,
        capture_output=True,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": os.defpath},
    )


def test_the_c_program_translates_lines_without_python(program, exporting, client, tmp_path):
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    assert "libtensorflow_cc.so.2" in libraries
    assert "libpython" not in libraries
    assert "not found" not in libraries

    kernels = package_folder("tensorflow_text") / "python/ops/_sentencepiece_tokenizer.so"
    model = exporting.folder / "model" / "1"
    lines = [f"bad {number} {'cab ' * (number % 7)}".encode() for number in range(70)]
    lines[3], lines[4] = b"", b"\xff a"
    (tmp_path / "in").write_bytes(b"\n".join(lines))  # the last line has no end
    expected = [translation.text for translation in client.translate(lines)]
    for result in (
        run(program, model, kernels, tmp_path / "in"),
        run(program, model, kernels, text=b"\r\n".join(lines) + b"\r\n"),
    ):
        assert result.returncode == 0, result.stderr
        assert result.stdout.decode(errors="replace").splitlines() == expected
