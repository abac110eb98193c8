"""What stays as it is: placeholders, addresses, identifiers, numbers and emoji."""

from dataclasses import replace

import pytest
import regex

from keras_transformer.translation import WordForms, protected_text
from keras_transformer.translation.protected_text import numbers_differ, protected, with_stand_ins


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "{name}, {{a b}}, ${owner} #{x} @{y} {% if y %} <%= z %> [[a|b]]",
            ["{name}", "{{a b}}", "${owner}", "#{x}", "@{y}", "<%= z %>", "[[a|b]]"],
        ),
        ("{n, plural, one {# dog} other {# dogs}}!", ["{n, plural, one {# dog} other {# dogs}}"]),
        (
            "{{P:$2|one|{{N:{{{1}}}|b}} c}}! {{ a } }} b",
            ["{{P:$2|one|{{N:{{{1}}}|b}} c}}", "{{ a } }}"],
        ),
        ("[[a/{{B}}|c]] {d, e {f}", ["[[a/{{B}}|c]]", "{f}"]),
        ("%s %d%%, %1$s %(user)s", ["%s", "%d%%", "%1$s", "%(user)s"]),
        ("%-5.2f %ld %1 %NAME% %@", ["%-5.2f", "%ld", "%1", "%NAME%", "%@"]),
        ("<a@b.org>, <x:y>, &apt-get; a<b", ["<a@b.org>", "<x:y>", "&apt-get;"]),
        ("%.*s %jd %04o %*d, %%%s %%", ["%.*s", "%jd", "%04o", "%*d", "%%%s", "%%"]),
        (
            "5 %<PRIu32> 0%o \\0%c a.b=%<PRIu32> %5<PRId64>, %<c>d",
            ["%<PRIu32>", "0%o", "\\0%c", "a.b=%<PRIu32>", "%5<PRId64>", "%<c>d"],
        ),
        (
            "v{a} {{b}}px {c}x{d}, {e}/{f}ms; {g}word",
            ["v{a}", "{{b}}px", "{c}x{d}", "{e}/{f}ms", "{g}"],
        ),
        ("(%'f) %%10f %1% --to=si '~a' ~5", ["%'f", "%%10f", "%1%", "--to=si", "~a"]),
        ("-s%s %sB/%sB (l%c): '%c%c', '%d='", ["-s%s", "%sB/%sB", "l%c", "%c%c", "%d="]),
        ("$HOME $t(a.b) costs $100, 100% of it", ["$HOME", "$t(a.b)"]),
        (
            "$1page $1new=b costs $5, $10k; r$1 .$1 2001-$1",
            ["$1page", "$1new=b", "r$1", ".$1", "2001-$1"],
        ),
        (
            "$A$ ${a ? {b} : 'c'} #{d[0]} __e__ __f__.py @:g.h, @.upper:{'i'}",
            ["$A$", "${a ? {b} : 'c'}", "#{d[0]}", "__e__", "__f__.py", "@:g.h", "@.upper:{'i'}"],
        ),
        ("2.5-inch 1.2.3-beta.4, 2.0rc1 1.2.3+b-0c.", ["1.2.3-beta.4", "2.0rc1", "1.2.3+b-0c"]),
        ("Hello :name, :smile: a:b :) 10:30", [":name", ":smile:"]),
        (
            "at 2024-03-15T10:30:00Z, C:\\a\\b.txt /a:/b",
            ["2024-03-15T10:30:00Z", "C:\\a\\b.txt", "/a:/b"],
        ),
        (
            "(https://x.org/a?b=1). www.x.de, a.b@c.org!",
            ["https://x.org/a?b=1", "www.x.de", "a.b@c.org"],
        ),
        (
            "http://, https:// or &lt;http://a.b&gt;",
            ["http://", "https://", "&lt;", "http://a.b", "&gt;"],
        ),
        ("Go to example.com. The end is a_b(2).pdf.", ["example.com", "a_b(2).pdf"]),
        (
            "v1.2.3 22AF93 598076e MP3 my_var a-b.json --force -f A=b MY_A=b.",
            [
                "v1.2.3",
                "22AF93",
                "598076e",
                "MP3",
                "my_var",
                "a-b.json",
                "--force",
                "-f",
                "A=b",
                "MY_A=b",
            ],
        ),
        ("Open /etc/fstab, (~/a.b) ../c-d. and/or /", ["/etc/fstab", "~/a.b", "../c-d"]),
        ("Press `Enter` or `a b`s, ```c```, don`t` wait.", ["`Enter`", "`a b`s", "```c```"]),
        ('by "|", \'/\' or "$1", "a" "..."', ['"|"', "'/'", '"$1"']),
        ("R&D, C#, .NET and C++. A & B a&b", ["R&D", "C#", ".NET", "C++"]),
        ("a\\nb", ["\\n"]),
        (
            "f(x), ab(s) a(n) print() a.b() Ctrl+C A-Z I/O a^2 a|b.",
            ["f(x)", "print()", "a.b()", "Ctrl+C", "A-Z", "I/O", "a^2", "a|b"],
        ),
        ("If y = 2x^2 - 5 and a==1.2, p<0.5; a<b", ["y = 2x^2 - 5", "a==1.2", "p<0.5"]),
        ("<a> b <c d> e 0:1A:B:C <br/>", ["<c d>", "0:1A:B:C", "<br/>"]),
        ('{"a": 5, "b c": "d"} ee = f', ['"a":']),
        ('a_b = "c"', ["a_b ="]),
        ("a = b c", ["a ="]),
        ("a = 5 c", ["a = 5"]),
        (" <a b> ", [" <a b> "]),
        ("e.g. 3rd, 1990s, p.m. {see below}", []),
    ],
)
def test_placeholders_addresses_and_identifiers_are_found(text, names):
    assert [
        text[start:end] for start, end, kind in protected(text, WordForms()) if kind == "name"
    ] == names


@pytest.mark.parametrize(
    "text", ["{a,{", "{{", "[[{{}}", "a://", "&a", "%5.", "a.b", "{{a}} b", "ab{c}d", "{a}x"]
)
def test_what_stays_is_found_in_linear_time(text):
    assert len([*protected(text * 20_000, WordForms())]) <= 40_000


@pytest.mark.parametrize(
    ("text", "kind", "found"),
    [
        ("1,299.50 on 2024-03-15 at 10:30, -5 or 1 dog", "number", "1,299.50 2024-03-15 10:30 -5"),
        ("-$3.50 or 20€, <7%, 100%% of 5 %s, 5 $A", "number", "-$3.50 20€ <7% 100%% 5 5"),
        ("70kg, 12B; 1km 30°C 1 or 3rd 1990s $5k", "number", "70kg 12B 1km 30°C 1990s $5k"),
        (
            "USD 50, 50 EUR 5 EURO ½ 1½ 3x 9km/h 2 m²",
            "number",
            "USD 50 50 EUR 5 ½ 1½ 3x 9km/h 2 m²",
        ),
        (
            "20ms .5s 2+2 10^6 >=3.8 § 5 2.x mid-1990 1'299",
            "number",
            "20ms .5s 2+2 10^6 >=3.8 § 5 2.x 1990 1'299",
        ),
        ("DE89 3704 0044 05 or 555 123 4567", "number", "555 123 4567"),
        ("10am 9:15\u00a0AM 1\u00a0000 or 5 1000", "number", "10am 9:15\u00a0AM 1\u00a0000 5 1000"),
        ("{{#if x}}a{{/if}} {% b %} <% c %>", "mark", "{{#if x}} {{/if}} {% b %} <% c %>"),
        ("(a) b, [x] c, d¹ e(f) g[1] h[2](x.org)", "mark", "(a) [x] ¹ [1]"),
        ("❤️ 👍🏽 🇩🇪 👩‍👩‍👧 1️⃣ ♪ → • 5 * # 5° № 1", "mark", "❤️ 👍🏽 🇩🇪 👩‍👩‍👧 1️⃣ ♪ → •"),
    ],
)
def test_numbers_and_emoji_are_found(text, kind, found):
    parts = (text[start:end] for start, end, own in protected(text, WordForms()) if own == kind)
    assert " ".join(parts) == found


def test_a_telephone_number_is_one_number():
    text = "Call +49 (170) 12-3456, not +1 or 5 km."
    parts = [text[start:end] for start, end, _ in protected(text, WordForms())]
    assert parts == ["+49 (170) 12-3456", "+1", "5 km"]


def test_words_with_an_inner_capital_are_names_or_emphasized():
    forms = WordForms(("TV", "Rome", "I"), words=("big", "TV", "iPod", "Rome"))

    def found(text):
        return {text[start:end]: kind for start, end, kind in protected(text, forms)}

    names, kinds = ["USB", "COVID-19", "GitHub", "BIGs"], {"BIG": "emphasis", "ROME": "emphasis"}
    text = "A BIG TV in ROME: USB, COVID-19, GitHub, iPod, BIGs. I am."
    assert found(text) == kinds | dict.fromkeys(names, "name")
    assert found("A BIG USB.".upper()) == {} and found("TCP/IP") == {"TCP": "name", "IP": "name"}
    assert [*protected("A BIG USB, GitHub", WordForms(("TV",)))] == []


def test_unknown_names_are_found_in_a_language_that_writes_nouns_in_lower_case():
    forms = WordForms(("Rome",), words=("big", "in", "met", "mark"))

    def found(text, forms=forms):
        return [text[start:end] for start, end, _ in protected(text, forms)]

    line = "Anna and Otto met Ida, Émile (Kim) in Rome and Big Mark."
    assert found(line) == ["Otto", "Ida", "Émile"]
    assert found("The House of Otto") == [] and found("Met by Otto.") == ["Otto"]
    assert found("Die alte Frau sah Otto.", replace(forms, words=("big", "in"))) == []
    assert found(line, WordForms()) == []
    sentences = replace(forms, final_mark=".")
    assert found("An œuf, a.org/é and 北京", sentences) == ["œuf", "a.org/é", "北京"]
    assert sentences.is_foreign("北京市 An!") and not sentences.is_foreign("An 北京.")
    assert found("œuf", forms) == found("œuf", replace(sentences, words=("cœur",))) == []
    titled = "Mr. Smith, Mrs. Big and Hm. in Dr. Otto."
    assert found(titled, replace(forms, words=("Mrs", "Big"))) == ["Mr. Smith", "Dr. Otto"]
    assert found("He is 5 km from 30 yen.", replace(forms, words=("km",))) == ["5", "30"]


def test_the_pattern_for_words_alone_finds_what_the_whole_pattern_finds(monkeypatch):
    forms = WordForms(("Anna",), ".", words=("Mrs", "Big", "now"))
    text = "Mr. Smith isn't O'Brien, Mrs. Big, an œuf, a GitHub or Anna; it is NOW in 北京, John!"
    quick = [*protected(text, forms)]
    monkeypatch.setattr(protected_text, "_PLAIN", regex.compile("(?!)"))
    assert [*protected(text, forms)] == quick and len(quick) > 4


@pytest.mark.parametrize(
    ("source", "translation", "differ"),
    [
        ("2,500 of 1,299.50 at 10:30", "2500 von 1.299,50 um 10.30", False),
        ("1,000,000 on 2024-03-15, 3.5", "1\u00a0000\u00a0000 am 2024/03/15, 3,5", False),
        ("12 of 1", "12 von einem", False),
        ("12 of 3", "zwölf von drei", True),
        ("twenty", "20", False),
        ("12.50", "1250", True),
        ("85 of 3", "achtundzwanzig von 3", True),
        ("12.50 in 1990", "1990 120", True),
    ],
)
def test_translations_may_write_numbers_in_another_way(source, translation, differ):
    assert numbers_differ(source, translation) == differ


PIECES = ["<s>", "▁Tom", "▁Anna", "▁Bo", "▁dog", "o"]


def translate(texts):
    """Copies words with an "o" and even numbers."""
    numbers = {f"{x}{mark}" for x in range(10, 100, 2) for mark in ".!"}
    return [x if "o" in x or x in numbers else "?" for x in texts]


def test_stand_ins_are_words_that_the_model_copies_the_most_frequent_first():
    found = with_stand_ins(WordForms(), PIECES, translate)
    assert found.names == ("Tom",) and found.numbers[:3] == ("20", "30", "40")
    forms = WordForms(("Rome", "Anna", "Tom", "TV"), "!")
    assert with_stand_ins(forms, PIECES, translate).names == ("Rome", "Tom")
