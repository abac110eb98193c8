"""`keras-transformer beam`."""

from support.command_line import fails, succeeds
from support.html_page import read_page


def test_beam_search_of_a_sentence(run, tmp_path):
    output = tmp_path / "beam.html"
    options = ("--beam-size", 2, "--n-best", 2, "--output", output)
    assert succeeds("beam", run, "seven one", *options).strip() == str(output)
    page = read_page(output.read_text("utf-8"))
    assert page.texts("h1") == ["seven one"]
    assert any(cell.startswith("result 2, ") for cell in page.texts("td"))


def test_a_blank_sentence_is_an_error(run, tmp_path):
    output = tmp_path / "beam.html"
    message = fails("beam", run, " ", "--output", output)
    assert "a beam tree needs one sentence" in message
    assert not output.exists()
