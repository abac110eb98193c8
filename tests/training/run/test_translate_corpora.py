"""Text that other runs make for a training: distillation and back-translation."""

import itertools

import pytest
from support import tiny_run

from keras_transformer import SamplingOptions, Translator
from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
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
    directory = tmp_path_factory.mktemp("teacher")
    tiny_run.write_text(directory)
    return trained(
        directory, {"both_directions": True}, {"min_length": 4, "no_repeat_ngram_size": 1}
    )


def recipe_with(directory, data, evaluation=()) -> Recipe:
    tree = tiny_run.recipe_for(directory).model_dump(mode="json", exclude_none=True)
    tree["data"] |= data
    tree["evaluation"] |= dict(evaluation)
    tree["training"] |= {"validation_bleu_sentences": 0, "accumulation_steps": 1, "steps": 2}
    return Recipe.model_validate(tree)


def trained(directory, *sections) -> Run:
    run = Run.create(directory / "run", recipe_with(directory, *sections))
    train(run)
    return run


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
    directory = tmp_path_factory.mktemp("whole")
    tiny_run.write_text(directory)
    return trained(directory, {"train": corpora_of(teacher)})


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
    tiny_run.write_text(tmp_path)
    recipe = recipe_with(tmp_path, {"train": corpora_of(teacher)})
    for chunk, is_first in ((2, True), (4, False)):  # in the first corpus, and in the next
        run = (Run.create if is_first else Run.resume)(tmp_path / "run", recipe)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_at(chunk, patch)
            train(run, resume=not is_first)
    (partial,) = (run.directory / "translations").glob(".partial-*-train.1.en")
    assert len(partial.read_text().splitlines()) == 25
    run = Run.resume(tmp_path / "run", recipe)
    module.translate_corpora(run)
    for name in ("train.de", "train.1.en"):
        made, expected = (x.directory / "translations" / name for x in (run, whole))
        assert made.read_bytes() == expected.read_bytes()


def stop_at(count, patch) -> None:
    """Stops, as by Ctrl-C, in place of the chunk number `count` that is translated."""
    opened, calls = module.open_translator, itertools.count(1)

    def stopping(original):
        def translate(*arguments, **settings):
            if next(calls) == count:
                raise KeyboardInterrupt
            return original(*arguments, **settings)

        return translate

    def open_translator(run):
        translator = opened(run)
        translator.translate = stopping(translator.translate)
        translator.sample = stopping(translator.sample)
        return translator

    patch.setattr(module, "open_translator", open_translator)


def test_the_package_s_run_makes_text(tmp_path):
    (tmp_path / "one.en").write_text("Tom sleeps.\n" * 50)
    data = {"train": {"source": "one.en", "translated_by": "tatoeba_en_de"}}
    tiny_run.write_text(tmp_path)
    run = Run.create(tmp_path / "run", recipe_with(tmp_path, data))
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
    tiny_run.write_text(tmp_path)
    recipe = recipe_with(tmp_path, {"train": {"source": "text.en", **change}})
    with pytest.raises(UserError, match=message):
        Run.create(tmp_path / "run", recipe)
    assert not (tmp_path / "run").exists()
