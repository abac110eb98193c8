"""Text that other runs make for a training: distillation and back-translation."""

import itertools

import pytest
from support import tiny_run

from keras_transformer import SamplingOptions, Translator
from keras_transformer.errors import UserError
from keras_transformer.runs.run import Run
from keras_transformer.training import train
from keras_transformer.training.run import translate_corpora as module


@pytest.fixture(scope="module", autouse=True)
def few_lines():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STREAMED_LINES", 25)
        yield


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Run:
    """A run that translates in both directions."""
    data, evaluation = {"both_directions": True}, {"min_length": 4, "no_repeat_ngram_size": 1}
    train(run := new_run(tmp_path_factory.mktemp("teacher"), data, evaluation))
    return run


def new_run(directory, data, evaluation=()) -> Run:
    training = {"validation_bleu_sentences": 0, "accumulation_steps": 1, "steps": 2}
    sections = {"data": data, "evaluation": dict(evaluation), "training": training}
    return tiny_run.new_run(directory, **sections)


def corpora_of(teacher):
    """A corpus with made targets, one with made sources, and one that no model makes."""
    translated_by = str(teacher.directory)
    return [
        {"source": "text.en", "translated_by": translated_by},
        {"target": "text.de", "translated_by": translated_by, "sampled": True, "tag": "<bt>"},
        {"source": "text.en", "target": "text.de"},
    ]


@pytest.fixture(scope="module")
def whole(teacher, tmp_path_factory) -> Run:
    train(run := new_run(tmp_path_factory.mktemp("whole"), {"train": corpora_of(teacher)}))
    return run


def test_a_model_makes_the_side_that_is_missing(teacher, whole):
    folder = whole.directory.parent
    english, german = ((folder / f"text.{x}").read_text().splitlines() for x in ("en", "de"))
    translator = Translator.from_run(teacher)
    targets = translator.translate(english)
    drawn = translator.sample(german, SamplingOptions(), seed=whole.recipe.seed)
    sources = [hypothesis.text for (hypothesis,) in drawn]
    assert all(targets) and len({*sources}) > 1
    made = whole.directory / "translations"
    assert (made / "train.de").read_text().splitlines() == targets
    assert (made / "train.1.en").read_text().splitlines() == sources
    assert len([*made.iterdir()]) == 2
    pairs = [*whole.text.pairs("train")]
    tagged = [f"<bt> {source}" if source else "" for source in sources]  # The store drops "".
    assert [source for source, _ in pairs] == [*english, *tagged, *english]
    assert [target for _, target in pairs] == [*targets, *german, *german]
    assert "<bt>" in "".join(whole.tokenizer().source_pieces)


def test_text_that_was_stopped_goes_on_with_the_same_bytes(teacher, whole, tmp_path, monkeypatch):
    run = new_run(tmp_path, {"train": corpora_of(teacher)})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(5, patch)  # in the second corpus
        train(run)
    (partial,) = (run.directory / "translations").glob(".partial-*-train.1.en")
    assert len(partial.read_text().splitlines()) == 25
    run = Run.resume(run.directory, run.recipe)
    module.translate_corpora(run)
    for name in ("train.de", "train.1.en"):
        made, expected = (x.directory / "translations" / name for x in (run, whole))
        assert made.read_bytes() == expected.read_bytes()


def stop_at(count, patch) -> None:
    """Stops, as by Ctrl-C, in place of the chunk number `count` that is translated."""
    calls = itertools.count(1)

    def stopping(original):
        def translate(*arguments, **settings):
            if next(calls) == count:
                raise KeyboardInterrupt
            return original(*arguments, **settings)

        return translate

    for name in ("translate", "sample"):
        patch.setattr(Translator, name, stopping(getattr(Translator, name)))


def test_the_package_s_run_makes_text(tmp_path):
    (tmp_path / "one.en").write_text("Tom sleeps.\n" * 50)
    data = {"train": {"source": "one.en", "translated_by": "tatoeba_en_de"}}
    run = new_run(tmp_path, data)
    module.translate_corpora(run)
    assert run.text.files("train")[1].read_text("utf-8") == "Tom schläft.\n" * 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"translated_by": "nothing"}, "nothing is no run folder"),
        (
            {"source": None, "target": "text.de", "translated_by": "tatoeba_en_de"},
            "must translate from de to en",
        ),
    ],
)
def test_a_teacher_of_another_direction_is_refused(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        new_run(tmp_path, {"train": {"source": "text.en", **change}})
    assert not (tmp_path / "run").exists()
