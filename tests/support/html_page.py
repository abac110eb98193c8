"""Reads the HTML pages of the package with the standard library."""

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """The elements of a page: name, attributes and the text inside. Every tag must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(html)
        self.close()
        assert not self._open, [self.elements[index][0] for index in self._open]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        assert self.elements[self._open.pop()][0] == tag, tag

    def handle_data(self, data):
        for index in self._open:
            self.elements[index][2].append(data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        """The texts of the elements with a name and attributes, in the order of the page."""
        return [
            "".join(text)
            for name, given, text in self.elements
            if name == tag and attributes.items() <= given.items()
        ]

    def values(self, tag: str, key: str) -> list[str]:
        """The values of an attribute of the elements with this attribute."""
        return [given[key] for name, given, _ in self.elements if name == tag and key in given]


def read_page(html: str) -> Page:
    """Parses a page, and checks that it has no script and requests nothing."""
    page = Page(html)
    names = {name for name, _, _ in page.elements}
    assert not names & {"script", "link", "img", "iframe", "object"}
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    assert policy in page.values("meta", "content")
    assert all(link.startswith("#") for link in page.values("a", "href"))
    assert "url(" not in html and "@import" not in html
    return page
