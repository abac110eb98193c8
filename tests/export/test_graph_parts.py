"""The tokenizer's operations against SentencePiece in Python, and computation in chunks."""

import pytest
import sentencepiece

from keras_transformer.data import Tokenizer

KINDS = {"joint": "tokenizer", "separate": "separate_tokenizer"}


@pytest.fixture(params=KINDS)
def both(request, exporting):
    """A tokenizer, and what its operations gave."""
    tokenizer = Tokenizer.load(exporting.folder / KINDS[request.param])
    return tokenizer, exporting.answers[request.param]


def test_any_text_has_the_ids_that_it_has_in_python(both):
    tokenizer, answers = both
    texts = [text.strip() for text in answers["texts"]]
    assert answers["source_ids"] == tokenizer.encode_source(texts)
    assert answers["target_ids"] == tokenizer.encode_target(texts)
    assert any(tokenizer.unk_id in ids for ids in answers["source_ids"])


def test_bytes_that_are_no_text_have_the_ids_that_sentencepiece_gives_them(both):
    tokenizer, answers = both
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.source_model)
    expected = [processor.encode(bytes.fromhex(text)) for text in answers["bytes"]]
    assert answers["bytes_ids"] == expected


def test_any_ids_give_the_text_that_they_give_in_python(both):
    tokenizer, answers = both
    rows = [[id for id in row if id != tokenizer.pad_id] for row in answers["ids"]]
    assert answers["decoded"] == tokenizer.decode_target(rows)
    assert any("⁇" in text for text in answers["decoded"])


def test_pieces_are_the_vocabulary_s_without_those_that_are_no_text(both):
    tokenizer, answers = both
    pieces = tokenizer.target_pieces
    specials = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    expected = [["" if id in specials else pieces[id] for id in row] for row in answers["ids"]]
    assert answers["pieces"] == expected


def test_rows_of_similar_length_go_together_and_come_back_in_order(exporting):
    """Lengths 1, 4, 2, 5, 2, 1, 9 and 8 tokens a chunk: 9 | 5 | 4 2 | 2 1 1, the longest first."""
    rows = exporting.answers["chunks"]["rows"]
    values, longest = exporting.answers["chunks"]["found"]
    assert longest == [2, 4, 4, 5, 2, 2, 9]
    assert values == [
        [2 * value if column < end else -7 for column, value in enumerate(row)]
        for row, end in zip(rows, longest, strict=True)
    ]


def test_no_rows_give_no_results(exporting):
    assert exporting.answers["chunks"]["empty"] == [[0, 9], [0]]
