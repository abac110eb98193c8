"""`keras-transformer report`."""

from support.command_line import fails, succeeds
from support.html_page import read_page


def test_report_of_a_trained_run(run, tmp_path):
    output = tmp_path / "page.html"
    assert succeeds("report", run, "--output", output).strip() == str(output)
    page = read_page(output.read_text("utf-8"))
    assert page.texts("h1") == ["run"]
    assert f"keras-transformer evaluate {run}" in page.texts("code")
    assert "Validation loss" in page.texts("b")


def test_a_wrong_run_leaves_no_page(tmp_path, run):
    output = tmp_path / "page.html"
    assert "is no run folder" in fails("report", run, tmp_path, "--output", output)
    assert not output.exists()
