"""Files of models that lie are refused in one line; what is left is loaded as the file has it."""

import json
import re
import resource
import struct
import zipfile
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from support.foreign_models import hugging_face_folder, marian_bin, marian_files
from support.time_limit import time_limit

from keras_transformer import Transformer, UserError, import_run
from keras_transformer.formats.ctranslate2 import (
    _as_floats,
    _read,
    export_ctranslate2,
    read_ctranslate2,
)
from keras_transformer.formats.hugging_face import read_hugging_face
from keras_transformer.formats.marian import read_marian
from keras_transformer.formats.model_files import (
    read_marian_bin,
    read_npz,
    read_safetensors,
    read_torch,
    reading,
)
from keras_transformer.runs.loading import load_model

# What a byte of the value stands for, so that another value is another model, not a damaged one.
SETTINGS = rb"/(?:num_heads|activation|pre_norm|num_source_embeddings|alignment_\w+)\0\0.(....)"


def read(place: Path):
    """The arrays in the files, the model, and all else that a run would have of it."""
    if place.suffix == ".keras":
        model = load_model(place)
        return {x.path: np.array(x) for x in model.weights}, model, ()
    readers = {"ctranslate2": read_ctranslate2, "marian": read_marian}
    with reading(place):
        foreign = readers.get(place.name, read_hugging_face)(place)
        model, tokenizer = foreign.convert()
    others = tokenizer.fingerprint, tokenizer.frames, foreign.evaluation, foreign.languages
    return foreign.weights, model, others


def state(place: Path):
    _, model, others = read(place)
    config = {key: x for key, x in model.get_config().items() if key != "name"}
    return [np.asarray(x) for x in model.get_weights()], (json.dumps(config, default=str), others)


def files(name: str, folder: Path) -> tuple[Path, Path]:
    """A model in a format: what is read, and the file in it that is damaged."""
    marian = folder / "marian"
    if name in ("npz", "bin", "yaml"):
        file = "vocab.yml" if name == "yaml" else f"model.{name}"
        return marian_files(marian, name), marian / file
    place = hugging_face_folder(folder / "model")
    if name == "vocab":
        return place, place / "vocab.json"
    if name == "safetensors":
        return place, place / "model.safetensors"
    run = import_run(place, folder / "run")
    if name == "keras":
        return run.model_path, run.model_path
    if name == "torch":
        torch = pytest.importorskip("torch", reason="PyTorch is an optional dependency")
        weights = read_hugging_face(place).weights
        tensors = {key: torch.tensor(np.array(x)) for key, x in weights.items()}
        torch.save(tensors, place / "pytorch_model.bin")
        (place / "model.safetensors").unlink()
        return place, place / "pytorch_model.bin"
    if not find_spec("ctranslate2"):
        pytest.skip("ctranslate2 is an optional dependency")
    export_ctranslate2(load_model(run.model_path), run.tokenizer(), folder / "ctranslate2")
    return folder / "ctranslate2", folder / "ctranslate2" / "model.bin"


def damaged(content: bytes, random: np.random.Generator, kept: np.ndarray) -> bytes:
    """Another structure: some bytes that are not `kept` are changed, removed, added or doubled."""
    data, places = bytearray(content), np.flatnonzero(~kept)
    start = int(random.choice(places))
    end = start + int(random.choice([1, 1, 2, 8, 64]))
    while end > start + 1 and kept[start:end].any():
        end -= 1
    match random.integers(6):
        case 0:
            data[start] ^= 1 << random.integers(8)
        case 1:
            data[start:end] = random.bytes(end - start)
        case 2:
            del data[start:end]
        case 3:
            data[start:start] = random.bytes(end - start)
        case 4:
            data[start:start] = data[start:end]
        case 5:
            del data[start:]
    return bytes(data)


def changed(content: bytes, value: np.ndarray, random: np.random.Generator) -> tuple[bytes, float]:
    """The file with another finite number in a weight, and that number. Archives fit again."""
    old, index = value.tobytes("A"), int(random.integers(value.size))
    number = np.float32(random.normal() * 10.0 ** random.integers(-30, 30))
    new = np.frombuffer(old, "f4").copy()
    new[index] = number
    if content[:2] != b"PK":
        return content.replace(old, new.tobytes()), number
    output = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as source, zipfile.ZipFile(output, "w") as target:
        for member in source.namelist():
            target.writestr(member, source.read(member).replace(old, new.tobytes()))
    return output.getvalue(), number


FORMATS = ["safetensors", "torch", "npz", "bin", "ctranslate2", "keras", "vocab", "yaml"]
VOCABULARIES = ("vocab", "yaml")  # Another piece is another vocabulary, not damage.


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused_or_read_as_it_is(name, count, tmp_path):
    place, path = files(name, tmp_path)
    content, (weights, others) = path.read_bytes(), state(place)
    in_file = {key: np.array(x) for key, x in read(place)[0].items() if name not in VOCABULARIES}
    kept = np.zeros(len(content), bool)
    for array in in_file.values():
        start = content.index(array.tobytes("A"))  # Those of Marian are transposed.
        kept[start : start + array.nbytes] = True
    # Another position in a table is a model with another kind of positions.
    arrays = [x for key, x in in_file.items() if x.size > 1 and "position" not in key]
    for match in re.finditer(SETTINGS, content, re.DOTALL):
        kept[match.end() : match.end() + struct.unpack("<I", match[1])[0]] = True
    random, refused, before = np.random.default_rng(count), 0, peak_mebibytes()
    for number in range(count):
        is_payload = number % 5 == 0 and bool(arrays)
        if is_payload:
            array = arrays[random.integers(len(arrays))]
            new, value = changed(content, array, random)
        else:
            new = damaged(content, random, kept)
        path.write_bytes(new)
        try:
            with time_limit(60):
                found, found_others = state(place)
        except UserError as error:
            assert str(error).strip() and not is_payload
            refused += 1
            continue
        if name in VOCABULARIES:
            continue
        assert found_others == others, number
        differences = [one[one != other] for one, other in zip(found, weights, strict=True)]
        assert {*np.concatenate(differences).tolist()} <= ({float(value)} if is_payload else set())
    assert refused > count // 3
    assert peak_mebibytes() < before + 64


def peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


ONE = np.ones((2, 3), "f4")


def safetensors(header: str, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + data


def entry(shape=(2, 3), start=0, end=24, dtype="F32") -> str:
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [start, end]})


def archive(*members: tuple[str, np.ndarray]) -> bytes:
    output = BytesIO()
    with zipfile.ZipFile(output, "w") as file:
        for name, array in members:
            content = BytesIO()
            np.save(content, array)
            file.writestr(name, content.getvalue())
    return output.getvalue()


def variable(name: str, shape=(2, 3), kind=0, size=24) -> bytes:
    """A variable of CTranslate2."""
    text = struct.pack("<H", len(name)) + name.encode()
    return (
        text
        + struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, kind, size)
        + bytes(24 if size < 24 else size)
    )


def ctranslate2(*variables: bytes, aliases: bytes = struct.pack("<I", 0)) -> bytes:
    start = struct.pack("<IH", 6, 1) + b"x" + struct.pack("<II", 1, len(variables))
    return start + b"".join(variables) + aliases


def alias(*pairs: tuple[str, str]) -> bytes:
    texts = [x for pair in pairs for x in pair]
    return struct.pack("<I", len(pairs)) + b"".join(
        struct.pack("<H", len(x)) + x.encode() for x in texts
    )


BIN = marian_bin({"a": ONE, "b": ONE})
LIES = [
    (read_safetensors, safetensors(f'{{"a": {entry()}, "a": {entry()}}}', bytes(24)), "a twice"),
    (read_safetensors, safetensors(f'{{"a": {entry()}}}', bytes(28)), "do not fit"),
    (read_safetensors, safetensors(f'{{"a": {entry((-2, -3))}}}', bytes(24)), "negative|unknown"),
    (read_safetensors, safetensors(f'{{"a": {entry(dtype="I32")}}}', bytes(24)), "I32"),
    (read_npz, archive(("a.npy", ONE), ("a", ONE)), "a twice"),
    (read_npz, archive(("a.npy", ONE), ("a.npy", ONE)), "a.npy twice"),
    (read_marian_bin, marian_bin({"a": ONE}) * 2, "do not fit"),
    (read_marian_bin, BIN.replace(b"b\0", b"a\0"), "a twice"),
    (read_marian_bin, BIN.replace(struct.pack("<Q", 256), struct.pack("<Q", 24), 1), "do not fit"),
    (read_marian_bin, BIN.replace(struct.pack("<2i", 2, 3), struct.pack("<2i", 2**30, 3), 1), ""),
    (_read, ctranslate2(variable("a"), variable("a")), "a twice"),
    (_read, ctranslate2(variable("a"), aliases=alias(("a", "a"))), "a twice"),
    (_read, ctranslate2(variable("a"), aliases=alias(("b", "c"))), "'c'"),
    (_read, ctranslate2(variable("a", size=20)), "do not fit"),
    (
        _read,
        ctranslate2(
            variable("a", (100, 100), size=40_000),
            aliases=alias(*((f"{x}", "a") for x in range(900))),
        ),
        "has at most",
    ),
]


@pytest.mark.parametrize(("reader", "content", "message"), LIES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_metadata_that_lies_is_refused(reader, content, message, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        reader(path)
    assert "\n" not in str(caught.value)


def test_what_an_import_cannot_use_is_refused_and_marians_folder_found(tmp_path):
    folder = marian_files(tmp_path / "marian", "bin")
    run = import_run(folder, tmp_path / "run", vocabularies=[folder / "vocab.spm"])
    for source, vocabularies, message in (
        (hugging_face_folder(tmp_path / "hub"), [folder], "its own vocabulary is beside it"),
        (tmp_path / "none", [], "there is no such file or folder"),
    ):
        with pytest.raises(UserError, match=message):
            import_run(source, tmp_path / "no", vocabularies=vocabularies)
    assert run.recipe.tokenizer.vocabulary_size > 0


def test_small_files_do_not_fill_the_memory(tmp_path):
    before = peak_mebibytes()
    row, scales = np.ones((1, 40_000), "i1"), np.ones(40_000, "f4")
    with pytest.raises(ValueError):
        _as_floats({"a/weight": row, "a/weight_scale": scales})
    path = tmp_path / "model.keras"
    Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7).save(path)
    bombs = {"config.json": (b'"d_ff": 7', b'"d_ff": 9000000'), "model.weights.h5": (b"", b"")}
    for bomb, (old, new) in bombs.items():
        with zipfile.ZipFile(path) as source:
            members = {x: source.read(x) for x in source.namelist()}
        members[bomb] = members[bomb].replace(old, new) if old else bytes(2**30 // 4)
        with zipfile.ZipFile(tmp_path / "bomb.keras", "w", zipfile.ZIP_DEFLATED) as target:
            for name, content in members.items():
                target.writestr(name, content)
        del members
        before = max(before, peak_mebibytes())
        with pytest.raises(UserError, match="larger than the file|must have at most"):
            load_model(tmp_path / "bomb.keras")
        assert peak_mebibytes() < before + 64


def test_a_pickle_has_whole_tensors_alone(tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is an optional dependency")
    one, path = torch.zeros(2, 3), tmp_path / "model.bin"
    for part in (torch.zeros(1).expand(10**6, 10**5), one.T, one[1:], torch.zeros(9)[::3]):
        torch.save({"a": part}, path)
        with pytest.raises(UserError, match=r"all of its storage. Received: \['a'\]"):
            read_torch(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.float64(1e300), "not finite in float32"),
        (np.float32("nan"), "not finite in float32"),
        (np.complex64(1 + 2j), "does not have the weights of.*complex64"),
        (np.float64(1 / 3), None),
    ],
)
def test_weights_are_checked_as_the_model_has_them(value, message, tmp_path):
    folder = marian_files(tmp_path / "marian")
    with np.load(folder / "model.npz") as file:
        arrays = dict(file)
    arrays["Wemb"] = arrays["Wemb"].astype(value.dtype)
    arrays["Wemb"][30, 5] = value
    np.savez(folder / "model.npz", **arrays)
    if message:
        with pytest.raises(UserError, match=message):
            import_run(folder, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    else:
        model, _ = read_marian(folder).convert()
        assert np.float32(value) in np.array(model.weights[0])
