"""A saved model carries its tokenizer, and refuses every other one."""

import keras
import pytest
from support.parallel_text import SENTENCES
from support.small_models import small_model

from keras_transformer import (
    ParallelDataset,
    SearchOptions,
    SlicedLogitsTrainer,
    Tokenizer,
    Transformer,
    Translator,
)
from keras_transformer.training import MaskedCrossentropy

SOURCES = [source for source, _ in SENTENCES]


def new_model() -> Transformer:
    model = Transformer(120, num_layers=1, d_model=16, num_heads=2, d_ff=8, dropout_rate=0.0)
    model.compile(keras.optimizers.Adam(0.02), MaskedCrossentropy())
    return model


@pytest.fixture(scope="module")
def model(tokenizer) -> Transformer:
    model = new_model()
    model.fit(ParallelDataset(SENTENCES, tokenizer, 256), epochs=3, verbose=0)
    return model


@pytest.mark.each_backend_if_slow
def test_a_trained_model_has_its_tokenizer_and_one_file_is_a_translator(model, tokenizer, tmp_path):
    options = SearchOptions(beam_size=2, length_penalty=1.5, max_length=9)
    translator = Translator(model, options=options)
    assert translator.tokenizer.files == tokenizer.files
    translator.save(tmp_path / "translator.keras")
    loaded = Translator.load(tmp_path / "translator.keras")
    assert loaded.tokenizer.files == tokenizer.files
    assert loaded.options == options
    assert loaded.translate(SOURCES) == translator.translate(SOURCES)
    assert Translator.load(tmp_path / "translator.keras", SearchOptions()).options.beam_size == 4

    again = keras.saving.load_model(tmp_path / "translator.keras")  # and trained further
    again.fit(ParallelDataset(SENTENCES, tokenizer, 256), verbose=0)
    again.save(tmp_path / "again.keras")
    assert Translator.load(tmp_path / "again.keras").tokenizer.files == tokenizer.files


def test_another_tokenizer_is_refused_whatever_its_size(model, tokenizer):
    other = Tokenizer.train([(target, source) for source, target in SENTENCES], 100)
    framed = Tokenizer(tokenizer.source_model, source_eos=False)
    trainer = SlicedLogitsTrainer(model)
    for wrong in (other, framed):
        for use in (
            lambda wrong=wrong: Translator(model, wrong),
            lambda wrong=wrong: model.fit(ParallelDataset(SENTENCES, wrong)),
            lambda wrong=wrong: trainer.fit(ParallelDataset(SENTENCES, wrong)),
        ):
            with pytest.raises(ValueError, match="trained with another tokenizer"):
                use()
    with pytest.raises(ValueError, match="more source tokens than the model.* 120 and 13 tokens"):
        small_model().fit(ParallelDataset(SENTENCES, tokenizer))
