"""Several adapters of one model in one translator."""

import functools
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from keras_transformer._backend.compile_function import compiles_each_shape
from keras_transformer.data import Tokenizer
from keras_transformer.decoding.options import SamplingOptions, SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.formats.engines import open_translator
from keras_transformer.models import Transformer, merge_lora
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.base_model import leave_out
from keras_transformer.runs.run import Run
from keras_transformer.translation.markup import Segment
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.translator import Translator
from keras_transformer.visualization.attention import translation_attention

TEXTS = ["a b c", "d", "e f a b"]
LORA = {"medical": (2, ["decoder"]), "legal": (2, ["decoder"]), "wide": (3, [""])}
TOKENIZER = Tokenizer.train([("a b c d e f", "f e d c b a")], vocabulary_size=17)
OPTIONS = SearchOptions(beam_size=2, max_length=6, n_best=2)
opened = functools.partial(open_translator, options=OPTIONS, tokens_per_batch=32)


def new_run(folder: Path, base: Run | None = None, lora=None, seed=0) -> Run:
    """A run with random weights, or those of `base` with a trained decoder or random adapters."""
    model = Transformer(17, num_layers=1, d_model=6, num_heads=2, d_ff=7)
    if base:
        model.set_weights(merge_lora(open_model(base)).get_weights())
    if lora:
        model.enable_lora(lora[0], parts=lora[1])
    elif base:
        model.freeze(["embedding", "encoder"])
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape))
    run = Run(folder, Recipe.model_validate({"name": "a", "data": {"generator": {}}}))
    run.write(model, TOKENIZER)
    if base:
        leave_out(run.model_path, base.model_path)
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Run]:
    """A base, adapters of different sizes, and a run whose decoder was trained."""
    folder = tmp_path_factory.mktemp("runs")
    base = new_run(folder / "base")
    kinds = enumerate([*LORA, "decoder"], 1)
    adapted = {x: new_run(folder / x, base, LORA.get(x), seed) for seed, x in kinds}
    return {"base": base, **adapted}


@pytest.mark.each_backend_if_slow
def test_adapters_translate_as_their_runs_do_alone_without_compiling_again(runs, monkeypatch):
    traced = []
    step = Transformer.step
    monkeypatch.setattr(Transformer, "step", lambda *args: traced.append(1) or step(*args))
    adapters = {x: run for x, run in runs.items() if x not in ("base", "legal")}
    translator = opened(runs["base"], adapters=adapters)
    one_by_name = {"base": translator, **translator.adapters}

    def found(one):
        return one.translate_nbest(TEXTS, alignments=True, word_scores=True)

    together = [(name, found(one_by_name[name])) for name in one_by_name]
    before = len(traced)
    together += [(name, found(one_by_name[name])) for name in ("wide", "base", "decoder")]
    assert len(traced) == before or not compiles_each_shape()
    alone = {name: found(opened(runs[name])) for name in one_by_name}
    assert len({repr(x) for x in alone.values()}) == 4
    for name, results in together:
        assert results == alone[name], name


def test_whatever_uses_the_weights_has_those_of_its_adapter(runs, tmp_path):
    translator = opened(runs["base"], adapters={x: runs[x] for x in ("medical", "legal")})
    medical, alone = translator.adapters["medical"], opened(runs["medical"])

    def saved(one):
        one.save(tmp_path / "saved.keras")
        return Translator.load(tmp_path / "saved.keras").translate_nbest(TEXTS)

    for use in (
        lambda one: one.sample(TEXTS, SamplingOptions(num_samples=2), seed=5),
        lambda one: one.beam_tree("a b").nodes,
        lambda one: one.translate_segments([Segment("a b c")]),
        lambda one: repr(translation_attention(one, "a b", "c")),
        saved,
    ):
        translator.adapters["legal"].translate(["a"])
        assert repr(use(medical)) == repr(use(alone))


def test_threads_wait_for_their_turn(runs):
    translator = opened(runs["base"], adapters={x: runs[x] for x in LORA})
    expected = {x: one.translate_nbest(TEXTS) for x, one in translator.adapters.items()}
    with ThreadPoolExecutor(3) as pool:
        names = [*LORA] * 4
        found = pool.map(lambda x: translator.adapters[x].translate_nbest(TEXTS), names)
        assert [*found] == [expected[name] for name in names]


@pytest.mark.slow
def test_a_base_can_be_an_adapter_itself(runs, tmp_path):
    for seed, (name, lora) in enumerate({"decoder": None, "wide": (1, ["encoder"])}.items(), 8):
        following = new_run(tmp_path / name, runs["medical"], lora, seed)
        translator = opened(runs["medical"], adapters={"next": following})
        alone = opened(following).translate_nbest(TEXTS)
        assert translator.adapters["next"].translate_nbest(TEXTS) == alone
        assert translator.translate(TEXTS) == opened(runs["medical"]).translate(TEXTS)


def test_other_runs_are_refused(runs, tmp_path):
    other = new_run(tmp_path / "other", seed=9)
    damaged = Run(shutil.copytree(runs["legal"].directory, tmp_path / "damaged"))
    damaged.model_path.write_bytes(b"damaged")
    refused = [
        ((runs["base"], {"a": damaged}), {}, "damaged"),
        ((runs["base"], {"a": other}), {}, "must have only .* Received: all weights"),
        ((other, {"a": runs["medical"]}), {}, "medical.* of .*other.* Received: another file"),
        ((runs["base"], {"a": tmp_path / "none"}), {}, "none"),
        (([runs["base"], other], {"a": runs["legal"]}), {}, "Received: another file"),
        ((runs["base"], {"a": runs["legal"]}), {"engine": "ctranslate2"}, "adapters="),
    ]
    for (base, adapters), options, message in refused:
        with pytest.raises(UserError, match=message):
            open_translator(base, adapters=adapters, **options)
