"""Which checks the GPU benchmark runs and what it writes; what it measures is no test's affair."""

import json
from pathlib import Path

import gpu
import pytest
from _gpu_ceilings import step_products
from _gpu_checks import from_json, to_json

ALL = list(gpu.all_checks(["torch", "jax"], Path("text")))


def options(words=""):
    return gpu.parse_arguments(["--out", ".", *words.split()])


@pytest.mark.parametrize("joined", [False, True])
def test_products_are_those_of_the_step_without_attention(joined):
    case = gpu.CASES[0]
    products = [2 * a * b * c * n for a, b, c, n in step_products(case, joined)]
    scores = 3 * 2 * 3 * 2 * case.num_layers * case.batch_size * 64 * 64 * case.d_model
    assert sum(products) == case.flops - scores


def test_names_are_unique_and_groups_fit_into_the_memory_and_keep_the_order():
    assert len({check.name for check in ALL}) == len(ALL)
    assert [from_json(to_json(check)) for check in ALL] == ALL  # as a worker gets it
    groups = gpu.waves(ALL)
    assert [check for group in groups for check in group] == ALL
    assert all(sum(check.gigabytes for check in group) <= gpu.GIGABYTES for group in groups)


def test_checks_are_chosen_by_patterns_and_a_baseline_goes_first():
    chosen = gpu.chosen_checks(options("--only train*torch* --baseline ."))
    names = [check.name for check in chosen]
    assert names[:2] == ["train torch base (baseline)", "train torch base"]
    chosen = gpu.chosen_checks(options("--only train* --skip *big *jax* --cpu"))
    assert all(check.on_cpu and check.backend == "torch" for check in chosen[:1])
    assert not any(check.name.endswith("big") for check in chosen)


def test_a_run_is_compared_with_what_an_older_run_measured_too():
    rows = {
        "train torch base": {"ms": 20.0},
        "decode torch": {"1x1": {"ms": 4.0, "tokens_per_s": 1.0}},
    }
    older = {"train torch base": {"ms": 30.0}, "decode torch": {"error": "Why"}, "new": {"ms": 1.0}}
    shown = gpu.compared(rows, older).splitlines()
    assert [line.split()[-3:] for line in shown[1:]] == [["20.00", "30.00", "1.500"]]
    assert gpu.compared(rows, {}) == "nothing in common"


class Echo:
    """A worker that replies at once; that of `numerics torch` dies."""

    def __init__(self, program, text, **environment):
        self.check = from_json(text)

    def send(self, action):
        self.action = action

    def receive(self, seconds):
        if self.check.kind == "numerics":
            raise RuntimeError("it died:\nWhy")
        return {"ms": 20.0, "gigabytes": 3.0} if self.action == "measure" else {}

    def close(self):
        pass


def test_results_are_written_and_a_failure_stops_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "Worker", Echo)
    results = gpu.Results(tmp_path / "gpu.json", peak=989)
    numerics, train = (x for x in ALL if x.name in ("numerics torch", "train torch base"))
    gpu.Bench(options(), results, "caches").run([numerics, train])
    rows = json.loads((tmp_path / "gpu.json").read_text())
    assert "it died" in rows["numerics torch"]["error"]
    found = rows["train torch base"]
    assert (found["tokens_per_s"], round(found["share"], 3)) == (819_200, 0.319)
    assert "numerics torch" in results.table() and "Why" in results.table()
    monkeypatch.setattr(gpu, "Worker", None)
    gpu.Bench(options("--minutes 0"), results, "caches").run(ALL)
    assert {row["error"] for row in results.rows.values()} == {"no time was left"}
