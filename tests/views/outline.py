"""What is on an HTML page, for tests."""

from html.parser import HTMLParser


class Outline(HTMLParser):
    """The elements of a page that must be closed, and the cells of its tables."""

    VOID = frozenset({"meta", "img", "link", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.addresses = [], [], []
        self.cell = None
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.cell = ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self.cell)
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data
