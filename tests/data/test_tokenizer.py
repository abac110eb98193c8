import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
from support.parallel_text import SENTENCES

from keras_transformer.data import CorpusError, Tokenizer, read_parallel
from keras_transformer.data.tokenizer import fits
from keras_transformer.errors import UserError


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=120)


@pytest.fixture(scope="module")
def separate_tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=60, joint=False)


def test_frames_are_what_encoder_decoder_and_loss_take(tokenizer):
    assert tokenizer.frame_source([7, 8]) == [7, 8, 3]
    assert tokenizer.frame_target([7, 8]) == ([2, 7, 8], [7, 8, 3])
    assert [fits([7, 8], length) for length in (2, 3)] == [False, True]


def test_text_comes_back(tokenizer, separate_tokenizer):
    _, targets = zip(*SENTENCES, strict=True)
    for each in (tokenizer, separate_tokenizer):
        assert each.decode_target(each.encode_target(targets)) == list(targets)


def test_special_ids(tokenizer):
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2, 3)
    assert tokenizer.encode_source([""]) == [[]]
    (ids,) = tokenizer.encode_source(["x漢y"])
    assert tokenizer.unk_id in ids
    (ids,) = tokenizer.encode_source(["<s> </s> <pad>"])  # text never gives the ids that steer
    assert {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}.isdisjoint(ids)


def test_special_ids_give_no_text(tokenizer):
    (ids,) = tokenizer.encode_target(["ein hund"])
    assert tokenizer.decode_target([[2, *ids, 3, 0, 0]]) == ["ein hund"]
    assert tokenizer.decode_target(np.array([[*ids, 3, 0]], np.int32)) == ["ein hund"]


def test_pieces_are_listed_by_id(tokenizer, separate_tokenizer):
    (ids,) = separate_tokenizer.encode_target(["ein hund"])
    pieces = [separate_tokenizer.target_pieces[id] for id in ids]
    assert "".join(pieces) == "▁ein▁hund"
    for each in (tokenizer, separate_tokenizer):
        assert each.source_pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
        assert len(each.source_pieces) == each.source_vocabulary_size
        assert len(each.target_pieces) == each.target_vocabulary_size


def test_no_character_of_the_training_text_is_unknown(tokenizer):
    for sentence in (line for pair in SENTENCES for line in pair):
        assert tokenizer.unk_id not in tokenizer.encode_source([sentence])[0]


def test_characters_of_long_lines_are_known():
    long = "word " * 900 + "Ω"  # SentencePiece by itself leaves out lines of more than 4,192 bytes
    tokenizer = Tokenizer.train([*SENTENCES, (long, long)], vocabulary_size=120)
    assert tokenizer.unk_id not in tokenizer.encode_source(["Ω"])[0]


def test_joint_vocabulary_is_shared(tokenizer, separate_tokenizer):
    assert tokenizer.joint
    assert tokenizer.source_vocabulary_size == tokenizer.target_vocabulary_size == 120
    assert tokenizer.encode_source(["ein hund"]) == tokenizer.encode_target(["ein hund"])
    assert not separate_tokenizer.joint
    assert separate_tokenizer.source_vocabulary_size == 60
    assert separate_tokenizer.unk_id in separate_tokenizer.encode_source(["für"])[0]
    assert separate_tokenizer.unk_id not in separate_tokenizer.encode_target(["für"])[0]


def test_whole_words():
    """All but the most frequent words are unknown. SentencePiece joins unknown neighbours."""
    pairs = [("ein hund ein , ein hund", "a dog a . a dog")]
    tokenizer = Tokenizer.train(pairs, 6, model_type="word", joint=False, normalization="identity")
    assert tokenizer.source_pieces[4:] == ["▁ein", "▁hund"]
    assert tokenizer.encode_source(["hund , katze ein"]) == [[5, tokenizer.unk_id, 4]]
    (text,) = tokenizer.decode_target(tokenizer.encode_target(["a dog ran"]))
    assert text.split() == ["a", "dog", "⁇"]
    with pytest.raises(UserError, match="vocabulary_size must be at most 7 for this text"):
        Tokenizer.train(pairs, 99, model_type="word", joint=False)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_tokenizer(model_type):
    first, second = (
        Tokenizer.train(SENTENCES, vocabulary_size=60, model_type=model_type) for _ in range(2)
    )
    assert first.fingerprint == second.fingerprint


def test_fingerprint_tells_tokenizers_apart(tokenizer, separate_tokenizer):
    other = Tokenizer.train(SENTENCES, vocabulary_size=119)
    swapped = Tokenizer(*reversed(separate_tokenizer._models))
    prints = [each.fingerprint for each in (tokenizer, separate_tokenizer, other, swapped)]
    assert len(set(prints)) == 4


def test_normalization():
    pairs = [("ａ ﬁne Dog", "Ein Hund")] * 2
    tokenizers = {
        name: Tokenizer.train(pairs, 30, normalization=name)
        for name in ("identity", "nmt_nfkc", "nmt_nfkc_cf")
    }
    for name, expected in [
        ("identity", "ａ ﬁne Dog"),
        ("nmt_nfkc", "a fine Dog"),
        ("nmt_nfkc_cf", "a fine dog"),
    ]:
        tokenizer = tokenizers[name]
        assert tokenizer.decode_target(tokenizer.encode_target(["ａ ﬁne Dog"])) == [expected]


@pytest.mark.parametrize("joint", [True, False])
def test_saved_and_loaded_it_is_the_same(tmp_path, tokenizer, separate_tokenizer, joint):
    saved = tokenizer if joint else separate_tokenizer
    saved.save(tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    assert loaded.fingerprint == saved.fingerprint
    assert loaded.joint == joint
    files = {path.name for path in (tmp_path / "tokenizer").iterdir()}
    assert files == {"tokenizer.json", "source.model"} | (set() if joint else {"target.model"})


def test_damaged_folder_is_refused(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "cut")
    model = tmp_path / "cut" / "source.model"
    model.write_bytes(model.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"source\.model is damaged"):
        Tokenizer.load(tmp_path / "cut")
    model.unlink()
    with pytest.raises(UserError, match="has no complete tokenizer"):
        Tokenizer.load(tmp_path / "cut")
    with pytest.raises(UserError, match="has no complete tokenizer"):
        Tokenizer.load(tmp_path / "absent")
    (tmp_path / "cut" / "tokenizer.json").write_text(json.dumps([1]))
    with pytest.raises(UserError, match="has no complete tokenizer"):
        Tokenizer.load(tmp_path / "cut")


@pytest.mark.parametrize(
    "name",
    ["../source.model", "/etc/hostname", "sub/source.model", ".hidden", "", "a\0b", "x" * 300],
)
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, tokenizer, name):
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "source.model").write_bytes(tokenizer.source_model)
    rewrite_digests(tmp_path / "tokenizer", {name: digest_of(tokenizer)})
    with pytest.raises(UserError, match="must name files in its own folder. Received: "):
        Tokenizer.load(tmp_path / "tokenizer")


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "source.model").rename(tmp_path / "elsewhere")
    (tmp_path / "tokenizer" / "source.model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="must name files in its own folder"):
        Tokenizer.load(tmp_path / "tokenizer")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (" " * 100_000, "at most 65,536 bytes"),
        ("[" * 50_000, "nested too deeply"),
        ('{"sha256": ["source.model"]}', "must name one or two models"),
        ('{"sha256": {}}', "must name one or two models"),
        ('{"sha256": {"a": "", "b": "", "c": ""}}', "must name one or two models"),
    ],
)
def test_a_summary_of_another_form_is_refused(tmp_path, tokenizer, content, message):
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=f"has no complete tokenizer: .*{message}"):
        Tokenizer.load(tmp_path / "tokenizer")


def digest_of(tokenizer):
    return hashlib.sha256(tokenizer.source_model).hexdigest()


def rewrite_digests(folder, digests):
    summary = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**summary, "sha256": digests}))


def test_bytes_that_are_no_model_are_refused():
    with pytest.raises(UserError, match="not a complete SentencePiece model"):
        Tokenizer(b"nonsense")


def test_model_with_other_special_ids_is_refused(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for pair in SENTENCES for line in pair),
        model_prefix=str(tmp_path / "other"),
        vocab_size=60,
        minloglevel=2,
    )
    with pytest.raises(UserError, match="special ids must be .*'pad_id': 0.*Received"):
        Tokenizer((tmp_path / "other.model").read_bytes())


def test_other_kinds_of_pieces_are_refused():
    with pytest.raises(ValueError, match="one of bpe, unigram, word. Received: model_type='char'"):
        Tokenizer.train([("a b", "c d")], 20, model_type="char")


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_too_large_vocabulary_names_the_possible_size(model_type):
    with pytest.raises(UserError, match="Received: vocabulary_size=5000") as caught:
        Tokenizer.train(SENTENCES, 5_000, model_type=model_type)
    possible = int(str(caught.value).split("at most ")[1].split()[0])
    assert caught.value.bound == possible
    assert Tokenizer.train(SENTENCES, possible, model_type).source_vocabulary_size == possible


def test_too_small_vocabulary_names_the_possible_size():
    with pytest.raises(UserError, match="Received: vocabulary_size=10") as caught:
        Tokenizer.train(SENTENCES, 10)
    possible = int(str(caught.value).split("at least ")[1].split(",")[0])
    assert caught.value.bound == possible
    assert Tokenizer.train(SENTENCES, possible).source_vocabulary_size == possible


@pytest.mark.parametrize("pairs", [[], [("", " ")]])
def test_empty_text_is_refused(pairs):
    with pytest.raises(UserError, match="empty text"):
        Tokenizer.train(pairs, 100)


def test_errors_of_the_text_pass_through(tmp_path):
    (tmp_path / "s").write_bytes(b"a dog\n\xff\n")
    (tmp_path / "t").write_bytes(b"ein hund\nzwei\n")
    with pytest.raises(CorpusError, match="s, line 2: text must be UTF-8"):
        Tokenizer.train(read_parallel(tmp_path / "s", tmp_path / "t"), 100)


def test_ctrl_c_while_the_text_is_read_ends_the_training():
    def interrupted():
        yield "one", "eins"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tokenizer.train(interrupted(), 17)


def test_generator_is_refused_where_it_would_run_dry():
    with pytest.raises(TypeError, match="iterable twice"):
        Tokenizer.train((pair for pair in SENTENCES), 60, joint=False)


def test_one_string_is_no_list_of_strings(tokenizer):
    with pytest.raises(TypeError, match="list of strings"):
        tokenizer.encode_source("a dog")


IN_GRAPH = """
import json, sys
import tensorflow as tf
import keras_hub

def encode(model, sentences):
    tokenizer = keras_hub.tokenizers.SentencePieceTokenizer(proto=model)
    in_graph = tf.function(tokenizer.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    return in_graph(tf.constant(sentences)).to_list()

sentences = json.load(sys.stdin)
print(json.dumps([encode(model, sentences) for model in sys.argv[1:]]))
"""


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(UserError, match=r"UTF-8 text. Received: 'a\\ud800'"):
        tokenizer.encode_source(["a", "a\ud800"])
    with pytest.raises(TypeError):
        tokenizer.encode_source([1])


@pytest.mark.slow
def test_keras_hub_gives_the_same_ids_in_a_tensorflow_graph(tmp_path):
    tokenizers = []
    for normalization in ("identity", "nmt_nfkc"):
        tokenizers.append(Tokenizer.train(SENTENCES, 120, normalization=normalization))
        tokenizers[-1].save(tmp_path / normalization)
    sentences = [line for pair in SENTENCES for line in pair]
    sentences += ["", " two  spaces ", "Großer ＨＵＮＤ", "漢字 x\ty", "<s> </s>"]
    models = [str(tmp_path / name / "source.model") for name in ("identity", "nmt_nfkc")]
    child = subprocess.run(
        [sys.executable, "-c", IN_GRAPH, *models],
        input=json.dumps(sentences),
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    expected = [tokenizer.encode_source(sentences) for tokenizer in tokenizers]
    assert expected[0] != expected[1]
    assert json.loads(child.stdout) == expected


def test_a_vocabulary_that_sentencepiece_cannot_count_is_refused():
    with pytest.raises(UserError, match="SentencePiece cannot train on this text: .*2147483648"):
        Tokenizer.train([("one", "eins")], vocabulary_size=2**31)
