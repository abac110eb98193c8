"""The recipe aligns each format, leaves out what does not fit, and holds pairs out."""

import gzip
import sys

from support.debian_files import translations, write_package

ENGLISH_PAGE = r""".TH LS 1
.\" a comment
.SH NAME
ls \- list directory contents
.TP
.BR \-a ", " \-\-all
do not ignore entries starting with .
.SH BUGS
Only the English page has this.
.PP
And this paragraph.
"""
GERMAN_PAGE = r""".TH LS 1
.SH BEZEICHNUNG
ls \- Verzeichnisinhalte auflisten
.TP
\fB\-a\fP, \fB\-\-all\fP
Einträge, die mit . beginnen,
nicht verstecken
.SH FEHLER
Nur das.
.SH ÜBERSETZUNG
Von jemandem.
"""
PO = """msgid ""
msgstr "Language: de\\n"

#, fuzzy
msgid "A guess"
msgstr "Eine Vermutung"

msgid ""
"Remove the <command>apt</command> "
"package."
msgstr "Das Paket <command>apt</command> entfernen."

#~ msgid "An old text"
#~ msgstr "Ein alter Text"
"""


def description(md5, code, *paragraphs):
    first, *others = paragraphs
    body = "\n .\n".join(f" {text}" for text in others)
    return f"Package: a\nDescription-md5: {md5}\nDescription-{code}: {first}\n{body}\n\n"


def test_corpus_is_made_of_files(recipe, tmp_path, monkeypatch, capsys):
    files = [line.split()[0].rpartition("/")[2] for line in recipe["PACKAGES"].split("\n")[1:-1]]
    contents = {name: {} for name in files}

    def put(name, **content):
        (file,) = (x for x in files if x.partition("_")[0] == name)
        contents[file] = content

    man = "./usr/share/man/{}man1/ls.1.gz"
    put("coreutils", **{man.format(""): gzip.compress(ENGLISH_PAGE.encode())})
    put("manpages-de", **{man.format("de/"): gzip.compress(GERMAN_PAGE.encode())})
    page = "<h1>{}</h1><p>{} <b>{}</b>.</p><pre>x</pre>"
    folder = "./usr/share/gimp/2.0/help"
    put("gimp-help-en", **{f"{folder}/en/a.html": page.format("Brush", "Use the", "pen").encode()})
    german = page.format("Pinsel", "Nutzen Sie den", "Stift").encode()
    put("gimp-help-de", **{f"{folder}/de/a.html": german})
    put("apt", **{"apt-1/doc/po/de.po": PO.encode()})
    mo = translations({"": "Language: de", "_Open %s": "%s öffnen", "OK button": "OK button"})
    put("vlc-l10n", **{"./usr/share/locale/de/LC_MESSAGES/vlc.mo": mo})
    for name, content in contents.items():
        if name.startswith("Translation"):
            german = name.startswith("Translation-de")
            texts = ("Kurz", "Ein langer Text.") if german else ("Short", "A long text.")
            text = description("12", name[12:14], *texts)
            text += description("34", name[12:14], "Only one of the two", *["more"] * german)
            (tmp_path / name).write_text(text, "utf-8")
        else:
            write_package(tmp_path / name, content)
    output = tmp_path / "corpus"
    arguments = [str(output), "--data-dir", str(tmp_path), "--held-out", "1"]
    monkeypatch.setattr(sys, "argv", ["debian_en_de.py", *arguments])
    recipe["main"]()
    splits = [
        [
            (output / f"debian.{split}.{code}").read_text("utf-8").splitlines()
            for code in ("en", "de")
        ]
        for split in ("train", "validation", "test")
    ]
    assert [len(english) for english, _ in splits] == [7, 1, 1]
    pairs = {pair for english, german in splits for pair in zip(english, german, strict=True)}
    assert pairs == {
        ("Short", "Kurz"),
        ("A long text.", "Ein langer Text."),
        ("NAME", "BEZEICHNUNG"),
        ("ls - list directory contents", "ls - Verzeichnisinhalte auflisten"),
        (
            "do not ignore entries starting with .",
            "Einträge, die mit . beginnen, nicht verstecken",
        ),
        ("Brush", "Pinsel"),
        ("Use the pen.", "Nutzen Sie den Stift."),
        ("Remove the apt package.", "Das Paket apt entfernen."),
        ("Open %s", "%s öffnen"),
    }
    assert "debian.train: 7 pairs" in capsys.readouterr().out
