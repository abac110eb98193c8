"""Continuations of prompts by the shared search."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.cases import once
from support.digits import Digits
from support.language_models import Letters, next_logits, small_model
from support.searching import eagerly
from support.small_models import small_model as small_transformer

from keras_transformer import (
    Ensemble,
    Generator,
    LanguageModel,
    SamplingOptions,
    SearchOptions,
    Translator,
)

PROMPTS, LENGTH = ["abcdefg", "z", "kbk"], 5


@pytest.fixture(scope="module")
def generator():
    with eagerly():
        yield Generator(small_model(), Letters())


@pytest.mark.each_backend
@pytest.mark.slow
def test_beam_of_one_equals_greedy_search_without_a_cache(generator):
    options = SearchOptions(beam_size=1, max_length=LENGTH)
    found = generator.generate(PROMPTS, options)
    for prompt, (hypothesis,) in zip(PROMPTS, found, strict=True):
        ids, log_probability = Letters().encode(prompt), 0.0
        for token in hypothesis.ids:
            logits = next_logits(generator.model, generator.model.pad_id, ids)
            assert token == np.argmax(logits)
            log_probability += logits[token] - np.log(np.exp(logits).sum())
            ids.append(token)
        assert hypothesis.length == LENGTH
        assert hypothesis.text == Letters().decode(hypothesis.ids)
        assert hypothesis.log_probability == pytest.approx(log_probability, abs=1e-4)


@pytest.mark.each_backend
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam_size=3, n_best=2, max_length=LENGTH, repetition_penalty=1.5),
        *once(SamplingOptions(num_samples=2, max_length=LENGTH)),
    ],
    ids=["beam_search", "sampling"],
)
def test_prompts_of_different_lengths_do_not_change_each_other(generator, options):
    together = generator.generate(PROMPTS, options, seed=3)
    (alone,) = generator.generate(PROMPTS[:1], options, seed=3)  # has sample number 0 in both
    assert [x.ids for x in together[0]] == [x.ids for x in alone]
    for hypothesis, expected in zip(together[0], alone, strict=True):
        assert hypothesis.log_probability == pytest.approx(expected.log_probability, abs=1e-4)
    assert len({x.ids for hypotheses in together for x in hypotheses}) == 2 * len(PROMPTS)


def test_a_written_text_depends_on_all_that_fits_and_on_no_other_prompt(generator):
    prompts, greedy = ["ab", "qwertyuiopasdfg"], SamplingOptions(top_k=1, max_length=6)
    (found,) = generator.generate(prompts[1:], greedy)
    assert generator.write(prompts[1:], 6, greedy) == [prompts[1] + found[0].text]
    for options in (greedy, SamplingOptions()):
        together = generator.write(["z", *prompts], 40, options, seed=3)
        assert [len(x) for x in together] == [41, 42, 55]
        assert together[0] == generator.write(["z"], 40, options, seed=3)[0]


@pytest.mark.each_backend_if_slow
def test_eos_ends_a_continuation(generator):
    options = SearchOptions(beam_size=1, max_length=LENGTH)
    (ids,) = (x.ids for (x,) in generator.generate(PROMPTS[:1], options))
    with eagerly():
        ending = Generator(generator.model, Letters(), eos_id=ids[2])
        ((hypothesis,),) = ending.generate(PROMPTS[:1], options)
    assert hypothesis.ids == ids[: ids.index(ids[2])] and hypothesis.length < LENGTH


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "1 to 20 tokens: with its continuation, at most 24.* Received: prompt 1 with 0"),
        ([5] * 21, "at most 24.* Received: prompt 1 with 21 tokens"),
        ([1, 29], "in the model's vocabulary, from 0 to 28,.* Received: prompt 1"),
    ],
)
def test_prompts_that_the_model_cannot_read_are_refused(generator, ids, message):
    tokenizer = SimpleNamespace(encode=lambda text: ids if text else [7], decode=str)
    options = SamplingOptions(max_length=4)
    with pytest.raises(ValueError, match=message):
        Generator(generator.model, tokenizer).generate(["", "a"], options)


def test_what_has_no_meaning_is_refused(generator):
    model = generator.model
    with pytest.raises(TypeError, match="Received: 'abc'"):
        generator.generate("abc")
    with pytest.raises(ValueError, match="coverage_penalty.*model=LanguageModel"):
        generator.generate(PROMPTS, SearchOptions(coverage_penalty=0.2, max_length=2))
    with pytest.raises(ValueError, match="`eos_id` must differ from the model's `pad_id`"):
        ending = Generator(small_model("padding_in_vocabulary"), Letters(), eos_id=0)
        ending.generate(["a"], SearchOptions(max_length=2))
    padded = LanguageModel(5, num_layers=1, d_model=4, num_heads=1, d_ff=4, max_length=9, pad_id=2)
    with pytest.raises(ValueError, match="padding, 2.* with pad_id=-1"):
        Generator(padded, Letters()).generate(["ab", "abc"], SearchOptions(max_length=2))
    with pytest.raises(ValueError, match="Received: model=Transformer"):
        Generator(small_transformer(), Letters())
    with pytest.raises(ValueError, match="Received: model=Ensemble"):
        Translator(Ensemble([model, model]), Digits())
    with pytest.raises(ValueError, match="same reads_prompt. Received: .False, True."):
        Ensemble([small_model("padding_in_vocabulary"), small_transformer()])
