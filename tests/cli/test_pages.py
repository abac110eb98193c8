"""`keras-transformer attention`, `beam` and `report`."""

import sys

import pytest
from support.command_line import fails, succeeds
from support.html_page import read_page


def test_attention_of_a_translation_is_a_page(run, tmp_path):
    page = tmp_path / "page.html"
    assert succeeds("attention", run, "one two", "--output", page) == f"{page}\n"
    text = page.read_text(encoding="utf-8")
    assert "<title>Attention: one two</title>" in text
    assert '"texts": ["one two", "' in text


def test_attention_of_a_given_target_is_a_picture(run, tmp_path):
    arguments = ("attention", run, "one two", "--target", "eins zwei", "--checkpoint", "last")
    picture, png = tmp_path / "a.svg", tmp_path / "a.png"
    succeeds(*arguments, "--kind", "encoder", "--layer", 1, "--head", 2, "--output", picture)
    assert "Encoder self-attention, layer 1, head 2" in picture.read_text(encoding="utf-8")
    assert "layer must be 1 to" in fails(*arguments, "--head", 1, "--output", picture)
    assert "layer must be 1 to 1" in fails(
        *arguments, "--layer", 2, "--head", 1, "--output", picture
    )
    pytest.importorskip("resvg_py", reason="resvg_py is an optional dependency")
    succeeds(*arguments, "--output", png)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_output_that_cannot_be_drawn_is_refused_before_the_run_is_opened(tmp_path, monkeypatch):
    message = fails("attention", tmp_path / "none", "one", "--output", "page.pdf")
    assert "must end in .html, .svg or .png. Received: page.pdf" in message
    message = fails("attention", tmp_path / "none", "one", "--output", "a.html", "--layer", 1)
    assert "--layer is for .svg and .png files" in message
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    message = fails("attention", tmp_path / "none", "one", "--output", "page.png")
    assert "pip install 'keras3-transformer[visualization]'" in message


def test_beam_search_of_a_sentence(run, tmp_path):
    output = tmp_path / "beam.html"
    options = ("--beam-size", 2, "--n-best", 2, "--output", output)
    assert succeeds("beam", run, "seven one", *options).strip() == str(output)
    page = read_page(output.read_text("utf-8"))
    assert page.texts("h1") == ["seven one"]
    assert any(cell.startswith("result 2, ") for cell in page.texts("td"))


def test_report_of_a_trained_run(run, tmp_path):
    output = tmp_path / "page.html"
    assert "is no run folder" in fails("report", run, tmp_path, "--output", output)
    assert not output.exists()
    assert succeeds("report", run, "--output", output).strip() == str(output)
    page = read_page(output.read_text("utf-8"))
    assert page.texts("h1") == ["run"]
    assert f"keras-transformer evaluate {run}" in page.texts("code")
    assert "Validation loss" in page.texts("b")
