import numpy as np
import pytest
import sentencepiece
from support.parallel_text import LOSSLESS_TARGET, SENTENCES

from keras_transformer.data import Tokenizer
from keras_transformer.data.tokenizer import most_pieces
from keras_transformer.data.tokenizer_training import VocabularySizeError
from keras_transformer.errors import UserError


@pytest.fixture(scope="module")
def separate_tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=60, joint=False)


def test_frames_are_what_encoder_decoder_and_loss_take(tokenizer):
    assert tokenizer.frame_source([7, 8]) == [7, 8, 3]
    assert tokenizer.frame_target([7, 8]) == ([2, 7, 8], [7, 8, 3])
    assert [most_pieces(tokenizer, side, 9) for side in ("source", "target")] == [8, 8]


def test_prefixes_and_a_missing_source_eos_are_in_the_frames_and_saved(tokenizer, tmp_path):
    prefixes = {"source_prefix": ["b", "▁a"], "target_prefix": ["c"], "source_eos": False}
    framed = Tokenizer(tokenizer.source_model, **prefixes)
    (c,), (b, a) = ([framed.source_pieces.index(x) for x in y] for y in ("c", ["b", "▁a"]))
    framed.save(tmp_path / "tokenizer")
    for each in (framed, Tokenizer.load(tmp_path / "tokenizer")):
        assert each.frame_source([7, 8]) == [b, a, 7, 8]
        assert each.frame_target([7, 8]) == ([2, c, 7, 8], [c, 7, 8, 3])
        assert [most_pieces(each, side, 9) for side in ("source", "target")] == [7, 7]
        (ids,) = each.encode_target(["ein hund"])
        assert each.decode_target([[c, *ids, 3], ids]) == ["ein hund"] * 2
        assert each.frames == framed.frames != tokenizer.frames
    with pytest.raises(UserError, match=r"target_prefix must be pieces .*\['>>por<<'\]"):
        Tokenizer(tokenizer.source_model, target_prefix=[">>por<<"])


def test_special_ids(tokenizer):
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2, 3)
    assert tokenizer.encode_source([""]) == [[]]
    (ids,) = tokenizer.encode_source(["x漢y"])
    assert tokenizer.unk_id in ids
    (ids,) = tokenizer.encode_source(["<s> </s> <pad>"])  # text never gives the ids that steer
    assert {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}.isdisjoint(ids)


def test_text_comes_back_and_special_ids_give_none(tokenizer, separate_tokenizer):
    _, targets = zip(*SENTENCES, strict=True)
    for each in (tokenizer, separate_tokenizer):
        assert each.decode_target(each.encode_target(targets)) == list(targets)
    (ids,) = tokenizer.encode_target(["ein hund"])
    assert tokenizer.decode_target([[2, *ids, 3, 0, 0]]) == ["ein hund"]
    assert tokenizer.decode_target(np.array([[*ids, 3, 0]], np.int32)) == ["ein hund"]


def test_no_character_of_the_training_text_is_unknown():
    long = "word " * 900 + "Ω"  # SentencePiece by itself leaves out lines of more than 4,192 bytes
    bars = "▅ Ψ"  # and those that have ▅
    tokenizer = Tokenizer.train([*SENTENCES, (long, long), (bars, bars)], vocabulary_size=120)
    lines = [line for pair in SENTENCES for line in pair]
    for ids in tokenizer.encode_source([*lines, "Ω", "Ψ"]):
        assert tokenizer.unk_id not in ids


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [("identity", "ａ ﬁne Dog"), ("nmt_nfkc", "a fine Dog"), ("nmt_nfkc_cf", "a fine dog")],
)
def test_normalization(normalization, expected):
    tokenizer = Tokenizer.train([("ａ ﬁne Dog", "Ein Hund")] * 2, 30, normalization=normalization)
    assert tokenizer.decode_target(tokenizer.encode_target(["ａ ﬁne Dog"])) == [expected]


TARGETS = {
    "zero-width non-joiner": "می\u200cخواهم کتاب\u200cها را بخوانم",
    "no-break spaces": "«\u00a0Oui\u202f!\u00a0» 10\u2009km\u3000二",
    "decomposed accents": "e\u0301le\u0300ve a\u0308 ș",
    "compatibility characters": "ﬁn Ⅷ 10² ½ ㈱ ™ № ﷺ ㎏ ｶﾞ ｢ＡＢＣ」！３５℃（①）…",
    "emoji": "👩\u200d💻 ❤\ufe0f 👍🏽! Donau\u00adkanal by\u2011by 🇦🇹.",
    "Thai and Lao vowels": "น้ำ ຄໍາ ຄຳ",
    "controls": "a\tb \x01\x7f\u200b\ufeff c\u2028d\u0085e",
}


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("text", TARGETS.values(), ids=TARGETS)
def test_targets_come_back_without_normalization(text, model_type, joint):
    def of_size(size):
        try:
            return Tokenizer.train(pairs, size, model_type, joint, **LOSSLESS_TARGET)
        except VocabularySizeError as error:
            return of_size(error.bound)

    pairs = [*SENTENCES, (text, text)]
    tokenizer = of_size(120)
    assert tokenizer.decode_target(tokenizer.encode_target([text])) == [text]


def test_two_models_share_ids_and_normalize_each_their_own():
    pairs = [("ａ ﬁne Dog", "½ a ﬁne\u200cDog")] * 2
    tokenizer = Tokenizer.train(pairs, 30, **LOSSLESS_TARGET)
    assert tokenizer.joint and tokenizer.source_model != tokenizer.target_model
    assert tokenizer.source_pieces == tokenizer.target_pieces
    plain, source = tokenizer.encode_source(["a fine Dog", "ａ ﬁne\u200cDog"])
    assert plain == source == tokenizer.encode_target(["a fine Dog"])[0]
    both = [tokenizer.encode_source(["½"])[0], *tokenizer.encode_target(["½", " a   a▁ a "])]
    # The source text had no "½" after its normalization: "1", "⁄" and "2" are unknown.
    assert tokenizer.decode_target(both) == [" ⁇ ", "½", "a a  a"]
    same = {"target_normalization": "nmt_nfkc"}  # is one model, as without the option
    one = [Tokenizer.train(SENTENCES, 120, **options).fingerprint for options in ({}, same)]
    assert one[0] == one[1]


@pytest.mark.parametrize("kind", ["one model", "one vocabulary", "separate"])
def test_saved_and_loaded_it_is_the_same(tmp_path, tokenizer, separate_tokenizer, kind):
    saved = tokenizer if kind == "one model" else separate_tokenizer
    if kind == "one vocabulary":
        saved = Tokenizer.train(SENTENCES, 120, **LOSSLESS_TARGET)
    saved.save(tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    assert loaded.fingerprint == saved.fingerprint
    assert loaded.joint == saved.joint == (kind != "separate")
    files = {path.name for path in (tmp_path / "tokenizer").iterdir()}
    models = {"source.model"} if kind == "one model" else {"source.model", "target.model"}
    assert files == {"tokenizer.json", *models}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("source.model", "cut", r"source\.model is damaged"),
        ("source.model", None, "has no complete tokenizer: 'source.model'"),
        ("tokenizer.json", " " * 2**25, "at most 16,777,216 bytes"),
        ("tokenizer.json", '{"sha256": {"../source.model": ""}}', "must name source.model and"),
        (
            "tokenizer.json",
            '{"sha256": {"source.model": ""}, "source_prefix": "b"}',
            "have two lists, and true or false",
        ),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, tokenizer, name, content, message):
    tokenizer.save(tmp_path / "tokenizer")
    path = tmp_path / "tokenizer" / name
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path / "tokenizer")


def of_others(path, **options):
    lines = iter([line for pair in SENTENCES for line in pair])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_prefix=str(path), minloglevel=2, **options
    )
    return path.with_suffix(".model")


@pytest.mark.parametrize(
    "options",
    [
        {"vocab_size": 60},
        {"vocab_size": 60, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        {"vocab_size": 340, "byte_fallback": True, "pad_id": 9, "pad_piece": "[PAD]"},
        {"vocab_size": 70, "model_type": "bpe", "user_defined_symbols": ["<pad>", "<sep>"]},
    ],
)
def test_sentencepiece_files_of_others_split_alike_with_our_ids(options, tmp_path):
    path = of_others(tmp_path / "other", **options)
    with pytest.raises(UserError, match="special ids must be .*Received.*from_sentencepiece"):
        Tokenizer(path.read_bytes())
    other = sentencepiece.SentencePieceProcessor(str(path))
    tokenizer = Tokenizer.from_sentencepiece(path)
    assert tokenizer.source_pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    for text in (*SENTENCES[0], "a dog? <sep> Ω"):
        ids = tokenizer(text)
        pieces = other.id_to_piece(other.encode(text))
        found = [tokenizer.source_pieces[id] for id in ids]
        assert [x.removesuffix("#") for x in found] == pieces
        assert tokenizer.decode(ids) == other.decode(other.encode(text))
    separate = Tokenizer.from_sentencepiece(
        path, of_others(tmp_path / "b", vocab_size=55), source_eos=False
    )
    assert (separate.joint, separate.target_vocabulary_size) == (False, 56)
    assert separate.frame_source([7]) == [7]


def test_a_string_gives_a_list_of_ids_and_a_list_gives_lists(tokenizer, separate_tokenizer):
    text, other = SENTENCES[0]
    (ids,) = tokenizer.encode_source([text])
    assert tokenizer(text) == tokenizer.encode(text) == ids
    assert tokenizer([text, other]) == [ids, *tokenizer.encode_source([other])]
    assert tokenizer.decode(ids) == tokenizer.decode(np.array([2, *ids, 3, 0])) == text
    assert tokenizer.decode(np.array([[*ids, 3], [*ids, 0]])) == [text, text]
    assert (tokenizer([]), tokenizer("")) == ([], [])
    each = separate_tokenizer
    assert each.decode(each(text, "source"), "source") == text
    assert each.decode(each([other], "target"), "target") == [other]
    with pytest.raises(ValueError, match="two vocabularies need a `side`"):
        each(text)


def test_the_same_text_gives_the_same_tokenizer_as_sentences_of_one_language_too():
    lines = [line for pair in SENTENCES for line in pair]
    for kind in ("bpe", "unigram"):
        assert (
            Tokenizer.train(iter(lines), 80, kind).files
            == Tokenizer.train(SENTENCES, 80, kind).files
        )
    lossless = Tokenizer.train(lines, 80, **LOSSLESS_TARGET)
    assert lossless.joint and lossless.source_model != lossless.target_model
    with pytest.raises(TypeError, match="`pairs` must be a list"):
        Tokenizer.train("train.en", 60)


@pytest.mark.parametrize(
    ("model_type", "size", "rule"),
    [("bpe", 5_000, "at most"), ("unigram", 5_000, "at most"), ("bpe", 10, "at least")],
)
def test_a_vocabulary_of_another_size_names_the_possible_size(model_type, size, rule):
    with pytest.raises(UserError, match=f"{rule} .*vocabulary_size={size}") as caught:
        Tokenizer.train(SENTENCES, size, model_type=model_type)
    possible = caught.value.bound
    assert f"{rule} {possible}" in str(caught.value)
    assert Tokenizer.train(SENTENCES, possible, model_type).source_vocabulary_size == possible


@pytest.mark.parametrize(
    "options",
    [
        *({"model_type": kind} for kind in ("bpe", "unigram", "word")),
        {"joint": False},
        LOSSLESS_TARGET,
        {"normalization": "nmt_nfkc_cf"},
        {"normalization": "identity"},
    ],
    ids=str,
)
def test_a_tag_is_one_piece_at_the_beginning_of_a_source(options):
    tags = ("<News>", "２x,y")  # NFKC makes a narrow 2 of the first character.
    tokenizer = Tokenizer.train(SENTENCES, 60, tags=tags, **options)
    plain, *tagged = tokenizer.encode_source(["a dog", *(f"{tag} a dog" for tag in tags)])
    assert tagged == [[4, *plain], [5, *plain]]
    assert tokenizer.source_pieces[4].lower() == "▁<news>"
    assert (tokenizer.target_pieces[4] == tokenizer.source_pieces[4]) == tokenizer.joint


def test_a_tag_of_a_language_is_that_of_an_imported_model():
    tokenizer = Tokenizer.train(SENTENCES, 60, tags=(">>deu<<", ">>heb<<"))
    assert tokenizer.tag_ids == {">>deu<<": 4, ">>heb<<": 5}
    (plain,) = tokenizer.encode_source(["a dog"])
    hebrew = tokenizer.with_languages(None, "he")
    assert hebrew.frame_source(plain)[:-1] == [5, *plain]
    found = tokenizer.encode_source([">>deu<< a dog", ">>fra<< a dog"])
    assert found == [[4, *plain], [tokenizer.unk_id, *plain]]


@pytest.mark.parametrize(
    ("pairs", "size", "message"),
    [
        ([("", " ")], 100, "empty text"),
        ([("one", "eins")], 2**31, "SentencePiece cannot train on this text: .*2147483648"),
    ],
)
def test_text_without_a_tokenizer_is_refused(pairs, size, message):
    with pytest.raises(UserError, match=message):
        Tokenizer.train(pairs, size)
    with pytest.raises(UserError, match="a rule of SentencePiece. Received: normalization='x'"):
        Tokenizer.train(pairs, size, normalization="x")


def test_only_lists_of_unicode_are_encoded(tokenizer):
    with pytest.raises(TypeError, match="list of strings"):
        tokenizer.encode_source("a dog")
    with pytest.raises(UserError, match=r"UTF-8 text. Received: 'a\\ud800'"):
        tokenizer.encode_source(["a", "a\ud800"])
    with pytest.raises(TypeError):
        tokenizer.encode_source([1])
