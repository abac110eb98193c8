"""The page that translates in the browser: its parts in Node.js, the whole of it in Chromium."""

import gzip
import io
import itertools
import json
import random
import re
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from support.command_line import fails, succeeds
from support.contract import randomize
from support.hostile_text import TEXT
from support.local_server import answer, local_server
from support.parallel_text import SENTENCES

from keras_transformer import SearchOptions, Tokenizer, Translator, UserError
from keras_transformer.formats import export_web, web
from keras_transformer.models import Transformer

pytest.importorskip("onnx", reason="onnx is an optional dependency")
pytest.importorskip("onnxruntime", reason="onnxruntime is an optional dependency")
ROOT = Path(__file__).parents[2]


def lines_of(name, count):
    return (ROOT / "saved_models/tatoeba_en_de" / name).read_text("utf-8").splitlines()[:count]


@pytest.fixture(scope="session")
def node():
    """Runs a program in Node.js with the scripts of a folder, and returns the JSON it prints."""
    if not (found := shutil.which("node")):
        pytest.skip("Node.js is not installed")

    def run(script, folder, values=(), method="translate"):
        (folder / "package.json").write_text('{"type": "module"}')
        (folder / "values.json").write_text(json.dumps(values))
        words = found, ROOT / "tests/support" / script, folder, folder / "values.json", method
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def runtime(tmp_path_factory):
    """The folder of onnxruntime-web."""
    try:
        return web._fetched(tmp_path_factory.mktemp("npm"))
    except UserError as error:
        pytest.skip(f"Node.js has no onnxruntime-web: {error}")


VARIANTS = {
    "plain": {},
    "unused": {},  # Every third piece is unused.
    "bytes": {"byte_fallback": True, "character_coverage": 0.98},
    "user": {"user_defined_symbols": ["<sep>", "ing", "ing a"]},
    "identity": {"normalization_rule_name": "identity"},
    "fold": {"normalization_rule_name": "nmt_nfkc_cf", "unk_surface": "?"},
    "spaces": {"remove_extra_whitespaces": False},
    "bare": {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "suffix": {"treat_whitespace_as_suffix": True},
}
ODD = """\u3000ａｂ　①②㍿|ﬁnd ﬂour|e\u0301te\u0301|\u200b\u200dx|\u200b|\u1112\u1161\u11ab|½ ²|
İ ß ẞ|ｶﾀｶﾅ ｶﾞ|™ …|Привет|\ufeffBOM|▁ bar▁|Ω Å K|ﷺ|<sep>x <sep> y<sep>|sing a ing aing|¨ ´|\u0e33"""


def write_models(folder, lines):
    draw, pool = random.Random(1), [chr(x) for x in range(1, 0x3000)] + list("🎉𝒳𐍈")
    texts = lines + ODD.split("|") + [text.decode()[:2000] for text in TEXT.values()]
    texts += ["".join(draw.choices(pool, k=draw.randint(1, 30))) for _ in range(200)]
    fixed = dict(pad_id=0, unk_id=1, bos_id=2, eos_id=3, minloglevel=2, hard_vocab_limit=False)
    for kind, name in itertools.product(["unigram", "bpe", "word", "char"], VARIANTS):
        model, given = io.BytesIO(), {**fixed, **VARIANTS[name], "sentence_iterator": iter(lines)}
        given |= {"model_type": kind, "vocab_size": 400, "model_writer": model}
        sentencepiece.SentencePieceTrainer.train(**given)
        proto = ModelProto.FromString(model.getvalue())
        for piece in [x for x in proto.pieces if x.type == 1][::3] if name == "unused" else []:
            piece.type = 5
        (folder / f"{kind}_{name}.model").write_bytes(content := proto.SerializeToString())
        found = sentencepiece.SentencePieceProcessor(model_proto=content)
        ids, sizes = found.encode(texts), [draw.randint(0, 12) for _ in range(200)]
        rows = ids + [[draw.randrange(found.get_piece_size()) for _ in range(n)] for n in sizes]
        cases = [[*zip(texts, ids, strict=True)], [*zip(rows, found.decode(rows), strict=True)]]
        (folder / f"{kind}_{name}.json").write_text(json.dumps(cases))


def test_ids_and_texts_are_those_of_sentencepiece(node, tmp_path):
    write_models(tmp_path, lines_of("text/test.en", 100) + lines_of("text/test.de", 100))
    shutil.copy(web._PAGE / "sentencepiece.js", tmp_path)
    found = node("sentencepiece_cases.mjs", tmp_path)
    assert len(found) == 36
    assert {name: wrong[:3] for name, wrong in found.items() if wrong} == {}


def new_model(tokenizer, **arguments):
    sizes = {"num_layers": 1, "d_model": 24, "num_heads": 4, "d_ff": 67, "max_length": 19}
    sizes["target_vocabulary_size"] = None if tokenizer.joint else 60
    return randomize(Transformer(60, **sizes, **arguments))


def two_vocabularies():
    plain = Tokenizer.train(SENTENCES, 60, joint=False, tags=[">>de<<"])
    frames = {"source_prefix": ["b"], "target_prefix": ["▁", "s"], "source_eos": False}
    return Tokenizer(plain.source_model, plain.target_model, **frames)


LINES = [line for pair in SENTENCES for line in pair] + ["a " * 40, "x" * 50, "漢" * 50, "a\tb", ""]
LINES += [
    "  \u200b ",
    " 漢字！ ",
    "a 漢",
    ">>de<< a dog",
    ">>xx<< a dog",
    "A dog runs. It plays. A cat.",
]


@pytest.mark.parametrize(
    "arguments, search",
    [
        ({"d_k": 5}, {"beam_size": 3, "length_penalty_form": "power"}),
        pytest.param(
            *({"position_encoding": "rotary"}, {"beam_size": 1, "max_length": 7}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=("beams", "greedy"),
)
def test_the_page_finds_what_the_package_finds(arguments, search, node, runtime, tmp_path):
    tokenizer = two_vocabularies()
    model, options = new_model(tokenizer, **arguments), SearchOptions(**search)
    given = {"onnxruntime_web": runtime, "options": options}
    export_web(model, tokenizer, tmp_path / "page", "float32", **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = Translator(model, tokenizer, options).translate(LINES)
    assert node("web_translator.mjs", tmp_path / "page", LINES) == expected


def test_sentences_are_split_and_joined_as_their_scripts_do(node, tmp_path):
    shutil.copytree(web._PAGE, tmp_path, dirs_exist_ok=True)
    split = [["Dr. Smith is here. ", "It is 3. Mai.  ", "Really? ", "Yes."], ["A. B. Nobel."], []]
    lines = ["".join(sentences) for sentences in split]
    assert node("web_translator.mjs", tmp_path, lines, "sentences") == split
    parts = [[["A. ", "Ein."], ["B.", "Zwei."]], [["A. ", "一。"], ["B.", "二。"]]]
    parts += [
        [["一。", "A."], ["二。", "B."]],
        [["ab", "x"], ["cd", "y"]],
        [["A. ", ""], ["B.", "b"]],
    ]
    joined = node("web_translator.mjs", tmp_path, parts, "join")
    assert joined == ["Ein. Zwei.", "一。二。", "A. B.", "xy", "b"]


def test_the_worker_stores_all_of_an_export_and_a_missing_runtime_is_named(
    run, tmp_path, monkeypatch
):
    command = ("export", run, "--format", "web")
    line = fails(*command, "--onnxruntime-web", tmp_path)
    assert f"{tmp_path}/dist/ort.wasm.bundle.min.mjs is missing: run `npm pack`" in line
    monkeypatch.setenv("PATH", str(tmp_path))
    assert re.search("npm cannot fetch .*1.30.0 .*--onnxruntime-web.* 'npm'", fails(*command))
    error = fails("export", run, "--format", "onnx", "--onnxruntime-web", tmp_path)
    assert "onnxruntime_web: only for web" in error
    assert not [*(tmp_path / "exports").rglob("*.*")]

    (tmp_path / "dist").mkdir()
    for name in web._RUNTIME:
        (tmp_path / name).write_text(name)
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("_language: de", "_language: heb_Hebr"))
    shown = succeeds(*command, "--onnxruntime-web", tmp_path)
    assert shown.startswith("exports/run/web: ") and "translations equal the model's" in shown
    folder = tmp_path / "exports/run/web"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    constants = r'const VERSION = "(\w{16})", FILES = (\[.*\]);'
    version, stored = re.match(constants, (folder / "sw.js").read_text()).groups()
    assert {*json.loads(stored)} == names - {"sw.js", "index.html"} | {"./"}
    config = json.loads(gzip.decompress((folder / "model/config.json.gz").read_bytes()))
    assert config["languages"] == [{"lang": "en", "dir": "ltr"}, {"lang": "heb-Hebr", "dir": "rtl"}]
    assert (config["quantization"], config["beam_size"]) == ("int8_weights", 4)
    succeeds(*command, "--onnxruntime-web", tmp_path, "--output", "b", "--beam-size", 3)
    assert version not in (tmp_path / "b/sw.js").read_text()


@pytest.fixture(scope="module")
def page(runtime, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tatoeba")
    for weights in ("int8_weights", "float32"):
        own = "--quantization", weights, "--output", folder / weights
        succeeds("export", "tatoeba_en_de", "--format", "web", *own)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("weights, least", [("int8_weights", 95), ("float32", 100)])
def test_translations_of_the_packaged_run_stay(weights, least, node, page):
    found = node("web_translator.mjs", page / weights, lines_of("text/test.en", 100))
    expected = lines_of("hypotheses/test.txt", 100)
    assert sum(a == b for a, b in zip(found, expected, strict=True)) >= least


def serve(server, folder, **headers):
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".json": "-"}
    for path in filter(Path.is_file, folder.rglob("*")):
        own = {"Content_Type": kinds[path.suffix]} if path.suffix in kinds else headers
        name = f"/sub/{path.relative_to(folder).as_posix()}"
        server.answers[name] = answer(path.read_bytes(), **own)
    server.answers["/sub/"] = server.answers["/sub/index.html"]


@pytest.fixture
def tab(browser):
    """A new tab. `until` waits for a state; `problems` has console lines and foreign requests."""
    context = browser.new_context(locale="en-US")
    tab, problems = context.new_page(), []
    tab.problems, tab.until = problems, lambda x: tab.locator("#state", has_text=x).wait_for()
    tab.set_default_timeout(120_000)
    tab.on("console", lambda message: problems.append(message.text))
    own = "http://127.0.0.1", "data:"
    context.on("request", lambda x: x.url.startswith(own) or problems.append(x.url))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    yield tab
    context.close()


def translated(tab, text):
    tab.locator("#state").evaluate("state => { state.textContent = '' }")
    tab.fill("#source", text)
    tab.until("Ready")
    return tab.text_content("#target")


@pytest.mark.slow
def test_the_page_translates_and_needs_no_network_later(page, tab):
    lines, expected = lines_of("text/test.en", 50), lines_of("hypotheses/test.txt", 50)
    with local_server() as server:
        serve(server, page / "int8_weights")
        tab.goto(f"{server.url}/sub/")
        tab.until("Ready")
        loaded, large = [path for path, _ in server.requests], (".gz", "ort.js")
        once = sorted(path for path in server.answers if path.endswith(large))
        assert sorted(path for path in loaded if path.endswith(large)) == once
        found = translated(tab, "\n".join(lines)).split("\n")
        assert sum(a == b for a, b in zip(found, expected, strict=True)) >= 47
        tab.fill("#source", "\n".join(lines_of("text/validation.en", 50)))  # is interrupted
        tab.until("Translating")
        assert translated(tab, "How are you?\n\n<漢>") == "Wie geht es dir?\n\n<漢>"
    tab.reload()  # The server has stopped.
    tab.until("Ready")
    assert translated(tab, lines[0]) == found[0]
    assert tab.problems == []


@pytest.mark.slow
def test_a_new_version_replaces_the_old_one_and_hosts_may_unpack(page, tab, tokenizer, tmp_path):
    export_web(new_model(tokenizer), tokenizer, tmp_path / "new", languages=("en", "ar"))
    with local_server() as server:
        serve(server, page / "int8_weights", Content_Encoding="gzip")
        tab.goto(f"{server.url}/sub/")
        tab.locator("#target[dir=ltr][lang=de]").wait_for()
        serve(server, tmp_path / "new")
        tab.reload()
        tab.locator("#target[dir=rtl][lang=ar]").wait_for()
        tab.until("Ready")
        assert tab.title() == "English – Arabic" and tab.problems == []
        assert len(tab.evaluate("() => caches.keys()")) == 1
