"""Documents in, documents out."""

import re

import pytest
from support.document_doubles import Double, new_double

from keras_transformer.documents import read_document, translate_document
from keras_transformer.errors import UserError

# U writes words in capitals, R also reverses the words of a sentence.
CASES = r"""
U html <p>Tom <b>sleeps</b>.</p> → <p>TOM <b>SLEEPS</b>.</p>
R html <p>a <b>red car</b> here.</p> → <p>HERE <b>CAR RED</b> A.</p>
R html <p><a href="x">my <b>big</b> house</a> burns.</p> → <p>BURNS <a href="x">HOUSE <b>BIG</b> MY</a>.</p>
U html <p><b>Tom sleeps.</b></p> → <p><b>TOM SLEEPS.</b></p>
R html <p>I see <b><i>Mary</i></b>.</p> → <p><b><i>MARY</i></b> SEE I.</p>
U html <p>this <img src="a.png"> picture</p> → <p>THIS <img src="a.png"> PICTURE</p>
R html <p>one two<br>three four</p> → <p>TWO ONE<br>FOUR THREE</p>
U html <p>I met <b>Tom </b>yesterday.</p> → <p>I MET <b>TOM</b> YESTERDAY.</p>
U html <p>Look <b>here.</p><p>x</p> → <p>LOOK <b>HERE.</p><p>X</p>
U html <p>R&amp;D is &lt;3</p> → <p>R&amp;D IS &lt;3</p>
R html <p>Run <code>a &lt; b</code> now.</p> → <p>NOW <code>a &lt; b</code> RUN.</p>
U html <script>if (a<b) x("<p>")</script><style>p{}</style><pre>a  b</pre><p>c</p> → <script>if (a<b) x("<p>")</script><style>p{}</style><pre>a  b</pre><p>C</p>
U html <p>The <span translate="no">Red Hat</span> firm</p> → <p>THE <span translate="no">Red Hat</span> FIRM</p>
U html <img src="cat.png" alt="a cat" title="my cat"> → <img src="cat.png" alt="A CAT" title="MY CAT">
U html <html lang="en"><p>a</p></html> → <html lang="de"><p>A</p></html>
R html <p>One two. <b>Three four.</b></p> → <p>TWO ONE. <b>FOUR THREE.</b></p>
U html <p>a <!-- c --> b</p> → <p>A <!-- c --> B</p>
U html <p>It is <b>un</b>real.</p> → <p>IT IS <b>UNREAL</b>.</p>
R html <p>a <a id="n1"></a>dog</p> → <p><a id="n1"></a>DOG A</p>
R md # My *red* car → # CAR *RED* MY
U md - See [the page](http://x.org "t") and `code`. → - SEE [THE PAGE](http://x.org "t") AND `code`.
U md ---¶title: a¶---¶```py¶print("a")¶```¶¶| a | **b** |¶|---|---|¶| c | d |¶ → ---¶title: a¶---¶```py¶print("a")¶```¶¶| A | **B** |¶|---|---|¶| C | D |¶
U md > [!NOTE]¶> a¶¶One | two $x_1$ :tada:, $5¶¶???+ note "note"¶    b¶¶=== "c"¶¶d¶: e¶¶$$¶f¶$$¶ → > [!NOTE]¶> A¶¶ONE | TWO $x_1$ :tada:, $5¶¶???+ note "NOTE"¶    B¶¶=== "c"¶¶D¶: E¶¶$$¶f¶$$¶
U srt 1¶00:00:01,000 --> 00:00:02,500¶<i>Hello¶world.</i>¶ → 1¶00:00:01,000 --> 00:00:02,500¶<i>HELLO¶WORLD.</i>¶
U vtt WEBVTT¶¶NOTE keep¶¶a1¶00:01.000 --> 00:02.000 align:start¶<v Tom>Hi there¶ → WEBVTT¶¶NOTE keep¶¶a1¶00:01.000 --> 00:02.000 align:start¶<v Tom>HI THERE¶
U html <div>¶  <h1>&nbsp;A dog </h1>¶\t<p>it  is¶so&hellip;</div> → <div>¶  <h1>&nbsp;A DOG </h1>¶\t<p>IT IS SO…</div>
R html <a href="x"><svg><path/></svg> my <code>a b</code> file</a> 42 → 42 <a href="x"><svg><path/></svg> FILE <code>a b</code> MY</a>
U html <p><a><code>f()</code></a> or <code>g</code>, too</p> → <p><a><code>f()</code></a> OR <code>g</code>, TOO</p>
U html <p lang="fr">oui</p><p lang="en-GB">yes <q lang="fr">non</q></p> → <p lang="fr">oui</p><p lang="de">YES <q lang="fr">non</q></p>
U html <META name=description content='a "b" c'><input placeholder=name value=v><input type=submit value=go> → <META name=description content="A &quot;B&quot; C"><input placeholder="NAME" value=v><input type=submit value="GO">
U html <p>a < b & c <b>d</i> e <p translate="no">f <i>g</i></p>h → <p>a &lt; b &amp; C <b>D</i> E <p translate="no">f <i>g</i></p>H
U md > a **b**  ¶> c¶> d¶¶1. x\_y [z][r] ![alt](u) <kbd>Tab</kbd>[^1]¶¶[r]: http://x.org "t" → > A **B**  ¶> C D¶¶1. x_y [Z][r] ![ALT](u) <kbd>Tab</kbd>[^1]¶¶[r]: http://x.org "t"
R md see [`a.B`][x.B] here → HERE [`a.B`][x.B] SEE
U md [a b], [c][] ![d] [`e`] ![f](u) [g]¶¶[a b]: x¶[c]: y¶[d]: z¶[`e`]: w → [A B][a b], [C][c] ![D][d] [`e`] ![F](u) \[G]¶¶[a b]: x¶[c]: y¶[d]: z¶[`e`]: w
R md - [ ] on * top <http://x.org/a>¶¶<!-- a -->¶    b¶ → - [ ] <http://x.org/a> TOP\* ON¶¶<!-- a -->¶    b¶
U md | a \| `x\|y` |¶|---|¶| \`b |¶¶!!! note "a"¶    text¶¶Title¶===¶ → | A \| `x\|y` |¶|---|¶| \`B |¶¶!!! note "A"¶    TEXT¶¶TITLE¶===¶
U srt 1¶00:00:01,000 --> 00:00:02,000¶{\an8}- Hi <i>Tom</i>!¶- Go¶¶2¶00:00:03,000 --> 00:00:04,000¶one two three¶four¶ → 1¶00:00:01,000 --> 00:00:02,000¶{\an8}- HI <i>TOM</i>!¶- GO¶¶2¶00:00:03,000 --> 00:00:04,000¶ONE TWO THREE¶FOUR¶
U vtt WEBVTT¶¶00:01.000 --> 00:02.000¶a &amp; <c.x>b</c> <00:01.500>d¶ → WEBVTT¶¶00:01.000 --> 00:02.000¶A &amp; <c.x>B</c> <00:01.500>D¶
U po msgid ""¶msgstr ""¶"Language: \n"¶¶#, c-format¶msgid ""¶"a <b>b</b> %d\n"¶" \"c\"\n"¶msgstr ""¶¶msgid "x"¶msgid_plural "y"¶msgstr[0] ""¶msgstr[1] ""¶¶msgid "d"¶msgstr "e"¶ → msgid ""¶msgstr ""¶"Language: de\n"¶¶#, fuzzy, c-format¶msgid ""¶"a <b>b</b> %d\n"¶" \"c\"\n"¶msgstr "A <b>B</b> %d\n \"C\"\n"¶¶#, fuzzy¶msgid "x"¶msgid_plural "y"¶msgstr[0] "X"¶msgstr[1] "Y"¶¶msgid "d"¶msgstr "e"¶
U json {"a": "b <i>c</i> {d}\n\ne \"f\" \u00e9 https://x.org", "@a": {"b": ["c"]},¶ "g": [1, {"@h": "i"}, "j", true], "k": ""} → {"a": "B <i>C</i> {d}\n\nE \"F\" É https://x.org", "@a": {"b": ["c"]},¶ "g": [1, {"@h": "i"}, "J", true], "k": ""}
R po #, c-format¶msgid "a %<PRIu32> b %'d <b>cd</b>"¶msgstr ""¶ → #, fuzzy, c-format¶msgid "a %<PRIu32> b %'d <b>cd</b>"¶msgstr "<b>CD</b> %2$'d B %1$<PRIu32> A"¶
R po #, c-format¶msgid "a %s b %d\n\n%u c"¶msgstr ""¶ → #, fuzzy, c-format¶msgid "a %s b %d\n\n%u c"¶msgstr "%2$d B %1$s A\n\nC %3$u"¶
R po #, c-format¶msgid "a %s has %.*s of %m, 5%% %d\n"¶msgstr ""¶¶#, python-format¶msgid "a %s has %d"¶msgstr ""¶ → #, fuzzy, c-format¶msgid "a %s has %.*s of %m, 5%% %d\n"¶msgstr "5%%, %m OF %3$.*2$s HAS %1$s A %4$d\n"¶¶#, fuzzy, python-format¶msgid "a %s has %d"¶msgstr "%d HAS %s A"¶
R po #. type: Plain text¶msgid "see B<a b> I<c> d L<e(1)> or B<-f> <g>h</g> B<< i > j >>"¶msgstr ""¶¶#. type: verbatim¶msgid "k"¶msgstr ""¶¶#. type: Content of: <p>¶msgid "B<l m>"¶msgstr ""¶ → #. type: Plain text¶#, fuzzy¶msgid "see B<a b> I<c> d L<e(1)> or B<-f> <g>h</g> B<< i > j >>"¶msgstr "B<< i > j >> <g>H</g> B<-f> OR L<e(1)> D I<C> B<B A> SEE"¶¶#. type: verbatim¶msgid "k"¶msgstr ""¶¶#. type: Content of: <p>¶#, fuzzy¶msgid "B<l m>"¶msgstr "B<l m>"¶
U json ["a <code>b</code> <b>c</b>", "d <code> e"] → ["A <code>b</code> <b>C</b>", "D <code> E"]
R yaml en:¶  a: b c # d¶  "e": 'f g''s'¶  h: [3, yes, i: j k]¶  l: |¶    m n¶    o p¶  q: >-¶    r s¶    t u¶¶    o¶  v: &w "x\n<b c=\"d\">y z</b>"¶  x: *w¶  z: <b c="d">e</b> f {g}¶ → de:¶  a: "C B" # d¶  "e": 'G''S F'¶  h: [3, yes, i: "K J"]¶  l: |¶    N M¶    P O¶  q: >-¶    U T¶    S R¶¶    O¶  v: &w "X\n<b c=\"d\">Z Y</b>"¶  x: *w¶  z: "{g} F <b c=\"d\">E</b>"¶
U json ["a:\n```yaml\nb: c\n```\nd\n```e```", "```\nf\n```\n\ng"] → ["A:\n```yaml\nb: c\n```\nD\n```e```", "```\nf\n```\n\nG"]
R json ["a {n} b.|c <b>d {n}</b>", "{0} a b|[1,9] c d|[10,*] e f", "a|b", "a b|c", "a (b c|d e)"] → ["B {n} A.|<b>{n} D</b> C", "{0} B A|[1,9] D C|[10,*] F E", "A|B", "b|c A", "E c|d B( A)"]
U json ["a", "b\u0000", "\ud800c", "\ud83d\ude00 d"] → ["A", "b\u0000", "\ud800c", "😀 D"]
R json ["a b: <ul> <li>c <0>d</0></li> </ul> e<br>f 3 <5 > g"] → ["B A: <ul> <li><0>D</0> C</li> </ul> E<br>G> <5 3 F"]
R xlf <?xml version="1.0"?>¶<xliff version='1.2'><file source-language="en-US" original="a">¶ <trans-unit id="1">¶  <source>my <g id="1">red <x id="2"/> car</g> &amp; <bx id="3"/>dog<ex rid="3"/>.</source>¶ </trans-unit><trans-unit id="2"><source>a</source><target>b</target></trans-unit></file></xliff> → <?xml version="1.0"?>¶<xliff version='1.2'><file source-language="en-US" original="a" target-language="de">¶ <trans-unit id="1">¶  <source>my <g id="1">red <x id="2"/> car</g> &amp; <bx id="3"/>dog<ex rid="3"/>.</source>¶  <target state="needs-review-translation"><bx id="3"/>DOG<ex rid="3"/>&amp; <g id="1">CAR <x id="2"/> RED</g> MY.</target>¶ </trans-unit><trans-unit id="2"><source>a</source><target>b</target></trans-unit></file></xliff>
U xlf <xliff version="2.0" srcLang="en" trgLang="de"><file><unit><segment><source>a <pc id="1">b</pc></source><target/></segment></unit><unit translate="no"><segment><source>c</source></segment></unit></file></xliff> → <xliff version="2.0" srcLang="en" trgLang="de"><file><unit><segment state="translated"><source>a <pc id="1">b</pc></source><target>A <pc id="1">B</pc></target></segment></unit><unit translate="no"><segment><source>c</source></segment></unit></file></xliff>
U xlf <xliff version="1.2"><file source-language="en" target-language="en"><trans-unit><source>form.name</source><target>a <x id="1"/></target></trans-unit><trans-unit><source>b</source></trans-unit></file></xliff> → <xliff version="1.2"><file source-language="en" target-language="de"><trans-unit><source>form.name</source><target state="needs-review-translation">A <x id="1"/></target></trans-unit><trans-unit><source>b</source><target state="needs-review-translation">B</target></trans-unit></file></xliff>
U xlf <xliff version="2.0" srcLang="en" trgLang="de"><file><unit><segment state="initial"><source>a <pc id="1">b</pc></source><target>a <pc id="1">b</pc></target></segment><segment><source>a</source><target>a</target></segment><segment state="initial"><source>a</source><target>c</target></segment></unit></file></xliff> → <xliff version="2.0" srcLang="en" trgLang="de"><file><unit><segment state="translated"><source>a <pc id="1">b</pc></source><target>A <pc id="1">B</pc></target></segment><segment><source>a</source><target>a</target></segment><segment state="initial"><source>a</source><target>c</target></segment></unit></file></xliff>
U xlf <xliff version="1.2"><file source-language="en"><trans-unit><source>One. Two.</source><seg-source><mrk mtype="seg" mid="0">One.</mrk> <mrk mtype="seg" mid="1">Two <ph>b</ph>.</mrk></seg-source><target state="new"></target></trans-unit></file></xliff> → <xliff version="1.2"><file source-language="en" target-language="de"><trans-unit><source>One. Two.</source><seg-source><mrk mtype="seg" mid="0">One.</mrk> <mrk mtype="seg" mid="1">Two <ph>b</ph>.</mrk></seg-source><target state="needs-review-translation"><mrk mtype="seg" mid="0">ONE.</mrk> <mrk mtype="seg" mid="1">TWO <ph>b</ph>.</mrk></target></trans-unit></file></xliff>
U txt Hello {name}, you have %d letters at https://x.org/a?b=1. → HELLO {name}, YOU HAVE %d LETTERS AT https://x.org/a?b=1.
U html <p>You have %d letters at https://x.org/a?b=1&amp;c.</p> → <p>YOU HAVE %d LETTERS AT https://x.org/a?b=1&amp;c.</p>
R html <p>a <b>red {x}</b> here.</p> → <p>HERE <b>{x} RED</b> A.</p>
R html <p><b>One two. Three four. Ok</b></p> → <p><b>TWO ONE. FOUR THREE. OK</b></p>
U html <a>Home</a>&nbsp;| <a>Shop &middot; cart</a><p>H<sub>2</sub>O is &lt; 5&nbsp;€, <i>$6</i> → <a>HOME</a>&nbsp;| <a>SHOP &middot; CART</a><p>H<sub>2</sub>O IS &lt; 5&nbsp;€, <i>$6</i>
R html <p>Now press <kbd>Ctrl</kbd> + <kbd>C</kbd>.</p>see <img src="a">. → <p><kbd>Ctrl</kbd> + <kbd>C</kbd> PRESS NOW.</p>SEE <img src="a">.
U html <p>Go <b>→</b> <i>on now</i></p> → <p>GO <b>→</b> <i>ON NOW</i></p>
U html <img alt='a "b"' title='"c" d'> → <img alt="A &quot;B&quot;" title="&quot;C&quot; D">
U xhtml <p>a 5&#160;kg <![CDATA[c > d]]></p> → <p>A 5 kg <![CDATA[c > d]]></p>
U md +++¶title = "a"¶+++¶¶[`f` b][] \_\_lt\_\_¶¶[`f` b]: x → +++¶title = "a"¶+++¶¶[`f` B][`f` b] \_\_lt\_\_¶¶[`f` b]: x
U json ["a `\\u0000` b"] → ["A `\\u0000` B"]
U po msgid ""¶msgstr "charset=ASCII\n"¶¶#, fuzzy¶msgid "<p>a</p>\n<p>b c | d</p>"¶msgstr ""¶ → msgid ""¶msgstr "charset=UTF-8\n"¶¶#, fuzzy¶msgid "<p>a</p>\n<p>b c | d</p>"¶msgstr "<p>A</p>\n<p>B C | D</p>"¶
"""  # noqa: E501

STAND_INS = ("Kim", "Rom", "Ute")  # None is in the cases.


def translated(folder, suffix, content, reverse=False, languages=("en", "de"), **settings):
    path, output = folder / f"page.{suffix}", folder / f"page.out.{suffix}"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    translate_document(
        new_double(STAND_INS, is_reversed=reverse), path, output, languages=languages, **settings
    )
    found = output.read_bytes()
    return found.decode() if isinstance(content, str) else found


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_markup_stays_with_its_words(case, tmp_path):
    double, suffix, rest = case.split(" ", 2)
    source, expected = rest.replace("¶", "\n").replace("\\t<p>", "\t<p>").split(" → ")
    assert translated(tmp_path, suffix, source, double == "R") == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", b""),
        (b"<![)><p>a<![if x]><p>b", b"<![)><p>A<![if x]><p>B"),
        ("\ufeff<p>ä</p>\r\n".encode(), "\ufeff<p>Ä</p>\r\n".encode()),
        ("\ufeff<p>ä</p>".encode("utf-16-le"), "\ufeff<p>Ä</p>".encode("utf-16-le")),
        (b"<meta charset='latin1'><i>\xe4\x93</i>", b"<meta charset='latin1'><i>\xc4\x93</i>"),
        # Capital ÿ is not in the encoding.
        (
            b'<?xml version="1" encoding="cp1252"?>\xff',
            b'<?xml version="1" encoding="cp1252"?>\x9f',
        ),
        (b"<meta charset=utf-16><p>a", b"<meta charset=utf-16><p>A"),
        (b"<meta charset=latin9>\xff \xb5", b"<meta charset=latin9>\xbe &#924;"),
    ],
)
def test_bytes_of_a_page_stay(content, expected, tmp_path):
    assert translated(tmp_path, "html", content) == expected


@pytest.mark.parametrize(
    ("content", "target", "expected"),
    [
        ("<html><body>a", "ar", '<html lang="ar" dir="rtl"><body>A'),
        ('<html lang="he" dir="rtl"><p>a', "en", '<html lang="en" dir="ltr"><p>A'),
        ('<HTML DIR=ltr xml:lang="en"><p>a', "fa", '<HTML dir="rtl" xml:lang="fa" lang="fa"><p>A'),
    ],
)
def test_a_page_has_the_direction_of_its_language(content, target, expected, tmp_path):
    assert translated(tmp_path, "html", content, languages=("en", target)) == expected


XLIFF = '<xliff version="1.2"><file source-language="{}">{}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"", "the suffix of a document must be one of"),
        ("a", b"", "or give its format: text, html"),
        ("a.html", b"\xff", "text must be of the encoding utf-8. Received: 'utf-8' codec"),
        ("a.html", b'<meta charset="utf-9">', "the encoding utf-9"),
        ("a.po", b'msgid "a\nmsgstr ""\n', "Syntax error"),
        (
            "a.json",
            b'{"a": b}',
            "a.json: JSON must be well-formed. Received: Expecting value: line",
        ),
        ("a.yml", b"a: b: c", "a.yml: YAML must be well-formed. Received: mapping values are not"),
        ("a.po", b'msgid ""\nmsgstr ""\n"Language: fr\\n"\n', "its target language must be"),
        ("a.xlf", XLIFF.format("en", "").encode(), "a.xlf, line 1: no element found"),
        (
            "a.xlf",
            XLIFF.format("fr", "</file></xliff>").encode(),
            "must be that of the model, en. Received: fr",
        ),
        ("a.xlf", b'<!DOCTYPE x [<!ENTITY e "f">]><x>&e;</x>', "an entity that XML does not"),
    ],
)
def test_refusals(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)):
        translate_document(new_double(), tmp_path / name, tmp_path / "b", languages=("en", "de"))
    assert not (tmp_path / "b").exists()


def test_a_document_is_not_its_own_output(tmp_path):
    (tmp_path / "a.md").write_text("a")
    with pytest.raises(UserError, match="output must not be"):
        translate_document(new_double(), tmp_path / "a.md", tmp_path / "a.md")


def test_the_format_can_be_given_and_an_error_leaves_the_old_output(tmp_path, monkeypatch):
    assert translated(tmp_path, "txt", "a <b>b</b>", format="html") == "A <b>B</b>"
    monkeypatch.setattr(Double, "_hypothesis", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        translated(tmp_path, "txt", "c")
    assert (tmp_path / "page.out.txt").read_text() == "A <b>B</b>"
    assert len([*tmp_path.iterdir()]) == 2


def test_the_beginning_of_a_paragraph_begins_no_other_block(tmp_path):
    (tmp_path / "a.md").write_text("a\n\n- b\n")
    document = read_document(tmp_path / "a.md")
    cases = {"3. x": r"3\. x", "- x": r"\- x", "## x": r"\## x", ">x": r"\>x", "-x": "-x"}
    for text, escaped in cases.items():
        assert document.render([text, "b"]) == f"{escaped}\n\n- b\n"


def test_a_sentence_of_several_subtitles_is_translated_as_a_whole(tmp_path):
    times = [f"{n}\n00:00:0{n},000 --> 00:00:0{n},500\n" for n in range(1, 6)]
    texts = "I was,\n", "she said,\nat home.\n", "Go on\n", "- to bed\n", "No\n"
    (tmp_path / "a.srt").write_text("\n".join(map("".join, zip(times, texts, strict=True))))
    document = read_document(tmp_path / "a.srt")
    assert [x.text for x in document.segments] == [
        *("I was, she said, at home.", "Go on", "to bed", "No")
    ]
    for words, lines in (
        ("Ich war, wie sie sagte, zu Hause.", ("Ich war,\n", "wie sie sagte,\nzu Hause.\n")),
        ("", ("", "")),  # No time is lost.
    ):
        given = document.render([words, "Geh", "ins Bett", "Nein"])
        found = "\n".join(
            map("".join, zip(times, [*lines, "Geh\n", "- ins Bett\n", "Nein\n"], strict=True))
        )
        assert (given == found) if words else (given.split() == found.split())
    assert "\n\n2\n" in given
    assert translated(tmp_path, "vtt", "WEBVTT\n\n1 --> 2\na &amp;\n\n2 --> 3\nb") == (
        "WEBVTT\n\n1 --> 2\nA &amp;\n\n2 --> 3\nB"
    )


def test_the_name_of_a_speaker_begins_a_line(tmp_path):
    (tmp_path / "a.srt").write_text("1\n1 --> 2\nTOM (V.O.): Go\nhome: now.\nANN: No.\n")
    segments = read_document(tmp_path / "a.srt").segments
    assert [x.text for x in segments] == ["TOM (V.O.): Go home: now.", "ANN: No."]


def test_lines_of_subtitles_are_never_blank(tmp_path):
    cue = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
    given = cue.format("a dog\nbarks at\nme")
    for words, lines in (("Ein Hund", "Ein\nHun\nd"), ("我是狗", "我\n是\n狗"), ("X", "X")):
        (tmp_path / "a.srt").write_text(given)
        document = read_document(tmp_path / "a.srt")
        assert document.render([words]).splitlines()[2:] == lines.splitlines(), words
