"""Encoded text on disk."""

import shutil

import pytest
from support.parallel_text import SENTENCES, RepeatingTokenizer

from keras_transformer.data import CorpusError, TokenStore, read_parallel
from keras_transformer.data.parallel_text import Corpora
from keras_transformer.errors import UserError


def build(directory, pairs, tokenizer, **options):
    return TokenStore.build(directory, pairs, tokenizer, progress=False, **options)


def test_it_holds_the_pieces_of_every_pair(tmp_path, tokenizer):
    store = build(tmp_path / "store", SENTENCES, tokenizer)
    assert len(store) == len(SENTENCES)
    for index, (source, target) in enumerate(SENTENCES):
        source_pieces, target_pieces = store.pair(index)
        assert source_pieces.tolist() == tokenizer.encode_source([source])[0]
        assert target_pieces.tolist() == tokenizer.encode_target([target])[0]
        assert store.lengths("source")[index] == len(source_pieces)
        assert store.lengths("target")[index] == len(target_pieces)
    assert store.pair(-1)[0].tolist() == store.pair(len(SENTENCES) - 1)[0].tolist()
    with pytest.raises(IndexError):
        store.pair(len(SENTENCES))


def test_ids_take_two_bytes_where_they_can(tmp_path):
    class LargeTokenizer(RepeatingTokenizer):
        target_vocabulary_size = 65_537

    small = build(tmp_path / "small", [("2 64999", "3 7")], RepeatingTokenizer())
    large = build(tmp_path / "large", [("2 7", "3 65536")], LargeTokenizer())
    assert (tmp_path / "small" / "source.ids").stat().st_size == 2 * 2
    assert (tmp_path / "large" / "target.ids").stat().st_size == 3 * 4
    assert small.pair(0)[0].tolist() == [64_999] * 2
    assert large.pair(0)[1].tolist() == [65_536] * 3


def test_it_reports_what_was_left_out(tmp_path, tokenizer):
    pairs = [*SENTENCES, ("", "leer"), ("empty", " "), ("", ""), ("word " * 10_000, "wort")]
    store = build(tmp_path / "store", pairs, tokenizer, max_length=64)
    assert len(store) == len(SENTENCES)
    assert store.report == (
        "6 pairs kept, 4 dropped: "
        "2 with an empty source, 1 with an empty target, 1 with more than 64 pieces"
    )
    assert TokenStore(tmp_path / "store").report == store.report
    assert build(tmp_path / "all", SENTENCES, tokenizer).report == "6 pairs kept"


def test_the_same_text_is_not_encoded_again(tmp_path, tokenizer):
    class CountingTokenizer(RepeatingTokenizer):
        calls = 0

        def encode_source(self, sentences):
            self.calls += 1
            return super().encode_source(sentences)

    counting = CountingTokenizer()
    build(tmp_path / "store", [("1 7", "2 7")], counting)
    store = build(tmp_path / "store", [("1 7", "2 7")], counting)
    assert counting.calls == 1
    assert store.pair(0)[1].tolist() == [7, 7]


def test_it_knows_how_many_pairs_each_corpus_has(tmp_path, tokenizer):
    parts = [[*SENTENCES[:2], ("", "leer")], SENTENCES[2:]]
    store = build(tmp_path / "store", Corpora(parts), tokenizer)
    assert store.corpora == TokenStore(tmp_path / "store").corpora == [2, 4]
    assert store.report == "6 pairs kept (2 + 4), 1 dropped: 1 with an empty source"
    moved = Corpora([[*parts[0], SENTENCES[2]], SENTENCES[3:]])
    assert build(tmp_path / "moved", moved, tokenizer).fingerprint != store.fingerprint
    message = r"no pair of corpus 1 is left for empty: 1 with an empty source\. Read: 1 pairs"
    with pytest.raises(UserError, match=message):
        build(tmp_path / "empty", Corpora([parts[0], parts[0][2:]]), tokenizer)
    single = build(tmp_path / "single", SENTENCES, tokenizer)
    assert (
        build(tmp_path / "one", Corpora([SENTENCES]), tokenizer).fingerprint == single.fingerprint
    )
    summary = tmp_path / "single" / "meta.json"  # as older ones
    summary.write_text(summary.read_text().replace('"corpora"', '"others"'))
    assert TokenStore(tmp_path / "single").corpora == [6]


class OtherTokenizer(RepeatingTokenizer):
    fingerprint = "other"


@pytest.mark.parametrize(
    ("pairs", "tokenizer", "max_length"),
    [
        ([("1 7", "2 8")], RepeatingTokenizer(), 5),
        ([("2 7", "1 7")], RepeatingTokenizer(), 5),
        ([("1 7", "2 7")], OtherTokenizer(), 5),
        ([("1 7", "2 7")], RepeatingTokenizer(), 6),
    ],
    ids=["text", "sides", "tokenizer", "max_length"],
)
def test_a_change_of_anything_builds_it_anew(tmp_path, pairs, tokenizer, max_length):
    folder = tmp_path / "store"
    first = build(folder, [("1 7", "2 7")], RepeatingTokenizer(), max_length=5)
    second = build(folder, pairs, tokenizer, max_length=max_length)
    assert first.fingerprint != second.fingerprint == TokenStore(folder).fingerprint


def test_a_folder_of_something_else_is_left_alone(tmp_path, tokenizer):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is not empty: remove it, or name another folder"):
        build(tmp_path, SENTENCES, tokenizer)
    with pytest.raises(UserError, match="is no complete token store: .*meta.json"):
        TokenStore(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize(
    "name", ["source.ids", "target.ids", "source.offsets", "target.offsets", "meta.json"]
)
def test_a_damaged_store_is_refused(tmp_path, tokenizer, name):
    build(tmp_path / "store", SENTENCES, tokenizer)
    path = tmp_path / "store" / name
    content = path.read_bytes()
    path.write_bytes(content[::-1])
    message = f"{tmp_path / 'store'} is no complete token store: .*again, remove it"
    with pytest.raises(UserError, match=message):
        build(tmp_path / "store", SENTENCES, tokenizer)
    path.write_bytes(content)
    assert len(build(tmp_path / "store", SENTENCES, tokenizer)) == len(SENTENCES)


def test_broken_text_leaves_the_old_store(tmp_path, tokenizer):
    build(tmp_path / "store", SENTENCES, tokenizer)
    (tmp_path / "s").write_text("a dog\na cat\n")
    (tmp_path / "t").write_text("ein hund\n")
    with pytest.raises(CorpusError):
        build(tmp_path / "store", read_parallel(tmp_path / "s", tmp_path / "t"), tokenizer)
    assert len(TokenStore(tmp_path / "store")) == len(SENTENCES)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "s", "t"}


@pytest.mark.parametrize("removed", [False, True])
def test_only_the_text_of_the_fingerprint_is_encoded(tmp_path, tokenizer, removed):
    expected = build(tmp_path / "store", SENTENCES, tokenizer).fingerprint
    if removed:
        shutil.rmtree(tmp_path / "store")
    with pytest.raises(UserError, match="was encoded from another text"):
        build(tmp_path / "store", SENTENCES[1:], tokenizer, fingerprint=expected)
    assert (tmp_path / "store").exists() != removed
    build(tmp_path / "store", SENTENCES, tokenizer, fingerprint=expected)
    assert TokenStore(tmp_path / "store").fingerprint == expected
