"""Runs with fewer pieces translate as before, and those with new pieces begin at their means."""

import keras
import numpy as np
import pytest
from support.command_line import succeeds
from support.contract import randomize, to_numpy
from support.foreign_models import SIZES
from support.parallel_text import SENTENCES

from keras_transformer import (
    Run,
    SearchOptions,
    Tokenizer,
    Transformer,
    Translator,
    UserError,
    load_recipe,
    open_model,
    open_translator,
    save_run,
    train,
)
from keras_transformer.formats import change_vocabulary
from keras_transformer.translation.word_forms import WordForms

V, BEAM = 60, SearchOptions(beam_size=4, n_best=4, length_penalty=0, max_length=12)
KEPT = [source for source, _ in SENTENCES[:2]]
TEXT = "".join(f"{line}\n" for line in KEPT)


@pytest.fixture(params=["joint", "two normalizations", "separate"])
def run(request, tmp_path):
    joint, kind = request.param != "separate", {"separate": "bpe"}.get(request.param, "unigram")
    rule = "identity" if request.param == "two normalizations" else None
    keras.utils.set_random_seed(1)
    tokenizer = Tokenizer.train(SENTENCES, V, kind, joint, target_normalization=rule)
    size = None if joint else V
    model = Transformer(V, target_vocabulary_size=size, use_logits_bias=joint, **SIZES)
    randomize(model)
    (tmp_path / "kept.txt").write_text(TEXT)
    return save_run(tmp_path / "run", model, tokenizer, options=BEAM)


def parts(run):
    return open_model(run), run.tokenizer()


def test_a_smaller_vocabulary_changes_nothing_of_what_stays(run, tmp_path):
    smaller = change_vocabulary(run, tmp_path / "small", [tmp_path / "kept.txt"])
    (model, old), (small, new) = parts(run), parts(smaller)
    assert new.target_vocabulary_size == new.source_vocabulary_size < V
    assert smaller.recipe.tokenizer.vocabulary_size == new.target_vocabulary_size
    places = [
        np.array([theirs.index(piece) for piece in ours])
        for ours, theirs in ((new.source_pieces, old.source_pieces),)
        + ((new.target_pieces, old.target_pieces),)
    ]
    ids = [
        np.array([encode.frame_source(x) for x in encode.encode_source(KEPT[:1])])
        for encode in (old, new)
    ]
    np.testing.assert_array_equal(places[0][ids[1]], ids[0])  # split as before
    full = Translator(model, old, BEAM).translate_nbest(KEPT)
    assert {id for row in full for x in row for id in x.ids} <= {*places[1].tolist()}
    target = np.array([[new.bos_id, *range(5, new.target_vocabulary_size)]])
    expected, found = (
        to_numpy(each({"source_ids": source, "target_ids": inputs}))
        for each, source, inputs in ((model, ids[0], places[1][target]), (small, ids[1], target))
    )
    np.testing.assert_allclose(found, expected[..., places[1]], atol=1e-5)


def test_what_a_line_is_read_as_stays(run, tmp_path):
    words = sorted({word for line in KEPT for word in line.split()})
    forms = WordForms(("Zoo",), ".", ("Zoo",), ("20",), words=tuple(words))
    forms.save(run.word_forms_path)
    (tmp_path / "upper.txt").write_text(TEXT.upper())
    new = change_vocabulary(run, tmp_path / "small", [tmp_path / "upper.txt"]).tokenizer()
    read = [forms.of_line(line.upper()).text for line in KEPT]
    assert not read[0].isupper()
    for line in (*read, "Zoo", "20"):
        assert new.source_surfaces(line) == run.tokenizer().source_surfaces(line)


def test_a_change_of_nothing_and_an_empty_text_are_refused(run, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    for keep, words in (([], ()), ([tmp_path / "empty.txt"], ("a",))):
        with pytest.raises(UserError, match="needs a text to keep, or words to add"):
            change_vocabulary(run, tmp_path / "new", keep, words)
    assert not (tmp_path / "new").exists()


def test_new_words_and_languages_begin_as_the_mean_of_their_pieces(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["Zoomania", "the park", ">>fra<<", "", "dogs"]
    (tmp_path / "words.txt").write_text("\n".join(words))
    succeeds("vocabulary", run.directory, "--output", "more", "--add", "words.txt")
    (model, old), (more, new) = parts(run), parts(Run.open("more"))
    for side in ("source", "target"):
        ours, theirs = (getattr(x, f"{side}_pieces") for x in (new, old))
        assert ours[:V] == theirs
        rows, before = (getattr(x, f"{side}_embedding").embeddings for x in (more, model))
        rows, before = to_numpy(rows), to_numpy(before)
        np.testing.assert_array_equal(rows[:V], before)
        for word, piece in (("Zoomania", "▁Zoomania"), (">>fra<<", ">>fra<<")):
            (pieces,) = getattr(old, f"encode_{side}")([word])
            np.testing.assert_allclose(rows[ours.index(piece)], before[pieces].mean(0), atol=1e-6)
        (ids,) = getattr(new, f"encode_{side}")(["Zoomania"])
        assert [ours[id] for id in ids] == ["▁Zoomania"]
    if model.use_logits_bias:
        bias = to_numpy(more.output_weights()[1])
        np.testing.assert_array_equal(bias[:V], to_numpy(model.output_weights()[1]))
    translator = open_translator("more", BEAM, target_language="fra")
    assert translator.tokenizer.source_prefix_ids == [new.source_pieces.index(">>fra<<")]

    if new.joint:
        return
    for language, line in {"en": "a Zoomania", "de": "Zoomania ein"}.items():
        (tmp_path / f"own.{language}").write_text("".join(f"{line} {x}\n" for x in range(256)))
    succeeds("init", "own.en", "own.de", "--from", "more", "--output", "own.yaml")
    train(own := Run.create("own", load_recipe("own.yaml", ["training.steps=1"])))
    assert own.tokenizer().files == new.files
