"""The routes of the server, on a translator without a model."""

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode, urlsplit

import pytest
import requests
from support.running_server import Upper, running

from keras_transformer.translation import WordForms
from keras_transformer.translation.glossary import Glossary

PAIR = {"source": "en", "target": "de"}
SECRET = "Zugspitze"


@pytest.fixture(scope="module")
def server():
    pairs = {("en", "de"): Upper(), ("fr", "de"): Upper(), ("de", "en"): Upper()}
    with running(pairs, {"cars": Glossary({"car": "Auto"})}, char_limit=200, batch_limit=3) as url:
        yield url


@pytest.fixture
def slow():
    """A translator whose batches wait, and a function that serves it."""
    translator = Upper()
    translator.gate.clear()
    yield translator
    translator.gate.set()


def post(url, route="/translate", **body):
    return requests.post(url + route, json=PAIR | body, timeout=20)


def value(url, name):
    found = re.search(
        rf"^keras_transformer_{name} (\S+)", requests.get(f"{url}/metrics").text, re.M
    )
    return float(found[1])


def typed(name):
    return {"Content-Type": name}


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_json_a_form_and_the_query_are_the_same_request(server):
    given = PAIR | {"q": "Ein & ä?", "format": "text", "api_key": "ignored"}
    asked = (
        requests.post(f"{server}/translate", json=given),
        requests.post(f"{server}/translate", data=given),
        requests.post(f"{server}/translate", files={name: (None, x) for name, x in given.items()}),
        requests.post(f"{server}/translate?{urlencode(given)}"),
        requests.post(f"{server}/translate", json.dumps(given), headers=typed("Application/JSON")),
        requests.post(
            f"{server}/translate",
            "q=Ein %26 ä%3F&source=en&target=de".encode(),
            headers=typed("application/x-www-form-urlencoded"),
        ),
    )
    assert [x.json() for x in asked] == [{"translatedText": "EIN & Ä?"}] * 6


@pytest.mark.parametrize("q", [b"\xff", b"%FF", b"a%ED%A0%80"])
def test_a_form_that_is_not_utf_8_is_a_wrong_request(server, q):
    given = b"source=en&target=de&q=" + q
    headers = typed("application/x-www-form-urlencoded")
    answer = requests.post(f"{server}/translate", given, headers=headers)
    assert answer.status_code == 400 and "UTF-8" in answer.json()["error"]


@pytest.mark.parametrize(
    "q, found",
    [
        ("One. Two!\n\n  three \r\n", "ONE. TWO!\n\n  THREE \r\n"),
        (" \n", " \n"),
        (["a", "", "b. c"], ["A", "", "B. C"]),
    ],
)
def test_lists_lines_and_white_space_stay(server, q, found):
    assert post(server, q=q).json() == {"translatedText": found}


@pytest.mark.parametrize(
    "q, found",
    [
        (
            "<p>a <b>c &amp; d</b></p><script>x < 1</script>",
            "<p>A <b>C &amp; D</b></p><script>x < 1</script>",
        ),
        ("a &lt;img src&gt;", "A &lt;img src&gt;"),
    ],
)
def test_html_keeps_its_markup(server, q, found):
    assert post(server, q=q, format="html").json()["translatedText"] == found
    assert post(server, q=[q, q], format="html").json()["translatedText"] == [found, found]


def test_alternatives_are_other_translations_at_most_as_many_as_wanted(server):
    found = post(server, q="a b", alternatives=5).json()
    assert found == {"translatedText": "A B", "alternatives": ["b a"]}
    assert post(server, q=["a b", ""], alternatives=1).json()["alternatives"] == [["b a"], []]
    assert post(server, q="a b", alternatives=1, format="html").json()["alternatives"] == []


def test_a_line_is_split_where_its_translator_does_not():
    translator = Upper()
    with running({("en", "de"): translator}) as url:
        post(url, q="One. Two!")
        translator.word_forms = WordForms(lines_are_sentences=True)
        post(url, q="One. Two!\n")
    assert sum(translator.batches, []) == ["One.", "Two!", "One. Two!"]


def test_a_glossary_has_a_name(server, monkeypatch):
    seen = []
    translate = Upper.translate_segments
    monkeypatch.setattr(
        Upper, "translate_segments", lambda x, *y, **z: seen.append(z) or translate(x, *y, **z)
    )
    assert post(server, q="a\n b {c}", glossary="cars").json() == {"translatedText": "A\n B {c}"}
    assert seen[0]["glossary"].terms == {"car": "Auto"}


def test_auto_is_one_of_the_source_languages_of_the_target(server):
    text = "Où est la gare ? Je voudrais une chambre pour deux personnes."
    found = post(server, q=[text, "a"], source="auto").json()["detectedLanguage"]
    assert found[0] == found[1] and found[0]["language"] == "fr" and found[0]["confidence"] > 90
    found = requests.post(f"{server}/detect", json={"q": text}).json()
    assert found[0]["language"] == "fr" and {x["language"] for x in found} == {"de", "en", "fr"}
    assert sum(x["confidence"] for x in found) == pytest.approx(100)
    only = post(server, q=text, source="auto", target="en").json()
    assert only["detectedLanguage"] == {"confidence": 100.0, "language": "de"}


def test_a_client_learns_what_there_is(server):
    assert requests.get(f"{server}/languages").json() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "fr", "name": "French", "targets": ["de"]},
    ]
    settings = requests.get(f"{server}/frontend/settings").json()
    assert settings["charLimit"] == 200 and not settings["keyRequired"]
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    assert requests.get(f"{server}/health").json() == {"status": "ok"}
    head = requests.head(f"{server}/health")
    assert (head.status_code, head.content) == (200, b"")
    body = requests.get(f"{server}/spec").json()["paths"]["/translate"]["post"]["requestBody"]
    assert "alternatives" in body["content"]["application/json"]["schema"]["properties"]


@pytest.mark.parametrize(
    "body, message",
    [
        ({"q": ""}, "q: "),
        ({"q": 7}, "Received: 7"),
        ({"q": ["a" * 101, "b" * 100]}, "at most 200 characters. Received: 201"),
        ({"q": ["a"] * 4}, "at most 3 texts. Received: 4"),
        ({"q": "a", "target": "fr"}, "translates en to de, fr to de, de to en. Received: en to fr"),
        ({"q": "a", "glossary": "b"}, "glossary must be one of: cars. Received: b"),
    ],
)
def test_a_wrong_request_is_answered_with_the_rule_and_what_came(server, body, message):
    answer = post(server, **body)
    assert answer.status_code == 400 and [*answer.json()] == ["error"]
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"\xff",
        b'{"q": "\\ud800", "source": "en", "target": "de"}',
        b"[" * 20000,
        b'{"q": 1' + b"0" * 20000 + b"}",
        json.dumps({"q": "a", "source": "en", "target": "d" * 101}).encode(),
    ],
    ids=range(8),
)
def test_hostile_json_is_a_wrong_request(server, content):
    headers = {"Content-Type": "application/json"}
    answer = requests.post(f"{server}/translate", content, headers=headers)
    assert answer.status_code == 400 and [*answer.json()] == ["error"]


def test_other_routes_methods_and_files_are_refused(server):
    file = {"q": ("name", b"a")}
    asked = (
        requests.get(f"{server}/translate"),
        requests.get(f"{server}/nothing"),
        requests.post(f"{server}/translate", data=PAIR, files=file),
    )
    assert [x.status_code for x in asked] == [405, 404, 400]
    assert all([*x.json()] == ["error"] for x in asked)


def connected(url):
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def test_a_client_that_goes_while_it_sends_is_no_error_of_the_server(server, caplog):
    with connected(server) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nq=")
    wait_for(lambda: 'status="499"' in requests.get(f"{server}/metrics").text)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_body_is_refused_before_it_is_read(server, is_chunked):
    with connected(server) as client:
        length = "Transfer-Encoding: chunked" if is_chunked else "Content-Length: 100000000"
        head = f"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{length}"
        part = b"a" * 50_000
        chunk = b"%x\r\n%s\r\n" % (len(part), part) if is_chunked else part
        client.sendall(head.encode() + b"\r\n\r\n" + 2 * chunk)
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_request_needs_one_of_the_keys_and_a_page_one_of_the_origins():
    own, other = "https://own.example", "https://other.example"
    with running({("en", "de"): Upper()}, {}, ["one", "zwei ü"], cors=(own,)) as url:
        keys = (None, "", "on", "one ", "ü" * 999, "one", "zwei ü")
        found = [post(url, q="a", api_key=key).status_code for key in keys]
        assert found == [403] * 5 + [200] * 2
        assert requests.post(f"{url}/detect", json={"q": "a"}).status_code == 403
        assert requests.get(f"{url}/frontend/settings").json()["keyRequired"]
        asked = [requests.get(f"{url}/languages", headers={"Origin": x}) for x in (own, other)]
    allowed = [x.headers.get("Access-Control-Allow-Origin") for x in asked]
    assert allowed == [own, None]


def test_a_failing_sentence_spares_its_batch_and_its_text_is_not_shown(slow, capfd):
    slow.gate.set()
    with running({("en", "de"): slow}) as url:
        slow.gate.clear()
        with ThreadPoolExecutor(4) as pool:
            texts = ("first", "a", "boom", f"{SECRET}?key=1")
            asked = [pool.submit(post, url, q=texts[0])]
            wait_for(lambda: slow.batches)
            asked += [pool.submit(post, url, q=text) for text in texts[1:]]
            wait_for(lambda: value(url, WAITING) == 4)
            slow.gate.set()
            found = [x.result() for x in asked]
        requests.post(f"{url}/translate?q={SECRET}&source={SECRET}&target=de&api_key={SECRET}")
        metrics = requests.get(f"{url}/metrics").text
    assert [x.status_code for x in found] == [200, 200, 500, 200]
    assert found[2].json() == {"error": "internal error"}
    shown = "".join((metrics, *capfd.readouterr()))
    assert "ValueError" in shown and SECRET not in shown
    assert 'route="/translate",status="500"' in metrics


WAITING = 'waiting_sentences{pair="en-de"}'


@pytest.mark.parametrize(
    ("options", "bodies", "batches"),
    [
        # A request for alternatives is of another kind, whose batches `slow` does not note.
        ({}, [{"q": [*"ab"]}, {"q": "c", "alternatives": 1}, {"q": "d"}], [[*"abd"]]),
        ({"max_batch": 2}, [{"q": [*"abcde"]}], [[*"ab"], [*"cd"], ["e"]]),
        ({"char_limit": 8}, [{"q": x} for x in ("a" * 7, "bb", "c")], [["a" * 7, "bb"], ["c"]]),
    ],
    ids=["one kind", "few sentences", "few characters"],
)
def test_a_batch_is_of_one_kind_and_not_long_and_keeps_the_order(slow, options, bodies, batches):
    with running({("en", "de"): slow}, **options) as url, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(post, url, q="first")]
        wait_for(lambda: slow.batches)
        count = 1
        for body in bodies:
            asked.append(pool.submit(post, url, **body))
            count += len(body["q"]) if isinstance(body["q"], list) else 1
            wait_for(lambda count=count: value(url, WAITING) == count)
        slow.gate.set()
        assert {x.result().status_code for x in asked} == {200}
        assert value(url, 'batch_sentences_sum{pair="en-de"}') == count
    assert slow.batches[1:] == batches


def test_overload_time_outs_and_lost_clients_leave_nothing_waiting(slow):
    with running({("en", "de"): slow}, max_waiting=3, timeout=2) as url:
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(post, url, q="a")
            wait_for(lambda: slow.batches)
            second = pool.submit(post, url, q="Bad. Cab.")
            wait_for(lambda: value(url, WAITING) == 3)
            full = post(url, q="d")
            assert full.status_code == 503 and full.headers["Retry-After"] == "1"
            late = [first.result(), second.result()]
        assert [x.status_code for x in late] == [504] * 2 and value(url, WAITING) == 0
        with pytest.raises(requests.Timeout):
            requests.post(f"{url}/translate", json=PAIR | {"q": "gone"}, timeout=0.3)
        wait_for(lambda: value(url, WAITING) == 0)
        slow.gate.set()
        assert post(url, q="One. Two. Three. Four.").status_code == 200  # alone, all may wait
    assert slow.batches == [["a"], ["One.", "Two.", "Three.", "Four."]]


def test_a_request_whose_body_does_not_end_is_a_time_out():
    with running({("en", "de"): Upper()}, timeout=0.2) as url:
        with connected(url) as client:
            head = b"POST /detect HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: 9\r\n\r\n{")
            assert client.recv(100).startswith(b"HTTP/1.1 504 ")


def test_pages_name_no_other_host(server):
    for path in ("/", "/docs"):
        page = requests.get(server + path)
        assert not re.findall(r"(?://|https?:)", page.text)
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
