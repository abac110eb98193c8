"""10,000 fuzzed inputs of functions: the right result, or an error for the user; never another one.

hypothesis draws the same inputs in each run (`derandomize`), and prints the smallest that fails.
`EXAMPLES` says how many inputs each test draws.
"""

import gzip
import io
import itertools
import json
import math
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import requests
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.time_limit import time_limit

from keras_transformer._files import read_config
from keras_transformer.data import CorpusError, Tokenizer, TokenStore, read_lines, read_parallel
from keras_transformer.data.corpus import read_standard_input
from keras_transformer.decoding.options import SamplingOptions, SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import load_recipe
from keras_transformer.runs.checkpoints import checkpoint_folders
from keras_transformer.runs.run import Run
from keras_transformer.serving import ServedTranslation, ServingClient
from keras_transformer.serving.endpoint import NotFoundError, RestEndpoint, TemporaryError
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.translator import Translator

pytestmark = pytest.mark.slow

RUN = Path(__file__).parent / "fixtures" / "trained_run"
EXAMPLES = {
    "lines": 2500,
    "parallel": 900,
    "damaged gzip": 600,
    "recipe": 1800,
    "setting": 1000,
    "tokenizer": 500,
    "training text": 100,
    "options": 1000,
    "sentences": 200,
    "answer": 1000,
    "response": 600,
    "token store": 400,
    "checkpoint names": 200,
    "model file": 200,
}
FRAGMENTS = [
    *(bytes([byte]) for byte in b"\n\r\t\0 a\x0b\x0c\x1c\x7f"),
    *("ö \u2028 \u0085 \u0301 ש 😀 ▁ \ufeff <s> </s> <pad> ⁇".encode().split(b" ")),
    *(b"\r\n", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x1f\x8b", b"one two", b"x" * 70),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 300),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, 1e-320, math.inf, math.nan]),
    st.sampled_from(["", "nan", "inf", "none", "../..", "/dev/zero", "\0", "\udcff", "1e999"]),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
TEXT = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(b"".join) | st.binary(max_size=60)


def fuzz(name):
    """Draws `EXAMPLES[name]` inputs, the same in each run."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=EXAMPLES[name],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=checks,
    )


def result_or_refusal(function, *refusals):
    """The result, or None if one of the `refusals` was raised, with a message."""
    try:
        with time_limit(60):
            return function()
    except refusals as error:
        assert str(error).strip()
        return None


def expected_lines(data):
    """Lines by another way than the package's; and whether all of the bytes are text."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    ended = [line.removesuffix(b"\r") for line in lines[:-1]] + [x for x in lines[-1:] if x]
    good = list(itertools.takewhile(is_utf8, ended))
    return [line.decode() for line in good], len(good) == len(ended)


def is_utf8(line):
    return line.decode("utf-8", "ignore").encode() == line


def read_all(lines):
    """What was read, and whether it ended without an error."""
    found = []
    try:
        with time_limit(60):
            found.extend(iter_into(found, lines))
    except CorpusError as error:
        assert "line" in str(error)
        return found, False
    return found, True


def iter_into(found, lines):
    for line in lines:
        found.append(line)
    return ()


@fuzz("lines")
@given(TEXT)
def test_lines_of_any_bytes(tmp_path, monkeypatch, data):
    expected = expected_lines(data)
    path = tmp_path / "text"
    if data[:2] != b"\x1f\x8b":
        path.write_bytes(data)
        assert read_all(read_lines(path)) == expected
    path.write_bytes(gzip.compress(data, 1))
    assert read_all(read_lines(path)) == expected
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert read_all(read_standard_input()) == expected


@fuzz("parallel")
@given(TEXT, TEXT)
def test_parallel_text_of_any_bytes(tmp_path, one, other):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(gzip.compress(one, 1))
    target.write_bytes(gzip.compress(other, 1))
    pairs = result_or_refusal(lambda: list(read_parallel(source, target)), CorpusError)
    (sources, is_text), (targets, is_other_text) = expected_lines(one), expected_lines(other)
    if is_text and is_other_text and len(sources) == len(targets):
        assert pairs == list(zip(sources, targets, strict=True))
    else:
        assert pairs is None
    fields = [line.split("\t") for line in sources]
    rows = result_or_refusal(lambda: list(read_parallel(source)), CorpusError)
    is_table = is_text and all(len(row) == 2 for row in fields)
    assert rows == ([tuple(row) for row in fields] if is_table else None)


@fuzz("damaged gzip")
@given(TEXT, st.data())
def test_damaged_gzip_files(tmp_path, data, draw):
    packed = damaged(gzip.compress(data, mtime=0), draw)
    path = tmp_path / "text.gz"
    path.write_bytes(packed)
    result_or_refusal(lambda: list(read_lines(path)), CorpusError)


def damaged(data, draw):
    """Bytes with a few of them changed, inserted or removed."""
    data = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        place = draw.draw(st.integers(0, len(data)))
        end = place + draw.draw(st.sampled_from([0, 1, 1, 1, 8, 10**9]))
        data[place:end] = draw.draw(st.binary(max_size=4))
    return bytes(data)


@pytest.fixture(scope="module")
def recipe_tree():
    return yaml.safe_load((RUN / "recipe.yaml").read_text())


@fuzz("recipe")
@given(st.data())
def test_recipes(tmp_path, recipe_tree, draw):
    text = yaml.safe_dump(recipe_tree)
    if draw.draw(st.booleans()):
        content = damaged(text.encode(), draw)
    else:
        tree = json.loads(json.dumps(recipe_tree))
        for _ in range(draw.draw(st.integers(1, 3))):
            section = tree
            while True:
                key = draw.draw(st.sampled_from(sorted(section)))
                if not isinstance(section[key], dict) or draw.draw(st.booleans()):
                    break
                section = section[key]
                if not section:
                    section[""] = None
            section[key] = draw.draw(TREES)
        content = json.dumps(tree).encode()
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    recipe = result_or_refusal(lambda: load_recipe(path), UserError)
    if recipe is not None:
        path.write_text(recipe.to_yaml(), encoding="utf-8")
        assert load_recipe(path) == recipe


KEYS = st.sampled_from(
    "name seed data data.max_length data.download.url model.preset model.d_model training.steps "
    "training.ema_momentum evaluation.beam_size evaluation.tokenize . .. x".split()
)


@fuzz("setting")
@given(KEYS, st.one_of(TREES.map(str), st.text(max_size=20), TREES.map(repr)))
def test_settings_of_recipes(key, value):
    for setting in (f"{key}={value}", value):
        result_or_refusal(lambda text=setting: load_recipe("quickstart", [text]), UserError)


@fuzz("tokenizer")
@given(st.data())
def test_tokenizer_folders(tmp_path, draw):
    folder = tmp_path / "tokenizer"
    shutil.copytree(RUN / "tokenizer", folder, dirs_exist_ok=True)
    name = draw.draw(st.sampled_from(["tokenizer.json", "tokenizer.json", "source.model"]))
    if draw.draw(st.booleans()):
        content = damaged((folder / name).read_bytes(), draw)
    else:
        content = json.dumps(draw.draw(TREES)).encode()
    (folder / name).write_bytes(content)
    original = Tokenizer.load(RUN / "tokenizer")
    tokenizer = result_or_refusal(lambda: Tokenizer.load(folder), UserError)
    assert tokenizer is None or tokenizer.fingerprint == original.fingerprint


@fuzz("training text")
@given(
    st.lists(TEXT.map(lambda data: data.decode("utf-8", "replace")), max_size=30),
    st.sampled_from([4, 5, 9, 30, 300, 2**31, -1]),
    st.sampled_from(["bpe", "unigram"]),
    st.booleans(),
)
def test_tokenizers_of_any_text(sentences, vocabulary_size, model_type, joint):
    pairs = list(zip(sentences, sentences[::-1], strict=True))
    tokenizer = result_or_refusal(
        lambda: Tokenizer.train(pairs, vocabulary_size, model_type, joint), UserError
    )
    if tokenizer is not None:
        assert tokenizer.target_vocabulary_size == vocabulary_size
        assert len(tokenizer.encode_source(sentences)) == len(sentences)


@fuzz("options")
@given(st.sampled_from([SearchOptions, SamplingOptions]), st.data())
def test_options_of_search(kind, draw):
    names = st.sampled_from([*kind.model_fields, "unknown"])
    values = draw.draw(st.dictionaries(names, SCALARS | TREES, max_size=3))
    options = result_or_refusal(lambda: kind(**values), ValidationError)
    if options is not None:
        assert hash(options) == hash(kind(**options.model_dump()))
        numbers = [x for x in options.model_dump().values() if isinstance(x, int | float)]
        assert all(abs(x) <= 2**31 - 1 and math.isfinite(np.float32(x)) for x in numbers)
        assert getattr(options, "temperature", 1) > 0


@pytest.fixture(scope="module")
def translator():
    run = Run.open(RUN)
    return Translator(open_model(run), run.tokenizer(), SearchOptions(beam_size=1, max_length=4))


WORDS = st.one_of(
    TEXT.map(lambda data: data.decode("utf-8", "replace")),
    st.text(max_size=20),
    st.sampled_from(["", " ", "\n", "one", "\udcff", "x" * 3000]),
)


@fuzz("sentences")
@given(st.lists(WORDS | TREES, max_size=4), st.none() | st.lists(WORDS | TREES, max_size=4))
def test_sentences_and_prefixes(translator, sentences, prefixes):
    found = result_or_refusal(
        lambda: translator.translate(sentences, prefixes), UserError, ValueError, TypeError
    )
    if found is not None:
        assert len(found) == len(sentences)
        assert all(isinstance(text, str) for text in found)


class Answers:
    """An endpoint with an answer that a test draws."""

    address, model, version = "here", "m", None

    def __init__(self, answer):
        self.answer = answer

    def predict(self, signature, inputs):
        return self.answer


ROWS = st.lists(SCALARS | st.lists(SCALARS, max_size=3), max_size=3)
OUTPUTS = st.fixed_dictionaries(
    {}, optional={name: ROWS for name in ("translation", "score", "translations", "scores")}
)


@fuzz("answer")
@given(OUTPUTS | TREES, st.integers(1, 3))
def test_answers_of_servers(answer, count):
    client = ServingClient(Answers(answer), retries=0)
    texts = ["a"] * count
    found = result_or_refusal(lambda: client.translate(texts), UserError)
    assert found is None or (len(found) == count and all(map(is_translation, found)))
    found = result_or_refusal(lambda: client.translate_nbest(texts, 2), UserError)
    assert found is None or len(found) == count
    assert all(is_translation(x) for best in found or () for x in best)


def is_translation(found):
    return (
        isinstance(found, ServedTranslation)
        and isinstance(found.text, str)
        and isinstance(found.score, int | float)
    )


JSON = st.one_of(TREES, OUTPUTS.map(lambda outputs: {"outputs": outputs})).map(
    lambda tree: json.dumps(tree).encode("utf-8", "surrogatepass")
)
STATES = st.fixed_dictionaries({"model_version_status": st.lists(TREES, max_size=2) | TREES}).map(
    lambda tree: json.dumps(tree).encode()
)


@fuzz("response")
@given(JSON | STATES | st.binary(max_size=30), st.sampled_from([200, 200, 404, 400, 503, 302, 999]))
def test_responses_over_http(content, status):
    response = requests.Response()
    response.status_code, response._content = status, content
    endpoint = RestEndpoint("m", "http://localhost:1", None, timeout=5)
    endpoint._session = SimpleNamespace(request=lambda *_, **__: response)
    try:
        endpoint.states()
    except (UserError, TemporaryError, NotFoundError):
        pass  # `ServingClient` explains them
    found = result_or_refusal(
        lambda: ServingClient(endpoint, retries=0).translate(["a"]), UserError
    )
    assert found is None or is_translation(*found)


@fuzz("token store")
@given(st.data())
def test_damaged_token_stores(tmp_path, store, draw):
    folder = tmp_path / "store"
    shutil.copytree(store, folder, dirs_exist_ok=True)
    path = draw.draw(st.sampled_from(sorted(folder.iterdir())))
    if path.name == "meta.json" and draw.draw(st.booleans()):
        path.write_text(json.dumps(draw.draw(TREES)))
    else:
        path.write_bytes(damaged(path.read_bytes(), draw))
    found = result_or_refusal(lambda: TokenStore(folder), UserError)
    if found is not None:
        result_or_refusal(lambda: [found.pair(n) for n in range(len(found))], UserError)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "store"
    pairs = [("one", "eins"), ("two", "zwei"), ("twenty-six", "sechsundzwanzig")]
    TokenStore.build(folder, pairs, Tokenizer.load(RUN / "tokenizer"), progress=False)
    return folder


NAMES = st.one_of(
    st.integers(0, 10**9).map(lambda n: f"step-{n:08d}"),
    st.sampled_from(["step-", "step-0000001", "step-00000001.bak", ".partial-step-00000001", "a"]),
    st.text("step-0123456789.٣", min_size=1, max_size=14),
).filter(lambda name: name not in (".", ".."))


@fuzz("checkpoint names")
@given(st.lists(NAMES, unique=True, max_size=5))
def test_folders_beside_checkpoints(tmp_path, names):
    folder = tmp_path / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    for name in names:
        (folder / name).mkdir(parents=True)
    own = [name for name in names if is_checkpoint(name)]
    assert [path.name for path in checkpoint_folders(folder)] == sorted(own)


def is_checkpoint(name):
    digits = name.removeprefix("step-")
    return len(name) == 13 and len(digits) == 8 and digits.isascii() and digits.isdigit()


@fuzz("model file")
@given(st.data())
def test_damaged_model_files(tmp_path, draw):
    path = tmp_path / "model.keras"
    path.write_bytes(damaged((RUN / "model.keras").read_bytes(), draw))
    config = result_or_refusal(lambda: read_config(path), UserError)
    assert config is None or isinstance(config, dict)


def test_ten_thousand_inputs_are_drawn():
    assert sum(EXAMPLES.values()) >= 10_000
