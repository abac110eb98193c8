"""A language model by recipe: from a text of one side to sampled text."""

import keras
import numpy as np
import pytest
from support.command_line import fails, succeeds
from support.contract import assert_same_arrays, to_numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_transformer import BatchPlan, Generator, Run, SamplingOptions, Tokenizer, TokenStore
from keras_transformer.data.parallel_text import Corpora
from keras_transformer.data.text_files import read_texts
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.formats import open_translator
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.checkpoints import load_history
from keras_transformer.training import train
from keras_transformer.training.devices.base import ONE_DEVICE
from keras_transformer.training.run.prepare import prepare
from keras_transformer.training.run.token_budget import step
from keras_transformer.translation.open_run import open_model

TEXT = "To be,  or not\n\n  to be:\nI\n\n" * 6 + "the question."
LENGTH, STEPS = 8, 4
TREE = {
    "name": "text",
    "data": {
        "documents": "lines",
        "train": {"source": "text.txt"},
        "held_out": {"validation": 5},
        "max_length": LENGTH,
    },
    "tokenizer": {"vocabulary_size": 24, "normalization": "identity"},
    "model": {
        "architecture": "language_model",
        **{"preset": "tiny", "num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 8},
    },
    "training": {
        **{"steps": STEPS, "checkpoint_every": 2, "tokens_per_batch": 32, "warmup_steps": 1},
        **{"label_smoothing": 0.1, "peak_learning_rate": 0.01},
    },
    "evaluation": {"average_last": 1},
}


def recipe_of(folder, **sections):
    data = TREE["data"] | {"directory": folder}
    usual = TREE | {"data": data}
    return Recipe.model_validate(usual | {name: usual[name] | x for name, x in sections.items()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text.txt").write_bytes(TEXT.encode())
    return folder


@pytest.fixture(scope="module")
def run(folder):
    train(run := Run.create(folder / "run", recipe_of(folder)))
    return run


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXT.split("\n"), 24, normalization="identity", keep_spaces=True)


def test_all_spaces_and_line_ends_come_back(tokenizer):
    ids = tokenizer.encode(f" {TEXT} \n")
    assert tokenizer.decode(ids) == f" {TEXT} \n"
    # A continuation keeps the space before its first word.
    assert tokenizer.decode(tokenizer.encode(" be")) == " be"


@pytest.mark.parametrize(
    ("documents", "first", "count"),
    [
        ("lines", ["To be,  or not", ""], 31),
        ("paragraphs", ["To be,  or not", "  to be:\nI"], 13),
        ("files", ["To be,  or not\n", "\n"], 31),
    ],
)
def test_a_document_is_a_line_a_paragraph_or_a_file(documents, first, count, folder):
    path = folder / "text.txt"
    texts = [text for (text,) in read_texts(path, documents)]
    assert texts[:2] == first and len(texts) == count and texts[-1] == "the question."
    before, held_out = (
        [text for (text,) in read_texts(path, documents, part)]
        for part in (slice(-4), slice(-4, None))
    )
    assert [x.rstrip("\n") for x in before + held_out] == [x.rstrip("\n") for x in texts]
    assert len(held_out) == 4
    assert not before[-1].endswith("\n")  # It ends there.
    assert [*read_texts(path, documents, slice(-count - 1))] == []


@pytest.mark.parametrize("documents", ["lines", "paragraphs", "files"])
def test_a_pass_has_each_token_once_after_those_before_it(documents, folder, tokenizer, tmp_path):
    texts = [*read_texts(folder / "text.txt", documents)]
    corpora = Corpora([texts], ("target",))
    store = TokenStore.build(tmp_path / "store", corpora, tokenizer, LENGTH, progress=False)
    plan = BatchPlan(store, 32, seed=1, length_multiple=LENGTH)
    again = BatchPlan(TokenStore(tmp_path / "store"), 32, seed=1, length_multiple=LENGTH)
    found, total = [], 0
    for number in reversed(range(plan.batches_per_pass)):
        inputs, labels, weights = plan.batch(number)
        pair = again.batch(number), (inputs, labels, weights)
        assert_same_arrays(*map(keras.tree.flatten, pair))
        total += (labels != 0).sum()
        np.testing.assert_allclose(weights[labels != 0], 1 / plan.tokens(number))
        segments = (labels != 0) * 1
        assert isinstance(inputs, dict) == (documents != "files")  # A file has full rows.
        if documents != "files":
            segments, inputs = inputs["token_segments"], inputs["token_ids"]
        assert inputs.shape == (4, LENGTH)
        for row, own, mine in zip(inputs, labels, segments, strict=True):
            for segment in range(1, mine.max() + 1):
                read, predicted = row[mine == segment], own[mine == segment]
                assert read.tolist() == [tokenizer.bos_id, *predicted[:-1]]
                found.append(predicted.tolist())
    # Each document ends with eos, and is cut after each 8 tokens.
    given = [text for (text,) in texts]
    documents_ = ["".join(given)] if documents == "files" else [x for x in given if x]
    expected = [[*tokenizer.encode(x), tokenizer.eos_id] for x in documents_]
    cut = [x[i : i + LENGTH] for x in expected for i in range(0, len(x), LENGTH)]
    assert sorted(found) == sorted(cut) and total == sum(map(len, expected))


@pytest.mark.each_backend_if_slow
def test_validation_has_nats_perplexity_and_samples(run):
    model, tokenizer = open_model(run), run.tokenizer()
    losses = []
    for (text,) in run.text.pairs("validation"):
        ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        for begin in range(0, len(ids) - 1 if text else 0, LENGTH):
            labels = ids[begin + 1 : begin + LENGTH + 1]
            logits = to_numpy(model(np.array([[tokenizer.bos_id, *labels[:-1]]])))[0]
            scores = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1))
            losses += list(scores + logits.max(-1) - logits[range(len(labels)), labels])
    history = load_history(run.checkpoints()[-1])
    assert history.losses[STEPS] == pytest.approx(np.mean(losses), abs=1e-5)
    logs = EventAccumulator(str(run.logs_dir)).Reload()
    scalars = {x: logs.Scalars(f"validation/{x}")[-1].value for x in ("loss", "perplexity")}
    assert scalars["perplexity"] == pytest.approx(np.exp(scalars["loss"]), rel=1e-4)
    written = logs.Tensors("validation/samples")[-1]
    written = written.tensor_proto.string_val[0].decode()
    assert written.count("\n\n---\n\n") == 2 and written.startswith("    ")


@pytest.mark.each_backend_if_slow
def test_a_longer_text_goes_on_from_its_last_half(run):
    generator, greedy = Generator.from_run(run), SamplingOptions(top_k=1)
    model, tokenizer = generator.model, generator.tokenizer
    prompts, length = ["to be", ""], LENGTH + 3
    found = generator.write(prompts, length, greedy)
    half = LENGTH // 2 - 1  # beside bos
    for prompt, text in zip(prompts, found, strict=True):
        ids = tokenizer.encode(prompt)
        begin = len(ids)
        context = []
        while len(ids) < begin + length:
            if not context or len(context) == LENGTH + 1:
                context = [tokenizer.bos_id, *ids[-half:]]
            token = int(to_numpy(model(np.array([context])))[0, -1].argmax())
            if token == tokenizer.eos_id:
                break
            ids.append(token)
            context.append(token)
        assert text == prompt + tokenizer.decode(ids[begin:])
    drawn = [generator.write(["to be"], 5, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert generator.write(["a", "to be"], 5, seed=1)[0] == generator.write(["a"], 5, seed=1)[0]
    (found,) = generator.generate(["to"], SearchOptions(max_length=3))
    assert len(found[0].ids) <= 3


def test_fine_tuning_begins_with_the_weights_and_the_tokenizer(run, folder):
    text = {"source": "text.txt"}
    data = {"documents": "paragraphs", "held_out": None, "validation": text}
    data["train"], model = [text | {"weight": 0.5}, text], {"max_length": 6}
    training = {"initial_run": run.directory}
    recipe = recipe_of(folder, training=training, data=data, model=model)
    trainer, tokenizer, *_ = prepare(Run.create(folder / "tuned", recipe), False, ONE_DEVICE)
    assert tokenizer.fingerprint == run.tokenizer().fingerprint
    assert_same_arrays(trainer.model.get_weights(), open_model(run).get_weights())
    assert (trainer.model.max_length, open_model(run).max_length) == (6, LENGTH)


def test_the_budget_has_a_step(folder):
    assert step(recipe_of(folder), 64)["tokens_per_s"] > 0


def test_commands(run):
    text = succeeds("generate", run.directory, "to be", "--length", 4, "--samples", 2)
    assert text.count("to be") == 2 and "\n---\n" in text
    shown = succeeds("info", run.directory)
    assert "recipe           text (en)" in shown and f"generate {run.directory}" in shown
    succeeds("average", run.directory, "--last", 1)


@pytest.mark.parametrize(
    "command",
    [
        *("translate", "serve", "evaluate", "attention to", "beam to", "report", "conformance"),
        *("export --format ctranslate2", "export --format run", "push me/x --licence mit"),
    ],
)
def test_commands_for_translators_refuse_the_run(command, run):
    name, *options = command.split()
    message = fails(name, run.directory, *options)
    use = f"keras-transformer generate {run.directory}"
    received = f"Received: model.architecture=language_model of {run.directory}"
    assert message == f"only a translation model can do this; for this run: {use}. {received}"


def test_python_refuses_the_run_too_and_a_translator_is_no_language_model(run, folder):
    with pytest.raises(UserError, match="only a translation model .* generate"):
        open_translator(run)
    with pytest.raises(
        UserError, match="only a language model can do this; for this run: .* translate"
    ):
        Generator.from_run("tatoeba_en_de")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"model": {"architecture": "transformer"}}, "need each other. Received: transformer"),
        ({"data": {"documents": None}}, "need each other. Received: language_model and .*None"),
        ({"data": {"test": {"source": "x"}}}, "Received: held_out, test, train"),
        ({"data": {"train": {"source": "x", "target": "y"}}}, "Received: data.train.target"),
        ({"evaluation": {"beam_size": 5}}, "Received: evaluation.beam_size"),
        ({"training": {"validation_bleu_sentences": 3, "text_noise": 0.1}}, "text_noise, training"),
        ({"model": {"logits_soft_cap": 3.0}}, "has only the keys .*logits_soft_cap"),
        ({"tokenizer": {"joint": False, "vocabulary_size": 9}}, "Received: tokenizer.joint"),
        (
            {"data": {"held_out": None}},
            "give files for train and validation, or files for train and held_out. Rec",
        ),
    ],
)
def test_keys_without_effect_are_refused(section, message, folder):
    with pytest.raises(ValueError, match=message):
        recipe_of(folder, **section)
