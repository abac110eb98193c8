"""The recipe aligns the three formats, and cleans the pairs."""

import io
import struct
import sys
import tarfile

import pytest

pytestmark = pytest.mark.once


def write_package(path, files):
    """Writes a Debian package: an `ar` archive with a compressed `tar` archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, part in (
            ("debian-binary", b"2.0\n"),
            ("control.tar.xz", b"odd"),
            ("data.tar.xz", data.getvalue()),
        ):
            file.write(f"{name:16}{0:<12}{0:<6}{0:<6}{0:<8}{len(part):<10}`\n".encode())
            file.write(part + b"\n" * (len(part) % 2))


def translations(texts):
    """Returns a .mo file of GNU gettext."""
    start, tables, body = 28 + 16 * len(texts), [], b""
    for side in (list(texts), list(texts.values())):
        for text in side:
            tables.append(struct.pack("<2I", len(text.encode()), start + len(body)))
            body += text.encode() + b"\0"
    header = struct.pack("<7I", 0x950412DE, 0, len(texts), 28, 28 + 8 * len(texts), 0, 0)
    return header + b"".join(tables) + body


def help_page(text):
    keys = (
        '<span><span hidden="true" class="MAC">Command</span>'
        '<span hidden="true" id="default1">Ctrl</span></span>'
    )
    return f'<p id="hd_1">{text}</p><div><p id="par_2">{keys}: {text}</p></div>'.encode()


def gnome_page(*texts):
    body = "".join(f"<p>{text}</p>" for text in texts)
    return f'<page xmlns="http://projectmallard.org/1.0/">{body}</page>'.encode()


def test_corpus_is_made_of_packages(recipe, tmp_path, monkeypatch, capsys):
    names = [line.split()[0].rpartition("/")[2] for line in recipe["PACKAGES"].split("\n")[1:-1]]
    files = {name.partition("_")[0]: {} for name in names}
    help_folder, gnome_folder = "./usr/share/libreoffice/help", "./usr/share/help"
    files["libreoffice-help-en-us"] = {f"{help_folder}/en-US/text/a.html": help_page("Save it")}
    files["libreoffice-help-ko"] = {f"{help_folder}/ko/text/a.html": help_page("저장합니다")}
    files["gnome-user-docs"] = {
        f"{gnome_folder}/C/a/b.page": gnome_page("Press <key>Esc</key> now. You are done.", "End"),
        f"{gnome_folder}/ko/a/b.page": gnome_page("지금 Esc를 누릅니다. 끝났습니다.", "끝"),
        f"{gnome_folder}/C/a/c.page": gnome_page("Only here", "and here"),
        f"{gnome_folder}/ko/a/c.page": gnome_page("여기에만"),
    }
    texts = {"": "Language: ko", "menu\4_Open %s": "%s 열기(_O)", "save  it": "다른 번역"}
    files["krita-l10n"] = {"./usr/share/locale/ko/LC_MESSAGES/krita.mo": translations(texts)}
    for name, content in files.items():
        write_package(tmp_path / f"{name}_1_all.deb", content)
    output = tmp_path / "corpus"
    arguments = ["debian_en_ko.py", str(output), "--data-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    recipe["main"]()
    assert (output / "en-ko.tsv").read_text("utf-8").splitlines() == [
        "Save it\t저장합니다",
        "Ctrl: Save it\tCtrl: 저장합니다",
        "Press Esc now.\t지금 Esc를 누릅니다.",
        "You are done.\t끝났습니다.",
        "End\t끝",
        "Open %s\t%s 열기",
    ]
    assert "6 pairs" in capsys.readouterr().out
