"""The recipe aligns the three formats, and cleans the pairs."""

import sys

from support.debian_files import translations, write_package


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
