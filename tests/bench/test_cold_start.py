"""What the benchmark runs and reports; how long anything takes is no test's affair."""

import subprocess
import sys
from pathlib import Path

import pytest
from cold_start import Measured, Process, Way, report, take_turns
from support.parallel_text import SENTENCES

from keras_transformer.data import Tokenizer
from keras_transformer.formats import export_ctranslate2, export_hugging_face
from keras_transformer.models import Transformer

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
FILE = Path("two.txt")
PEER = Way("ctranslate2", ())
OURS = Way("translate", (), "jax", caches=True)
IMPORTS = Way("import keras", (), "jax", reads=False)


def measured(*seconds, output=("a", "b"), first=()):
    first, second = ([Process(s, list(output)) for s in each] for each in (first, seconds))
    return Measured(first, second)


def test_only_the_second_process_finds_what_the_first_has_left(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.yaml").write_text("name: a\n")
    code = """
import os, sys
for place in (os.environ["XDG_CACHE_HOME"], os.environ["KERAS_HOME"], sys.argv[1]):
    print(os.path.exists(place + "/mark"))
    open(place + "/mark", "w").close()
print(sorted(os.listdir(sys.argv[1])))
"""
    way = Way("way", (sys.executable, "-c", code, "RUN"), caches=True, reads=False)
    ((_, found),) = take_turns([way], [], run, rounds=2).items()
    same_folder = ["False", "True"]  # XDG_CACHE_HOME and KERAS_HOME are one folder
    files = ["['mark', 'recipe.yaml']"]
    assert [p.output for p in found.first] == [[*same_folder, "False", *files]] * 2
    assert [p.output for p in found.second] == [["True"] * 3 + files] * 2
    assert not (run / "mark").exists()


def test_figures_are_of_medians_and_of_the_same_lines():
    found = {
        (IMPORTS, None): measured(2.0, 2.0, output=()),
        (OURS, FILE): measured(3.0, 5.0, 100.0, first=(7.0, 9.0, 8.0), output=("a", "c")),
        (PEER, FILE): measured(0.5),
    }
    of_imports, ours, peer = report(found, [2])
    assert of_imports["lines"] is None and of_imports["times_ctranslate2"] is None
    assert ours == {
        "way": "translate",
        "backend": "jax",
        "lines": 2,
        "first_s": 8.0,
        "second_s": 5.0,
        "times_imports": 2.5,
        "times_ctranslate2": 10.0,
        "same": 0.5,
        "note": None,
    }
    assert (peer["first_s"], peer["times_imports"], peer["same"]) == (None, None, 1.0)


def test_a_translation_with_other_lines_has_no_figures():
    found = measured(1.0, first=(1.0,))
    found.second[0].output.pop()
    (row,) = report({(OURS, FILE): found}, [2])
    assert (row["note"], row["second_s"]) == ("1 lines for 2", None)


PACKAGES = {"ctranslate2": ["ctranslate2"], "hugging_face": ["torch", "transformers"]}


@pytest.mark.slow
@pytest.mark.parametrize("peer", PACKAGES)
def test_the_peers_programs_write_a_line_for_each(peer, tmp_path):
    for package in PACKAGES[peer]:
        pytest.importorskip(package, reason=f"{package} is an optional dependency")
    save = {"ctranslate2": export_ctranslate2, "hugging_face": export_hugging_face}[peer]
    tokenizer = Tokenizer.train(SENTENCES, vocabulary_size=60)
    model = Transformer(60, num_layers=2, d_model=12, num_heads=3, d_ff=23, max_length=300)
    save(model, tokenizer, tmp_path / peer)
    file = tmp_path / "three.txt"
    file.write_text("a dog runs\na\nthree men and a dog\n")
    program = BENCH / f"_cold_{peer}.py"
    done = subprocess.run(
        [sys.executable, program, tmp_path / peer, file], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.split("\n")) == 4
