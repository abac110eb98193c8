"""Documents in, documents out."""

import pytest
from support.document_doubles import Capitals

from keras_transformer.documents import translate_document

pytestmark = pytest.mark.once

# U writes words in capitals, R also reverses the words of a sentence.
CASES = """
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
U srt 1¶00:00:01,000 --> 00:00:02,500¶<i>Hello¶world.</i>¶ → 1¶00:00:01,000 --> 00:00:02,500¶<i>HELLO¶WORLD.</i>¶
U vtt WEBVTT¶¶NOTE keep¶¶a1¶00:01.000 --> 00:02.000 align:start¶<v Tom>Hi there¶ → WEBVTT¶¶NOTE keep¶¶a1¶00:01.000 --> 00:02.000 align:start¶<v Tom>HI THERE¶
U txt Hello {name}, you have %d letters at https://x.org/a?b=1. → HELLO {name}, YOU HAVE %d LETTERS AT https://x.org/a?b=1.
"""  # noqa: E501


def translated(folder, suffix, content, reverse=False, languages=("en", "de"), **settings):
    path, output = folder / f"page.{suffix}", folder / f"page.out.{suffix}"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    translate_document(Capitals(reverse), path, output, languages=languages, **settings)
    found = output.read_bytes()
    return found.decode() if isinstance(content, str) else found


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_markup_stays_with_its_words(case, tmp_path):
    double, suffix, rest = case.split(" ", 2)
    source, expected = rest.replace("¶", "\n").split(" → ")
    assert translated(tmp_path, suffix, source, double == "R") == expected
