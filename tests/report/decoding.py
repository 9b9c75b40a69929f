"""Decode the data of a page."""

import base64
import json
import re
import zlib

from seeupo.report.payload import report_chunks


class DecodedReport:
    """The decoded chunks of a report."""

    def __init__(self, chunks):
        self.sizes = {name: len(content) for name, content in chunks.items()}
        self._chunks = {name: json.loads(zlib.decompress(content, 31)) for name, content in chunks.items()}
        self.overview, self.index = self._chunks["overview"], self._chunks["index"]
        self.runs = self.overview["runs"]

    def rows(self):
        """Yield the columns of each trajectory, with texts in place of their numbers, and its body."""
        columns, lists = self.index["columns"], self.index["lists"]
        named = {"task": "tasks", "kind": "kinds", "stop": "stops", "status": "statuses"}
        for number in range(self.index["rows"]):
            row = {name: column[number] for name, column in columns.items()}
            row |= {name: lists[texts][row[name]] for name, texts in named.items()}
            yield row, self._chunks[f"bodies-{row['chunk']}"][row["offset"]]

    def body(self, name, phase=0):
        (found,) = [body for row, body in self.rows() if (row["id"], row["phase"]) == (name, phase)]
        return found

    def curve(self, key, run=0):
        (found,) = [curve for curve in self.runs[run]["curves"] if curve["key"] == key]
        return {series["name"]: series["points"] for series in found["series"]}


def raw_chunks(runs, max_bytes=25_000_000):
    return report_chunks(runs, max_bytes=max_bytes)[1]


def decoded(*runs, max_bytes=25_000_000):
    return DecodedReport(raw_chunks(runs, max_bytes))


def decoded_page(path):
    """Decode a page on disk."""
    found = re.findall(
        r'<script type="text/plain" id="([a-z0-9-]+)">([^<]*)</script>', path.read_text(encoding="utf-8")
    )
    return DecodedReport({name: base64.b64decode(text) for name, text in found})
