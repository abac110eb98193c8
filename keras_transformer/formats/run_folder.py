"""Makes run folders of other runs, of models trained in Python, and of other toolkits' models."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from keras_transformer._files import atomic_write, check_is_free, read_text, sha256_of, write_json
from keras_transformer.data.text_files import read_lines
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import kind_of
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.formats.comparison import (
    Agreement,
    compare_translations,
    random_sentences,
    scored_translations,
)
from keras_transformer.formats.ctranslate2 import read_ctranslate2
from keras_transformer.formats.export_options import RunWeights, check_quantization
from keras_transformer.formats.exported_model import check_model
from keras_transformer.formats.foreign_model import ForeignModel
from keras_transformer.formats.hugging_face import read_hugging_face
from keras_transformer.formats.marian import is_marian_bin, read_marian
from keras_transformer.formats.model_files import PREFIX, download, read_value, reading, shards
from keras_transformer.formats.vocabulary_change import with_vocabulary
from keras_transformer.layers.saving import check_finite
from keras_transformer.models.base import in_float32, merge_lora
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.models.transformer import Transformer
from keras_transformer.recipe.files import shipped_runs, validated
from keras_transformer.recipe.sections import OF_RUN, Normalization
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Checkpoint, Run, opened_runs
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.translator import Translator
from keras_transformer.translation.word_forms import WordForms

_SCORE_TOLERANCE = 1e-3  # nats
# OPUS-MT also has names of several languages, such as ROMANCE.
_ADVICE = "(--source-language and --target-language name the languages)"
# Settings and vocabularies beside the weights.
_VOCABULARY = (".json", ".yml", ".txt", ".spm", ".model")


def import_run(
    source: str | Path,
    directory: str | Path,
    *,
    revision: str | None = None,
    vocabularies: Sequence[str | Path] = (),
    source_prefix: Sequence[str] = (),
    source_language: str | None = None,
    target_language: str | None = None,
    text: str | Path | None = None,
    keep: Sequence[str | Path] = (),
) -> Run:
    """Makes a run folder of a trained model of Marian, Hugging Face or CTranslate2.

    M2M100 and NLLB have many languages: `source_language` and `target_language` are those that the
    run translates unless `open_translator` gets others.

    The run has a recipe without text, the tokenizer and the model. `training.initial_run` trains on
    from it. Its `origin.json` has the source, the revision, the SHA-256 of each file, the licence,
    and what the files had lost.

    Example:

    >>> import_run("hf://Helsinki-NLP/opus-mt-en-de", "runs/opus_en_de")

    Args:
        source: A folder or file, or "hf://ORGANIZATION/NAME" for a model of the Hugging Face hub,
            which is downloaded once. A MarianMT folder has `config.json`, `model.safetensors` (or
            `pytorch_model.bin`, which needs PyTorch), `vocab.json`, `source.spm` and `target.spm`.
            M2M100 has `vocab.json` and `sentencepiece.bpe.model`, NLLB `tokenizer.json` and this.
            A Marian model is a `.npz` or float32 `.bin` file or its folder. A CTranslate2 folder
            has `model.bin`.
        directory: A new or empty folder.
        revision: Branch, tag or commit of the hub. Defaults to None, which means the newest at the
            time of the first download.
        vocabularies: SentencePiece model, or the models of source and target, of a Marian or
            CTranslate2 model. Defaults to those that lie beside it.
        source_prefix: Pieces that begin every source, such as `[">>por<<"]`, which tells a
            multilingual model the target language. Defaults to none.
        source_language: ISO 639-1 code. Defaults to that in the files, or "und". For M2M100 and
            NLLB, a language of the model, such as "fr" or "fra_Latn".
        target_language: As `source_language`. For a model of OPUS-MT with tags such as ">>fra<<", a
            language of theirs, whose tag then begins every source, unless `source_prefix` is given.
        text: File with sentences of the source language, from which the run learns `WordForms`.
            Defaults to None.
        keep: Files whose pieces stay, see `change_vocabulary`. Defaults to all pieces.

    Raises:
        UserError: If the model cannot be imported. Then nothing is written.
    """
    check_is_free(directory)
    # The model has seen more words and marks than the text has.
    forms = replace(WordForms.learn(read_lines(Path(text))), words=()) if text else WordForms()
    with reading(source):
        files = [Path(x) for x in vocabularies]
        chosen = source_language, target_language
        foreign, model, tokenizer = read_preset(source, revision, files, source_prefix, chosen)
        given = zip(chosen, foreign.languages, strict=True)
        languages, what = [one or other for one, other in given], f"Imported from {source}"
        place, search = f"{source} {_ADVICE}", foreign.evaluation
        if keep:
            options, texts = SearchOptions(**search), [Path(x) for x in keep]
            model, tokenizer = with_vocabulary(model, tokenizer, options, texts, (), forms)
        recipe = recipe_of(directory, model, tokenizer, languages, what, search, place)
        origin = {"source": str(source), **_facts(foreign, files)}
    if str(source).startswith(PREFIX):
        origin["revision"] = foreign.path.parent.name
    with atomic_write(directory) as partial:
        run = Run(partial, recipe)
        run.write(model, tokenizer)
        if text:
            forms.save(run.word_forms_path)
        write_json(run.origin_path, origin)
    return Run(directory, recipe)


def change_vocabulary(
    run: Run | str | Path,
    directory: str | Path,
    keep: Sequence[str | Path] = (),
    add: Sequence[str] = (),
) -> Run:
    """Makes a run folder of a run's model with fewer pieces, or with words and languages added.

    The run has a recipe without text. `training.initial_run` trains on from it. The vectors and
    the bias of pieces that stay do not change. Those of a new piece begin as the mean of the pieces
    into which it was split before.

    Example:

    >>> change_vocabulary("runs/nllb", "runs/small", keep=["text.en", "text.de"])

    Args:
        run: The run, its folder or its name. Its adapters are merged.
        directory: A new or empty folder.
        keep: Files with sentences, one per line. The first has sentences of the source language,
            which the model translates. The pieces of all files and of these translations stay, and
            those of languages. A few hundred sentences in the first file are enough if the others
            are long. Defaults to none: all pieces stay.
        add: Words that become pieces, and languages such as `">>fra<<"` or `"fra_Latn"`.

    Raises:
        UserError: If the run has no Transformer, or `directory` is not empty.
        ValueError: If the model is quantized.
    """
    check_is_free(directory)
    (run,) = opened_runs(run)
    run.require_transformer("A change of the vocabulary")
    model, old = merge_lora(in_float32(open_model(run))), run.recipe
    options = old.evaluation.search_options()
    texts, forms = [Path(x) for x in keep], WordForms.load(run.word_forms_path)
    model, tokenizer = with_vocabulary(model, run.tokenizer(), options, texts, add, forms)
    languages = old.data.source_language, old.data.target_language
    search = old.evaluation.model_dump(exclude_defaults=True, exclude={"average_last"})
    what = f"{run.directory.name} with another vocabulary"
    recipe = recipe_of(directory, model, tokenizer, languages, what, search, f"{directory}")
    with atomic_write(directory) as partial:
        Run(partial, recipe).write(model, tokenizer)
        for file in filter(Path.is_file, (run.origin_path, run.word_forms_path)):
            shutil.copy(file, partial)
    return Run(directory, recipe)


def open_preset(
    preset: str | Path,
    options: SearchOptions | None = None,
    *,
    revision: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    **arguments: Any,
) -> Translator:
    """Opens the translator of a run, or of a model that `import_run` reads.

    A model of the hub is downloaded once. M2M100 and NLLB need a `source_language` and a
    `target_language`, a model of OPUS-MT with tags the latter, see `open_translator`.
    `**arguments` are those of `Translator.from_run`, or, of a model that is no run, of
    `Translator`.

    Example:

    >>> open_preset("hf://Helsinki-NLP/opus-mt-en-de").translate(["How are you?"])
    """
    if (Path(preset) / "recipe.yaml").is_file() or str(preset) in shipped_runs():
        arguments |= {"source_language": source_language, "target_language": target_language}
        return Translator.from_run(preset, options, **arguments)
    languages = source_language, target_language
    foreign, model, tokenizer = read_preset(preset, revision, languages=languages)
    options = options or SearchOptions(**foreign.evaluation)
    return Translator(model, tokenizer.with_languages(*languages), options, **arguments)


def read_preset(
    source: str | Path,
    revision: str | None = None,
    vocabularies: Sequence[Path] = (),
    source_prefix: Sequence[str] = (),
    languages: tuple[str | None, str | None] = (None, None),
) -> tuple[ForeignModel, Transformer, Tokenizer]:
    """Reads a model of the format that its files show. The arguments are those of `import_run`."""
    with reading(source):
        hub = str(source).startswith(PREFIX)
        place = download(str(source), revision) if hub else Path(source)
        files = [place, *(place.iterdir() if place.is_dir() else ())]
        is_ctranslate2 = (place / "model.bin").is_file() and not is_marian_bin(place / "model.bin")
        is_hugging_face = not is_ctranslate2 and (place / "config.json").is_file()
        if not place.exists() or (is_hugging_face and vocabularies):
            rule = "its own vocabulary is beside it: give no other one"
            raise ValueError(rule if is_hugging_face else "there is no such file or folder")
        if is_ctranslate2:
            foreign = read_ctranslate2(place, vocabularies)
        elif is_hugging_face:
            foreign = read_hugging_face(place)
        elif any(x.is_file() and x.suffix in (".npz", ".bin") for x in files):
            foreign = read_marian(place, vocabularies)
        else:
            raise ValueError(
                "a folder needs config.json (Hugging Face), model.bin (CTranslate2) or a .npz or "
                ".bin file (Marian). A model of the hub is hf://ORGANIZATION/NAME"
            )
        model, tokenizer = foreign.convert(source_prefix)
        begins_with_language = not tokenizer.tag_ids and tokenizer.begins_with_language
        if foreign.is_multilingual or begins_with_language:
            if not (all(languages) or begins_with_language):
                raise ValueError(f"the model has many languages: choose two {_ADVICE}")
            tokenizer = tokenizer.with_languages(*languages)
        elif tokenizer.tag_ids and not source_prefix:
            tokenizer = tokenizer.with_languages(None, languages[1])
        return foreign, model, tokenizer


def _facts(foreign: ForeignModel, vocabularies: list[Path]) -> dict[str, Any]:
    """Returns the contents of origin.json that can be read off the files."""
    card = read_text(foreign.path.with_name("README.md"))[:10_000]
    found = re.search(r"^license:\s*[\"']?([\w.+-]+)", card, re.MULTILINE)
    settings = read_value(foreign.path.with_name("config.json"), missing={})
    beside = (x for x in foreign.path.parent.iterdir() if x.suffix in _VOCABULARY and x.is_file())
    files = [foreign.path, *shards(foreign.path), *vocabularies, *beside]
    return {
        "sha256": {file.name: sha256_of(file) for file in files},
        "licence": found[1] if found else settings.get("license"),
        "notes": list(foreign.notes),
        "imported_with": f"keras3-transformer {version('keras3-transformer')}",
    }


def save_run(
    directory: str | Path,
    model: Any,
    tokenizer: Tokenizer | None = None,
    *,
    source_language: str = "und",
    target_language: str = "und",
    options: SearchOptions | None = None,
) -> Run:
    """Makes a run folder of a model that was trained in Python, so that every command takes it.

    The run has a recipe without text, the tokenizer and the model. `training.initial_run` trains on
    from it, and `evaluate` takes the text of `--files`. Its model computes in float32, and its
    kernels include LoRA.

    Example:

    >>> model.fit(ParallelDataset(pairs, tokenizer))
    >>> save_run("runs/mine", model, source_language="en", target_language="de")

    Args:
        directory: A new or empty folder.
        model: A `Seq2Seq`, such as `Transformer`, that is not quantized, or its
            `SlicedLogitsTrainer`.
        tokenizer: The model's. Defaults to None, which means that of the `ParallelDataset` in
            `fit`.
        source_language: Code of BCP 47 or ISO 639. Defaults to "und".
        target_language: As `source_language`.
        options: The search options of the recipe.

    Raises:
        UserError: If `directory` is not empty, if there is no tokenizer, or if a language code does
            not exist.
        ValueError: If the model is no `Seq2Seq` or is quantized, or is not the tokenizer's.
    """
    check_is_free(directory)
    translator = Translator(model, tokenizer)
    model, tokenizer = translator.model, translator.tokenizer
    check_model(model, tokenizer)
    languages = source_language, target_language
    search = options.model_dump() if options else {}
    what, place = "Trained in Python", f"{directory}"
    recipe = recipe_of(directory, model, tokenizer, languages, what, search, place)
    with atomic_write(directory) as partial:
        Run(partial, recipe).write(merge_lora(in_float32(model)), tokenizer)
    return Run(directory, recipe)


def recipe_of(
    directory: str | Path,
    model: Seq2Seq,
    tokenizer: Tokenizer,
    languages: Sequence[str],
    description: str,
    evaluation: dict[str, Any],
    place: str,
) -> Recipe:
    """Returns a recipe without text that describes a trained model. A folder names it.

    Raises `UserError`, which begins with `place`, if a setting is wrong, such as a language.
    """
    kind, *rules = kind_of(tokenizer.source_model)
    rules.append(kind_of(tokenizer.target_model)[1])
    rules = [rule if rule in get_args(Normalization) else "nmt_nfkc" for rule in rules]
    name = re.sub(r"[^\w.-]", "_", Path(directory).resolve().name).lstrip(".-") or "run"
    sizes = {key: getattr(model, key) for key in sorted(type(model).settings())}
    preset = "base" if "base" in model.presets else next(iter(model.presets))
    tree = {
        "name": name,
        "description": description,
        "data": dict(zip(("source_language", "target_language"), languages, strict=True)),
        "tokenizer": {
            "model_type": kind,
            "vocabulary_size": tokenizer.target_vocabulary_size,
            "joint": model.target_vocabulary_size is None,
            "normalization": rules[0],
            "target_normalization": rules[1] if rules[1] != rules[0] else None,
        },
        "model": {"architecture": model.architecture, "preset": preset, **sizes},
        "evaluation": evaluation,
    }
    return validated(tree, place, is_of_run=True)


def export_shared_run(
    run: Run,
    directory: str | Path,
    quantization: RunWeights = "float32",
    sentences: Sequence[str] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Agreement:
    """Writes a copy of a run with all that evaluation and translation need.

    The copy has the recipe without folders of the user, the tokenizer, the finished model in
    float32, the text of validation and test if the run keeps it, and the model's scores on them,
    with the hash of the run's model file. It has no training text, checkpoints and logs. If text
    files in different folders have the same name, these folders stay in the recipe.

    Example:

    >>> export_shared_run(Run.open("runs/quickstart"), "quickstart", "float16")

    Args:
        run: A run with a finished model that is not quantized.
        directory: A new or empty folder.
        quantization: Type of the weights in the file: `"float32"`, or `"float16"`, which takes half
            the space and which Keras converts to float32 as it loads them.
        sentences: Sentences that both models translate for the comparison. Defaults to None, which
            means 16 random ones.
        checkpoint: The checkpoint to copy, see `open_model`. Defaults to the finished model.

    Returns:
        An `Agreement` of the copy's translations with those of the run.

    Raises:
        UserError: If the run has no model, if its scores cannot be read, or if `directory` is not
            empty. If a translation of a float32 copy differs, or a weight exceeds float16.
        ValueError: If `quantization` is unknown, or if the model is quantized.
    """
    check_quantization("run", quantization)
    check_is_free(directory)
    model, tokenizer = open_model(run, checkpoint), run.tokenizer()
    check_model(model, tokenizer)
    sentences = sentences or random_sentences(tokenizer)
    exact = merge_lora(in_float32(model))
    with atomic_write(directory) as partial:
        copy = Run(partial, without_folders(run.recipe))
        copy.write(exact if quantization == "float32" else _halved(exact), tokenizer)
        if (text := run.directory / "text").is_dir():
            shutil.copytree(text, partial / "text", ignore=shutil.ignore_patterns("train.*"))
        for file in filter(Path.is_file, (run.fingerprints_path, run.word_forms_path)):
            shutil.copy(file, partial)
        if scores := current_scores(run, checkpoint):
            write_json(copy.scores_path, scores)
        return compare_translations(
            "copy",
            Translator(exact, tokenizer, run.recipe.evaluation.search_options()),
            sentences,
            scored_translations(Translator.from_run(copy, as_written=True), sentences),
            tolerance=_SCORE_TOLERANCE,
            is_exact=quantization == "float32",
        )


def without_folders(recipe: Recipe) -> Recipe:
    """Returns the recipe without the user's folders, and without what needs an initial run."""
    tree = recipe.model_dump(mode="json", exclude_none=True)
    tree["data"].pop("directory", None)
    for key in ("initial_run", "lora_rank", "lora_parts", "frozen", "teacher"):
        tree["training"].pop(key, None)
    splits = [tree["data"].get(split, {}) for split in ("train", "validation", "test")]
    corpora = [x for split in splits for x in (split if isinstance(split, list) else [split])]
    for corpus in corpora:
        if teacher := corpus.get("translated_by"):
            corpus["translated_by"] = Path(teacher).name
    places = [(files, side) for files in corpora for side in {"source", "target"} & files.keys()]
    paths = {Path(files[side]) for files, side in places}
    if len({path.name for path in paths}) == len(paths):
        for files, side in places:
            files[side] = Path(files[side]).name
    return Recipe.model_validate(tree, context=OF_RUN)


def current_scores(run: Run, checkpoint: Checkpoint | None = None) -> list[dict[str, Any]]:
    """Returns the scores of a run's model on the splits, without folders of the user."""
    folder = None if checkpoint is None else run.checkpoint(checkpoint)
    model = run.scores.scored_model(folder)["checkpoint_sha256"]
    return [
        {name: value for name, value in entry.items() if name != "checkpoint"}
        for entry in run.scores.entries()
        if entry.get("checkpoint_sha256") == model and "split" in entry
    ]


def _halved(model: Seq2Seq) -> Seq2Seq:
    """Returns a copy whose file has float16 weights, but the configuration of `model`."""
    half = type(model).from_config({**model.get_config(), "dtype": "float16"})
    half.set_weights(model.get_weights())
    check_finite(half, "the run")
    half.get_config = model.get_config
    return half
