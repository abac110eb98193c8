"""README and documentation are true: their Python runs, their commands and settings exist."""

import ast
import importlib
import importlib.util
import json
import re
import shlex
from pathlib import Path

import click
import keras
import pytest
import yaml

import keras_transformer
from keras_transformer import Recipe, Run, load_recipe, train
from keras_transformer.cli import COMMANDS, main
from keras_transformer.data.numbers_and_dates import generate_pairs
from keras_transformer.recipe.files import SHIPPED_RECIPES
from keras_transformer.recipe.settings import all_keys

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
CLI = ROOT / "keras_transformer_cli.py"
PAGES = [ROOT / "README.md", ROOT / "README.ko.md", *DOCS]

# The run `runs/quickstart`, which many pages use, made small.
SMALL = """
    data.generator={train: 200, validation: 8, test: 8} tokenizer.vocabulary_size=100
    model.num_layers=1 model.d_model=16 model.num_heads=2 model.d_ff=16
    training.steps=2 training.checkpoint_every=2 training.tokens_per_batch=512
    training.validation_bleu_sentences=0 evaluation.average_last=1"""


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "quickstart"
    settings = re.split(r"\s+(?=[a-z]+\.)", SMALL.strip())
    train(Run.create(folder, load_recipe(ROOT / "recipes" / "quickstart.yaml", settings)))
    return folder


# README.ko.md has the code of README.md.
WITH_PYTHON = [page for page in PAGES if blocks(page, "python") and page.name != "README.ko.md"]


SLOW = {
    "coming-from.md",
    *("own-corpus.md", "conformance.md", "own-model.md", "decoding.md", "fine-tuning.md"),
    *("report.md", "masked-language-model.md", "feature-sequences.md", "sliced-logits.md"),
}
EACH_BACKEND = {"README.md"}


def marks_of(page):
    is_slow, once = page.name in SLOW, page.name not in EACH_BACKEND
    return [pytest.mark.slow] * is_slow + [pytest.mark.once] * once


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name_of(page), marks=marks_of(page)) for page in WITH_PYTHON],
)
def test_python_of_a_page_runs(page, quickstart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(quickstart)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    namespace: dict = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), namespace)


def test_the_program_of_the_tensorflow_tutorial_has_the_lines_that_its_page_says():
    page = ROOT / "docs" / "how-to" / "coming-from.md"
    program, *_ = blocks(page, "python")
    lines = len([line for line in program.splitlines() if line])
    assert lines <= 25 and f"| all, without blank lines | {lines} | 502 |" in page.read_text()


@pytest.mark.parametrize("page", ["own-block.md", "gated-cross-attention.md"])
def test_the_program_with_a_layer_of_ones_own_is_short(page):
    program = "".join(blocks(ROOT / "docs" / "how-to" / page, "python"))
    assert len([line for line in program.splitlines() if line]) <= 60


@pytest.mark.slow
@pytest.mark.each_backend
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "docs" / "tutorials" / "notebook.ipynb").read_text("utf-8"))["cells"]
    install, *programs = ("".join(x["source"]) for x in cells if x["cell_type"] == "code")
    assert "%pip install" in install
    namespace, shown = {"BACKEND": keras.config.backend()}, []
    for source in programs:
        program = ast.parse(source)
        last = program.body.pop() if isinstance(program.body[-1], ast.Expr) else None
        exec(compile(program, "notebook.ipynb", "exec"), namespace)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), "", "eval"), namespace))
    pages = [x._repr_html_() for x in shown if hasattr(x, "_repr_html_")]
    assert [x[:5] for x in pages] == ["<p><b", "<ifra", "<svg ", "<ifra", "<ifra"]
    assert [x for x in shown if isinstance(x, list)][-2:] == [["dreihundertvier"]] * 2
    assert namespace["exact"] > 0.95


def test_the_example_for_keras_io_runs(tmp_path, monkeypatch, capsys):
    path = ROOT / "docs" / "tutorials" / "keras_io_example.py"
    program = path.read_text("utf-8")
    header = "Title, Author, Date created, Last modified, Description, Accelerator"
    assert re.findall(r"^([\w ]+): \S", program.split('"""')[1], re.M) == header.split(", ")
    code = [x for x in re.sub(r'^""".*?"""$', "", program, flags=re.M | re.S).splitlines() if x]
    assert len(code) < 300 and max(map(len, code)) <= 90  # keras.io's limits
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spa-eng").mkdir()
    rows = (f"{source}\t{target}\n" for source, target in generate_pairs(300, "en", "es"))
    (tmp_path / "spa-eng" / "spa.txt").write_text("".join(rows), encoding="utf-8")
    monkeypatch.setattr(keras.utils, "get_file", lambda **_: tmp_path)
    small = {"= 8000": "= 150", "= 3 ": "= 1 ", "=192": "=24", "_layers=[24]": "_layers=1"}
    for pattern, value in small.items():
        program, count = re.subn(pattern, value, program)
        assert count
    exec(compile(program, str(path), "exec"), {"__name__": "example"})
    greedy, beams, *_ = re.findall(r"(\w+): [\d.]+ BLEU", capsys.readouterr().out)
    assert (greedy, beams) == ("greedy", "beams")


def test_both_readmes_have_the_same_code_links_and_numbers():
    def facts(name):
        text = (ROOT / name).read_text("utf-8").replace("README.ko.md", "README.md")
        links, plain = re.findall(r"\]\(.+?\)", text), re.sub(r"\]\(.+?\)", "", text)
        blocks, names = re.findall(r"^```.*?^```", text, re.M | re.S), re.findall("`.+?`", plain)
        return [*map(sorted, (links, blocks, names, re.findall(r"\d[\d.,]*\d|\d", plain)))]

    assert facts("README.md") == facts("README.ko.md")


def test_the_first_result_takes_at_most_200_words():
    text, found, _ = (ROOT / "README.md").read_text("utf-8").partition("Bahnhof?`")
    assert found and len(text.split()) <= 200


def commands_of(block):
    """Yields the arguments of each `keras-transformer` in a block of a shell."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        arguments = None
        for word in [*words, ";"]:
            if word in ("keras-transformer", "keras_transformer"):
                arguments = []
            elif set(word) <= set("();<>|&"):
                if arguments:
                    yield arguments
                arguments = None
            elif arguments is not None:
                arguments.append(word)


def check_command(arguments):
    name, *options = arguments
    command = main.get_command(click.Context(main), name)
    assert command is not None, name
    context = click.Context(command)
    values, _, _ = command.make_parser(context).parse_args(list(options))
    for parameter in command.params:
        if isinstance(parameter.type, click.Choice | click.IntRange | click.FloatRange):
            parameter.process_value(context, values.get(parameter.name))
    settings = values.get("overrides") or []
    assert {setting.partition("=")[0] for setting in settings} <= {key.name for key in all_keys()}
    if any((folder / f"{values.get('recipe')}.yaml").is_file() for folder in SHIPPED_RECIPES):
        load_recipe(values["recipe"], [x for x in settings if "$" not in x])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page_exist(page):
    inline = re.findall(r"`(keras-transformer [a-z][^`]*)`", page.read_text("utf-8"))
    for block in [*blocks(page, "bash"), *(text.replace("\n", " ") for text in inline)]:
        for arguments in commands_of(block):
            check_command(arguments)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_of_a_page_exist(page):
    text = page.read_text("utf-8")
    for path in set(re.findall(r"\b(?:scripts|recipes|tests)/[\w/.]+", text)):
        assert (ROOT / path.rstrip(".")).exists(), path
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link


def test_options_of_the_measurements_exist():
    text = (ROOT / "docs" / "reference" / "measurements.md").read_text("utf-8")
    lines = re.findall(r"`python (scripts/bench/\w+\.py)([^`]*)`", text)
    assert len(lines) > 8
    of_all = (ROOT / "scripts" / "bench" / "_common.py").read_text("utf-8")
    for script, options in lines:
        source = (ROOT / script).read_text("utf-8") + of_all
        for option in re.findall(r"--[\w-]+", options):
            assert f'"{option}"' in source, (script, option)


def test_recipes_of_the_documentation_are_valid():
    recipes = [block for page in PAGES for block in blocks(page, "yaml") if "name:" in block]
    assert recipes
    for recipe in recipes:
        Recipe.model_validate(yaml.safe_load(recipe))


def test_each_message_of_the_troubleshooting_page_is_in_the_code():
    texts = set()  # … stands for what is put into a text.
    for path in [*Path(keras_transformer.__file__).parent.rglob("*.py"), CLI]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            parts = [getattr(x, "value", x) for x in getattr(node, "values", [node])]
            text = "".join(x if isinstance(x, str) else "…" for x in parts)
            texts.add(re.sub("…+", "…", text))
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.+`) \| .*\]\(.+\).* \|$", page, re.M)
    assert len(rows) == page.count("\n| `") > 25
    for message in re.findall("`(.+?)`", " ".join(rows)):
        assert any(message in text for text in texts), message


def test_every_public_name_is_in_the_reference():
    reference = "".join(page.read_text("utf-8") for page in DOCS if page.parent.name == "api")
    paths = re.findall(r"^::: (\S+)$", reference, re.M)
    documented = {path.rpartition(".")[2] for path in paths}
    assert len(documented) == len(paths)
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path
    packages = (
        "layers models formats data decoding translation documents training serving portability "
        "visualization"
    ).split()
    modules = {file.stem for file in Path(keras_transformer.__file__).parent.iterdir()}
    public = {*keras_transformer.__all__} - modules
    for package in packages:
        public |= set(importlib.import_module(f"keras_transformer.{package}").__all__)
    assert public - documented == {"ARCHITECTURES"}


def test_generated_pages_have_all_commands_keys_and_files():
    path = ROOT / "scripts" / "docs_hooks.py"
    spec = importlib.util.spec_from_file_location("docs_hooks", path)
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)

    def generated(name):
        return hooks.on_page_markdown((ROOT / "docs" / "reference" / name).read_text("utf-8"))

    assert re.findall(r"^## ([\w-]+)$", generated("command-line.md"), re.M) == list(COMMANDS)
    keys = generated("recipe.md")
    assert all(f"| `{key.name.rpartition('.')[2]}` |" in keys for key in all_keys())
    assert "|  |\n" not in keys  # a key without a description
    (row,) = re.findall(r"^\| `keep_checkpoints` .*", keys, re.M)
    assert row.endswith("*May change on resume.* |")
    assert keys.count("*May change on resume.*") == sum(key.may_change for key in all_keys())
    assert "| `model.keras` |" in generated("run-folder.md")
