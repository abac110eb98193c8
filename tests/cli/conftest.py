"""A small trained run for all tests of the command line."""

import shutil

import pytest
from support.command_line import invoke

DIGITS = "zero one two three four five six seven eight nine".split()
ZIFFERN = "null eins zwei drei vier fünf sechs sieben acht neun".split()

RECIPE = """
name: digits
data:
  train: {source: train.en, target: train.de}
  validation: {source: val.en, target: val.de}
  test: {source: val.en, target: val.de}
  max_length: 15
tokenizer: {vocabulary_size: 60}
model: {preset: tiny, num_layers: 1, d_model: 8, num_heads: 2, d_ff: 11, max_length: 24}
training:
  steps: 4
  tokens_per_batch: 128
  length_multiple: 16
  warmup_steps: 2
  checkpoint_every: 2
  validation_bleu_sentences: 2
evaluation: {average_last: 1, beam_size: 2}
"""


def write_data(folder):
    """All pairs of digits to train on, all single digits to measure."""
    folder.mkdir()
    for language, words in (("en", DIGITS), ("de", ZIFFERN)):
        pairs = "".join(f"{a} {b}\n" for a in words for b in words)
        (folder / f"train.{language}").write_text(pairs, encoding="utf-8")
        (folder / f"val.{language}").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data")


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A folder with recipe, data and a finished run; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "digits.yaml").write_text(RECIPE)
    data = write_data(folder / "data")
    result = invoke("train", folder / "digits.yaml", "--data-dir", data, "--run", folder / "run")
    assert result.exit_code == 0, result.output
    (folder / "stderr").write_text(result.stderr)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished / "run", tmp_path / "run")
