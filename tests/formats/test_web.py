"""The page that translates in the browser: tokenizer and search in Node, the whole in Chromium."""

import io
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

import keras_transformer

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "support"
PAGE = Path(keras_transformer.__file__).parent / "formats" / "templates" / "web"
TEXT = ROOT / "saved_models" / "tatoeba_en_de" / "text"


def lines_of(name, count):
    return (TEXT / name).read_text("utf-8").splitlines()[:count]


@pytest.fixture(scope="session")
def node():
    """Runs a program in Node.js, and returns what it prints as JSON."""
    if not (found := shutil.which("node")):
        pytest.skip("node is not installed")

    def run(script, *arguments):
        words = [found, SCRIPTS / script, *arguments]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


UNIGRAM, BPE = {"model_type": "unigram"}, {"model_type": "bpe"}
MODELS = {
    "unigram": UNIGRAM,
    "bpe": BPE,
    "word": {"model_type": "word"},
    "char": {"model_type": "char"},
    "bpe_bytes": BPE | {"byte_fallback": True, "character_coverage": 0.98},
    "unigram_bytes": UNIGRAM | {"byte_fallback": True, "character_coverage": 0.98},
    "unigram_user": UNIGRAM | {"user_defined_symbols": ["<sep>", "ing", "ing a"]},
    "bpe_user": BPE | {"user_defined_symbols": ["<sep>", "ing", "ing a"]},
    "bpe_identity": BPE | {"normalization_rule_name": "identity"},
    "unigram_fold": UNIGRAM | {"normalization_rule_name": "nmt_nfkc_cf", "unk_surface": "?"},
    "spaces": BPE | {"remove_extra_whitespaces": False},
    "no_dummy": UNIGRAM | {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "suffix": UNIGRAM | {"treat_whitespace_as_suffix": True},
    "bpe_unused": BPE,
    "unigram_unused": UNIGRAM,
    "word_unused": {"model_type": "word"},
    "char_unused": {"model_type": "char"},
}
ODD = [
    *(
        "",
        " ",
        "  a  b ",
        "\u3000ａｂｃ　①②㍿",
        "ﬁnd ﬂour",
        "e\u0301te\u0301",
        "\u200b\u200dx",
        "\u200b",
    ),
    *(
        "한국어 텍스트",
        "\u1112\u1161\u11ab",
        "日本語カタカナ ｶﾀｶﾅ ｶﾞ",
        "\tTab\u00a0nbsp",
        "😀 👩‍👩‍👧 emoji",
        "x\u00ad-y",
    ),
    *(
        "½ ² ™ …",
        "Привет",
        "\ufeffBOM",
        "▁under ▁ bar▁",
        "▁",
        "Ω Å K",
        "ﷺ",
        "a\r\nb",
        "<sep>x <sep> y<sep>",
    ),
    *(
        "q" * 300,
        "sing a ing aing",
        "İstanbul ß ẞ",
        "¨ ´ ¸",
        "<s> </s> <unk> <0x41>",
        "a\0b",
        "שלום עולם",
        "\u0e33",
    ),
]


def write_models(folder, lines):
    generator = random.Random(1)
    pool = [chr(x) for x in range(1, 0x3000) if not 0xD800 <= x < 0xE000] + list("🎉𝒳𐍈")
    odd = ODD + ["".join(generator.choices(pool, k=generator.randint(1, 30))) for _ in range(300)]
    special = dict(pad_id=0, unk_id=1, bos_id=2, eos_id=3, minloglevel=2, hard_vocab_limit=False)
    for name, options in MODELS.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, vocab_size=500, **special, **options
        )
        proto = ModelProto.FromString(model.getvalue())
        for piece in [x for x in proto.pieces if x.type == 1][::3] if "unused" in name else []:
            piece.type = 5
        (folder / f"{name}.model").write_bytes(proto.SerializeToString())
        processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        sizes = [generator.randint(0, 12) for _ in range(300)]
        rows = [[generator.randrange(processor.get_piece_size()) for _ in range(n)] for n in sizes]
        texts = [*lines, *odd]
        rows += processor.encode(texts)
        cases = {
            "encoded": list(zip(texts, processor.encode(texts), strict=True)),
            "decoded": list(zip(rows, processor.decode(rows), strict=True)),
        }
        (folder / f"{name}.model.json").write_text(json.dumps(cases))


def test_ids_and_texts_are_those_of_sentencepiece(node, tmp_path):
    write_models(tmp_path, lines_of("test.en", 200) + lines_of("test.de", 200))
    found = node("sentencepiece_cases.mjs", PAGE / "sentencepiece.js", tmp_path)
    assert {name: x["wrong"][:3] for name, x in found.items() if x["wrong"]} == {}
    assert len(found) == len(MODELS)
