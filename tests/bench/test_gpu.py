"""Which checks the GPU benchmark runs and what it writes; what it measures is no test's affair."""

import argparse
import json
from pathlib import Path

import _gpu_checks
import gpu
import pytest
from _gpu_ceilings import step_products
from _gpu_checks import from_json, to_json

ALL = list(gpu.all_checks(["torch", "jax"], Path("text")))


def options(**given):
    defaults = {"only": None, "skip": [], "backends": ["torch", "jax"], "baseline": None}
    defaults |= {"cpu": False, "minutes": 1, "profile": [], "data_dir": None}
    return argparse.Namespace(**{**defaults, **given})


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
    chosen = gpu.chosen_checks(options(only=["train torch *"], baseline=Path(".")))
    names = [check.name for check in chosen]
    assert names[:2] == ["train torch base (baseline)", "train torch base"]
    chosen = gpu.chosen_checks(options(only=["train*"], skip=["*big", "*jax*"], cpu=True))
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


def test_a_recipe_is_trained_and_evaluated_if_its_text_is_given(monkeypatch):
    assert not gpu.chosen_checks(options(only=["recipe*"]))
    (check, _) = gpu.chosen_checks(options(only=["recipe*"], data_dir=Path("text"), cpu=True))
    commands = []

    def command(*arguments):
        commands.append(arguments)
        if arguments[0] == "evaluate":
            run = Path(arguments[1])
            run.mkdir()
            (run / "scores.json").write_text('[{"metric": "BLEU", "score": 44.5}]')
        return 90.0

    monkeypatch.setattr(_gpu_checks, "command", command)
    found = _gpu_checks.recipe(check)["measure"]()
    assert found == {"minutes": 1.5, "evaluate_s": 90.0, "BLEU": 44.5}
    assert commands[0][:4] == ("train", "tatoeba_en_de", "--data-dir", "text")
    assert "--set=training.steps=2" in commands[0]


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
    gpu.Bench(options(minutes=0), results, "caches").run(ALL)
    assert {row["error"] for row in results.rows.values()} == {"no time was left"}


def test_kernels_are_counted_by_part_with_the_gaps_between_them():
    found = _gpu_checks.by_part(
        [
            ("void cutlass::Kernel2<gemm_bf16>", 0, 4_000_000),
            ("triton_per_fused_log_softmax_nll_0", 1_000_000, 1_000_000),  # beside the first one
            ("cudnn_generated_fort_native_sdpa_fprop", 5_000_000, 2_000_000),
            ("triton_red_fused_native_layer_norm_3", 7_000_000, 500_000),
            ("triton_poi_fused_add_1", 7_500_000, 4_000),
            ("triton_poi_fused_add_2", 7_504_000, 6_000),
        ]
    )
    assert found == {
        "attention": [1, 2.0],
        "loss": [1, 1.0],
        "products": [1, 4.0],
        "normalization": [1, 0.5],
        "small": [1, 0.004],
        "other": [1, 0.006],
        "gap": [1, 1.0],
    }


def test_a_profile_of_this_machine_has_its_products():
    torch = pytest.importorskip("torch")
    x = torch.ones(64, 64)
    profile = _gpu_checks.torch_kernels(lambda: x @ x)
    assert _gpu_checks.by_part(list(profile))["products"][0] == 2  # matmul, and mm in it
