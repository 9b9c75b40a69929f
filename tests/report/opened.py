"""A page's data as the page sees them."""

import base64
import json
import re
import zlib
from contextlib import contextmanager

from seeupo.report.contents import report_blocks


class Opened:
    """The decoded blocks of a report."""

    def __init__(self, blocks):
        self.sizes = {name: len(content) for name, content in blocks.items()}
        self._blocks = {name: json.loads(zlib.decompress(content, 31)) for name, content in blocks.items()}
        self.overview, self.index = self._blocks["overview"], self._blocks["index"]
        self.runs = self.overview["runs"]

    def rows(self):
        """Each trajectory's columns, with texts in place of their numbers, and its body."""
        columns, lists = self.index["columns"], self.index["lists"]
        named = {"task": "tasks", "kind": "kinds", "stop": "stops", "status": "statuses"}
        for number in range(self.index["rows"]):
            row = {name: column[number] for name, column in columns.items()}
            row |= {name: lists[texts][row[name]] for name, texts in named.items()}
            yield row, self._blocks[f"bodies-{row['block']}"][row["place"]]

    def body(self, name, phase=0):
        (found,) = [body for row, body in self.rows() if (row["id"], row["phase"]) == (name, phase)]
        return found

    def curve(self, key, run=0):
        (found,) = [curve for curve in self.runs[run]["curves"] if curve["key"] == key]
        return {series["name"]: series["points"] for series in found["series"]}


@contextmanager
def raw(runs, max_bytes=25_000_000):
    with report_blocks(runs, max_bytes=max_bytes) as (_, blocks):
        yield dict(blocks)


def opened(*runs, max_bytes=25_000_000):
    with raw(runs, max_bytes) as blocks:
        return Opened(blocks)


def opened_page(path):
    """The decoded blocks of a page on disk."""
    found = re.findall(
        r'<script type="text/plain" id="([a-z0-9-]+)">([^<]*)</script>', path.read_text(encoding="utf-8")
    )
    return Opened({name: base64.b64decode(text) for name, text in found})
