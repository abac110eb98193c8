"""What the benchmark runs and reports; how long anything takes is no test's affair."""

import sys

from cold_start import Measured, Process, Way, report, take_turns

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
    ((_, found),) = take_turns([way], {}, run, rounds=2).items()
    same_folder = ["False", "True"]  # XDG_CACHE_HOME and KERAS_HOME are one folder
    files = ["['mark', 'recipe.yaml']"]
    assert [p.output for p in found.first] == [[*same_folder, "False", *files]] * 2
    assert [p.output for p in found.second] == [["True"] * 3 + files] * 2
    assert not (run / "mark").exists()


def test_figures_are_of_medians_and_of_the_same_lines():
    found = {
        (IMPORTS, None): measured(2.0, 2.0, output=()),
        (OURS, 2): measured(3.0, 5.0, 100.0, first=(7.0, 9.0, 8.0), output=("a", "c")),
        (PEER, 2): measured(0.5),
    }
    of_imports, ours, peer = report(found)
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
