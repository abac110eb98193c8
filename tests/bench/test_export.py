"""The arithmetic of the benchmark; what it measures is no test's affair."""

import importlib.util
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

spec = importlib.util.spec_from_file_location("export_benchmark", BENCH / "export.py")
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)

KERAS, INT8 = benchmark.KERAS, benchmark.Variant("onnx", "int8")


def test_rows_are_medians_ratios_within_rounds_and_shares():
    turns = {
        KERAS: [benchmark.Turn(2.0, 4.0), benchmark.Turn(8.0, 6.0), benchmark.Turn(4.0, 5.0)],
        INT8: [benchmark.Turn(1.0, 1.0), benchmark.Turn(1.0, 3.0), benchmark.Turn(5.0, 1.0)],
    }
    translations = {KERAS: ["a", "b", "c", "d"], INT8: ["a", "b", "x", "d"]}
    sizes = {KERAS: 4_000_000, INT8: 1_234_567}
    keras, int8 = benchmark.report(translations, turns, sizes, bleu=len)
    assert keras["seconds"] == 4 and keras["cpu_seconds"] == 5 and keras["sentences_per_s"] == 1
    assert (keras["ratio"], keras["same"], keras["mb"]) == (1, 1, 4)
    assert (int8["format"], int8["dtype"], int8["mb"]) == ("onnx", "int8", 1.23)
    assert int8["ratio"] == 2  # of 2, 8 and 0.8
    assert int8["cpu_ratio"] == 4  # of 4, 2 and 5
    assert (int8["same"], int8["bleu"]) == (0.75, 4)
