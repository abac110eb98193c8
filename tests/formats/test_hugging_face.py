"""transformers as a witness: imports compute the same here, and exports there."""

import io
import json
import shutil

import ablation_layers  # noqa: F401  registers batch normalization
import keras
import numpy as np
import pytest
import sentencepiece
from safetensors.numpy import save_file
from support.command_line import succeeds
from support.contract import to_numpy
from support.foreign_models import V, hugging_face_folder
from support.parallel_text import SENTENCES

from keras_transformer import (
    Run,
    SearchOptions,
    Tokenizer,
    Transformer,
    Translator,
    UserError,
    import_run,
    load_recipe,
    open_model,
    open_translator,
)
from keras_transformer.data.vocabulary import pieces_of
from keras_transformer.formats import export_hugging_face
from keras_transformer.formats.foreign_model import HUGGING_FACE, named_weights
from keras_transformer.formats.hugging_face import read_hugging_face
from keras_transformer.formats.model_files import read_torch

torch = pytest.importorskip("torch", reason="PyTorch is an optional dependency")
transformers = pytest.importorskip("transformers", reason="transformers is an optional dependency")

SOURCES = [source for source, _ in SENTENCES]
POWER = {"length_penalty": 1.0, "length_penalty_form": "power"}
LENGTH = 20


def ids_of_export(folder, sources, **options):
    """The translations by transformers with the model and the tokenizer in a folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    x = tokenizer(sources, return_tensors="pt", padding=True)
    answer = model.generate(**x, **options).tolist()
    return [[id for id in row if id not in (0, 2, 3)] for row in answer]  # without pad, bos, eos


def best_ids(translator, sources):
    return [[*best.ids] for best, *_ in translator.translate_nbest(sources)]


def marian_folder(folder, shared):
    """A MarianMT model of transformers with random weights: its ids are not ours."""
    tokenizer = Tokenizer.train(SENTENCES, vocabulary_size=V, joint=shared)
    folder.mkdir()
    for name, model, pieces in (
        ("vocab.json", tokenizer.source_model, tokenizer.source_pieces),
        ("target_vocab.json", tokenizer.target_model, tokenizer.target_pieces),
    ):
        side = "source" if name == "vocab.json" else "target"
        (folder / f"{side}.spm").write_bytes(model)
        order = ["</s>", "<unk>", *pieces[:3:-1], "<pad>"]
        if side == "source" or not shared:
            (folder / name).write_text(json.dumps({x: id for id, x in enumerate(order)}))
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not shared}
    settings |= {"source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ids = {"eos_token_id": 0, "pad_token_id": V - 2, "decoder_start_token_id": V - 2}
    sides = ("encoder", "decoder")
    config = transformers.MarianConfig(
        vocab_size=V - 1,
        d_model=12,
        **{f"{side}_layers": 2 - (side == "decoder") for side in sides},
        **{f"{side}_attention_heads": 3 for side in sides},
        **{f"{side}_ffn_dim": 23 for side in sides},
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=64,
        share_encoder_decoder_embeddings=shared,
        forced_eos_token_id=None,
        init_std=0.3,
        **ids,
    )
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config).eval()
    # So that the epsilon of the last norm counts.
    model.model.decoder.layers[-1].encoder_attn_layer_norm.weight.data *= 0.05
    model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    model.generation_config = transformers.GenerationConfig(
        num_beams=4, length_penalty=1.0, bad_words_ids=[[V - 2]], **ids
    )
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("shared", [True, False])
def test_logits_and_translations_equal_those_of_transformers(shared, tmp_path):
    theirs = marian_folder(tmp_path / "marian", shared)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "marian")
    run = import_run(tmp_path / "marian", tmp_path / "run")
    ours, own = open_model(run), run.tokenizer()
    with torch.inference_mode():
        for source, target in SENTENCES:
            x = tokenizer([source], text_target=[target], return_tensors="pt")
            start = torch.full((1, 1), theirs.config.decoder_start_token_id)
            labels = x.pop("labels")
            expected = theirs(**x, decoder_input_ids=torch.cat([start, labels[:, :-1]], 1)).logits
            inputs, _ = own.frame_target(own.encode_target([target])[0])
            source_ids = np.array([own.frame_source(own.encode_source([source])[0])], "int32")
            logits = ours({"source_ids": source_ids, "target_ids": np.array([inputs], "int32")})
            # The ids 4 and on are all but the special ones, in their order.
            names = [tokenizer.convert_tokens_to_ids(piece) for piece in own.target_pieces[4:]]
            if not shared:
                names = [*range(2, V - 2)]
            found = to_numpy(logits)[0, :, 4 : 4 + len(names)]
            np.testing.assert_allclose(found, expected[0][:, names], atol=1e-5)
    x = tokenizer(SOURCES, return_tensors="pt", padding=True)
    answer = theirs.generate(
        **x, max_length=LENGTH + 1, return_dict_in_generate=True, output_scores=True
    )
    options = SearchOptions(beam_size=4, max_length=LENGTH, **POWER)
    found = [x[0] for x in Translator(ours, own, options).translate_nbest(SOURCES)]
    texts = tokenizer.batch_decode(answer.sequences, skip_special_tokens=True)
    assert [x.text for x in found] == texts
    np.testing.assert_allclose([x.score for x in found], answer.sequences_scores, atol=1e-5)


def multilingual_folder(folder, kind):
    """A random model of transformers, and its tokenizer with English and German."""
    model, source = io.BytesIO(), Run.open("tatoeba_en_de").text
    lines = [line for pair in source.pairs("validation") for line in pair]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=300,
        model_type="bpe",
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    if kind == "m2m100":
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(model.getvalue())[3:]]
        vocabulary = {piece: id for id, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        languages, size = ("en", "de"), len(pieces) + 108
        settings = {"tokenizer_class": "M2M100Tokenizer"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer = transformers.M2M100Tokenizer.from_pretrained(
            folder, src_lang="en", tgt_lang="de"
        )
    else:
        languages = "eng_Latn", "deu_Latn", "fra_Latn"
        tokenizer = transformers.NllbTokenizer.from_pretrained(
            folder, src_lang="eng_Latn", tgt_lang="deu_Latn", extra_special_tokens=[*languages]
        )
        tokenizer.save_pretrained(folder)
        size = len(tokenizer)
    config = transformers.M2M100Config(
        vocab_size=size, d_model=12, max_position_embeddings=64, init_std=0.3,
        encoder_layers=2, decoder_layers=1, encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=23, decoder_ffn_dim=23, encoder_layerdrop=0, decoder_layerdrop=0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.M2M100ForConditionalGeneration(config).eval()
    eos = theirs.model.shared.weight[config.eos_token_id]
    with torch.no_grad():  # so that translations end
        theirs.model.decoder.layer_norm.bias += 3.5 * eos / eos.norm()
    theirs.save_pretrained(folder)
    return theirs, tokenizer, languages


@pytest.mark.parametrize("kind", ["m2m100", pytest.param("nllb", marks=pytest.mark.slow)])
def test_a_model_of_many_languages_translates_between_any_two(kind, tmp_path):
    theirs, tokenizer, (source, target, *_) = multilingual_folder(tmp_path, kind)
    with pytest.raises(UserError, match="many languages"):
        import_run(tmp_path, tmp_path / "none")
    languages = {"source_language": source, "target_language": target}
    if kind == "nllb":
        file = tmp_path / "tokenizer_config.json"
        saved = file.read_text("utf-8")
        file.write_text(json.dumps({**json.loads(saved), "legacy_behaviour": True}), "utf-8")
        with pytest.raises(UserError, match="legacy_behaviour, .* must be false"):
            import_run(tmp_path, tmp_path / "none", **languages)
        file.write_text(saved, "utf-8")
    run = import_run(tmp_path, tmp_path / "run", **languages)
    own, sentences = run.tokenizer(), [x for x, _ in Run.open("tatoeba_en_de").text.pairs("test")]
    sentences = [*sentences[:494], "", "two  spaces", "Ünknown ☃", "ﬁne", "1,299.50", "A\tB"]
    ids = [own.frame_source(x) for x in own.encode_source(sentences)]
    names = [[own.source_pieces[id] for id in row] for row in ids]
    expected = map(tokenizer.convert_ids_to_tokens, tokenizer(sentences)["input_ids"])
    assert names == [*expected]

    text = sentences[:12]
    model, (inputs, _) = open_model(run), own.frame_target(own.encode_target(["Ein Hund."])[0])
    found = to_numpy(model({"source_ids": np.array(ids[:1]), "target_ids": np.array([inputs])}))
    named = [id for id, x in enumerate(own.target_pieces) if id > 4 and x[:7] != "<unused"]
    known = tokenizer.convert_tokens_to_ids([own.target_pieces[id] for id in named])
    start = torch.full((1, 1), tokenizer.eos_token_id)
    decoded = tokenizer.convert_tokens_to_ids([own.target_pieces[id] for id in inputs[1:]])
    x = tokenizer(text[:1], return_tensors="pt")
    with torch.inference_mode():
        given = torch.cat([start, torch.tensor([decoded])], 1)
        expected = theirs(**x, decoder_input_ids=given).logits
    np.testing.assert_allclose(found[0, :, named].T, expected[0][:, known], atol=1e-5)
    for ours, forced in ((languages, (source, target)), ({}, (source, target)), (
        {"source_language": target, "target_language": source}, (target, source)
    )):  # fmt: skip
        tokenizer.src_lang = forced[0]
        x = tokenizer(text, return_tensors="pt", padding=True)
        first = {"m2m100": "__{}__", "nllb": "{}"}[kind].format(forced[1])
        names = ["<unk>" if x.startswith("<unused") else x for x in own.target_pieces]
        for penalty in (0.0, 1.0):
            answer = theirs.generate(
                **x, forced_bos_token_id=tokenizer.convert_tokens_to_ids(first), num_beams=4,
                max_length=LENGTH + 1, length_penalty=penalty, early_stopping=True,
                bad_words_ids=[[tokenizer.pad_token_id]], forced_eos_token_id=None,
            )  # fmt: skip
            pieces = [tokenizer.convert_ids_to_tokens(row[1:]) for row in answer]
            ends = {tokenizer.eos_token, tokenizer.pad_token}
            pieces = [[piece for piece in row if piece not in ends] for row in pieces]
            options = {"beam_size": 4, "length_penalty": penalty, "length_penalty_form": "power"}
            options = SearchOptions(max_length=LENGTH, **options)
            for engine in ("keras", "ctranslate2"):
                translator = open_translator(run, options, engine=engine, **ours)
                found = best_ids(translator, text)
                assert [[names[id] for id in ids] for ids in found] == pieces
    options = SearchOptions(beam_size=4, max_length=LENGTH, **POWER)
    folder = tmp_path / "out"
    export_hugging_face(model, own, folder, options, (source, target), text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer(sentences)["input_ids"] == ids
    expected = ids_of_export(folder, text, max_length=LENGTH + 1)
    kept = import_run(folder, tmp_path / "kept")  # with the languages of the export
    for copy in (run, kept, import_run(folder, tmp_path / "again", **languages)):
        assert best_ids(open_translator(copy, options), text) == expected
    (tmp_path / "kept.txt").write_text("\n".join(text), "utf-8")
    small = import_run(tmp_path, tmp_path / "small", **languages, keep=[tmp_path / "kept.txt"])
    new, kept = small.tokenizer(), {"__en__", "__de__", "eng_Latn", "deu_Latn", "fra_Latn"}
    assert new.target_vocabulary_size < own.target_vocabulary_size - 50
    assert kept & {*own.target_pieces} == kept & {*new.target_pieces}
    for before, now in zip(own.encode_source(text), new.encode_source(text), strict=True):
        assert [own.source_pieces[id] for id in before] == [new.source_pieces[id] for id in now]
    for engine in ("keras", "ctranslate2"):
        with pytest.raises(
            UserError, match="^the vocabulary has .* target languages, .* Received: xx"
        ):
            open_translator(run, engine=engine, target_language="xx")


def test_a_folder_of_the_converter_of_ctranslate2_translates_alike(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")
    marian_folder(tmp_path / "marian", shared=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "marian")
    files = ["source.spm", "target.spm"]
    converter = ctranslate2.converters.TransformersConverter(str(tmp_path / "marian"), None, files)
    converter.convert(str(tmp_path / "converted"))
    theirs = ctranslate2.Translator(str(tmp_path / "converted"), intra_threads=1)
    pieces = [tokenizer.convert_ids_to_tokens(tokenizer.encode(x)) for x in SOURCES]
    options = {"beam_size": 4, "length_penalty": 0}
    found = theirs.translate_batch(
        pieces, max_decoding_length=LENGTH, min_decoding_length=0, return_scores=True, **options
    )
    run = import_run(tmp_path / "converted", tmp_path / "run")
    ours = Translator.from_run(run, SearchOptions(max_length=LENGTH, **options))
    ids = [tokenizer.convert_tokens_to_ids(x.hypotheses[0]) for x in found]
    nbest = [x[0] for x in ours.translate_nbest(SOURCES)]
    assert [x.text for x in nbest] == tokenizer.batch_decode(ids, skip_special_tokens=True)
    np.testing.assert_allclose([x.score for x in nbest], [x.scores[0] for x in found], atol=1e-4)
    unscaled = (tmp_path / "converted" / "model.bin").read_bytes()
    root = np.float32(12**0.5).tobytes()
    for scale in (1.0, 2.0):
        content = unscaled.replace(root, np.float32(scale).tobytes())
        (tmp_path / "converted" / "model.bin").write_bytes(content)
        with pytest.raises(UserError, match="scale_embeddings"):
            import_run(tmp_path / "converted", tmp_path / "other")


@pytest.mark.parametrize("name", ["tc-big-fr-en", pytest.param("en-mg", marks=pytest.mark.slow)])
def test_ids_and_texts_equal_those_of_marian_tokenizer(name, data_dir, tmp_path):
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is an optional dependency")
    if not (source := data_dir / "pretrained" / "opus_tokenizers" / name).is_dir():
        pytest.skip("KERAS_TRANSFORMER_DATA has no pretrained models")
    from keras_transformer.formats.translation_graph import GraphTokenizer, tf

    folder = opus_folder(source, tmp_path / name, [">>fra<<", ">>cmn_Hans<<"])
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    sentences = opus_sentences()
    starts = (">>fra<< ", ">>cmn_Hans<<", ">>xyz<< ", ">> a << ", ">>fra<< >>fra<< ", "a >>fra<< ")
    tagged = [start + text for start in starts for text in (*sentences[:20], "")]
    tagged = [*sentences, *(text.strip() for text in tagged)]
    run = import_run(folder, tmp_path / "run", target_language="fr")
    with pytest.raises(UserError, match="0 source languages. Received: en"):
        open_translator(run, source_language="en")
    tokenizer = run.tokenizer()
    assert tokenizer.frames["source_prefix"] == [">>fra<<"]
    graph = GraphTokenizer(tokenizer)
    old_id = to_numpy(open_model(run).source_embedding.embeddings)[:, 0].astype(int)
    for side, name, texts in (("source", "text", tagged), ("target", "text_target", sentences)):
        ids = getattr(tokenizer, f"encode_{side}")(texts)
        assert getattr(graph, f"encode_{side}")(tf.constant(texts)).to_list() == ids
        expected = [row[:-1] for row in theirs(**{name: texts})["input_ids"]]  # without eos
        assert [old_id[row].tolist() for row in ids] == expected
    texts = tokenizer.decode_target(ids)
    named = [x.replace("<unk>", " ⁇ ") for x in theirs.batch_decode(expected)]
    assert [x.split() for x in texts] == [x.split() for x in named]
    rows = tf.ragged.constant(ids, dtype="int32").to_tensor()
    assert [x.decode() for x in graph.decode_target(rows).numpy()] == texts


def opus_sentences():
    text = Run.open("tatoeba_en_de").directory / "text"
    files = [text / f"validation.{side}" for side in ("en", "de")]
    return [x for file in files for x in file.read_text("utf-8").splitlines()]


def opus_folder(source, folder, tags=()):
    """An OPUS-MT model with small weights. The embedding of each id begins with the id."""
    shutil.copytree(source, folder, copy_function=shutil.copyfile)
    config = json.loads((folder / "config.json").read_text())
    sizes = {f"{x}_{y}": 1 for x in ("encoder", "decoder") for y in ("layers", "attention_heads")}
    sizes |= {"encoder_ffn_dim": 2, "d_model": 2}
    (folder / "config.json").write_text(json.dumps({**config, **sizes}))
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    rows = len(vocabulary) + len(tags)
    vocabulary |= dict(zip(tags, range(len(vocabulary), rows), strict=True))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    model = Transformer(rows, num_layers=1, d_model=2, num_heads=1, d_ff=2)
    weights = named_weights(model, HUGGING_FACE, {"target": "model.shared.weight"})
    weights = {name: np.ascontiguousarray(x) for name, x in weights.items()}
    weights["model.shared.weight"][:, 0] = range(rows)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_of_weights_equals_safetensors(is_zip, tmp_path):
    expected = read_hugging_face(hugging_face_folder(tmp_path / "model")).weights
    state = {name: torch.from_numpy(x) for name, x in expected.items()}
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=is_zip)
    found = read_torch(path)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize(
    "arguments",
    [{}, {"position_encoding": "learned"}, {"target_vocabulary_size": V}]
    + [{"dtype": "mixed_bfloat16", "tie_word_embeddings": False}]
    + [{"norm_first": True, "position_encoding": "sinusoidal_marian", "activation": "gelu"}],
)
def test_transformers_opens_exports_and_translates_alike(arguments, tmp_path):
    folder = hugging_face_folder(tmp_path / "export", **arguments)
    run = import_run(folder, tmp_path / "run")
    translator = Translator.from_run(run, SearchOptions(beam_size=4, **POWER))
    assert best_ids(translator, SOURCES) == ids_of_export(folder, SOURCES)


def test_transformers_translates_as_the_model_of_a_new_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [f"{a}{b}" for a in "abcdefghijklmnopqrstuvwxyz" for b in "rstuvwxyz"]
    lines = enumerate(zip(words, words[5:] + words[:5], strict=True))
    pairs = [(f"{number} {x} {y}", f"{number} {y[::-1]} {x}") for number, (x, y) in lines] * 2
    for side, name in enumerate(("text.en", "text.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    succeeds("init", "text.en", "text.de", "--output", "new.yaml")
    recipe = load_recipe("new.yaml")
    tokenizer = Tokenizer.train(pairs, **recipe.tokenizer.model_dump())
    keras.utils.set_random_seed(3)
    model = Transformer(tokenizer.target_vocabulary_size, **recipe.model.sizes)
    options = recipe.evaluation.search_options(max_length=LENGTH)
    export_hugging_face(model, tokenizer, tmp_path / "out", options, ("en", "de"))
    sources = [source for source, _ in pairs[:8]]
    found = best_ids(Translator(model, tokenizer, options), sources)
    assert found == ids_of_export(tmp_path / "out", sources, max_length=LENGTH + 1)
