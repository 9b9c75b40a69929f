"""Run directories with damaged files: the reader, evaluations and the data of the report."""

import gzip
import json
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fuzz.guard import nothing_executes
from fuzz.mutation import ODD_TEXTS, TEXTS, damaged, mutated, mutated_json, to_text
from fuzz.scratch import scratch
from report.decoding import decoded
from report.made_runs import made_run, odd_run, tokenizer
from seeupo.errors import EvaluationError, RunError
from seeupo.evaluation.results import Evaluation, compare, verdict_of
from seeupo.report.index import shortened
from seeupo.report.overview import run_overview
from seeupo.report.selection import Selection
from seeupo.report.token_text import TokenDecoder
from seeupo.runs.reader import read_run
from seeupo.runs.run_directory import RunDirectory


@cache
def base_runs():
    """Return the files of valid runs: relative path -> content."""
    folder = scratch()
    runs = [made_run(folder / "made", iterations=1, groups=1, turns=2), odd_run(folder / "odd")]
    return [
        {path.relative_to(run).as_posix(): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
        for run in runs
    ]


class Files(dict):
    """The files of a run by relative path, and which of them are damaged."""

    def __init__(self, files) -> None:
        super().__init__(files)
        self.changes = {}

    def __repr__(self) -> str:
        return f"Files(changes={self.changes!r})"[:4000]


def written(files) -> Path:
    """Write a run with these files, in place of the one before it."""
    run = scratch() / "run"
    shutil.rmtree(run, ignore_errors=True)
    for name, content in files.items():
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return run


@st.composite
def changed_file(draw, name, content):
    """Return a damaged version of a file, by its structure where it has one."""
    packed = name.endswith(".gz")
    if name.endswith("tokenizer.json") or draw(st.integers(0, 3)) == 0:
        return draw(damaged(content))
    plain = gzip.decompress(content) if packed else content
    if name.endswith(".toml"):
        changed = draw(damaged(plain))
    elif name.endswith((".jsonl", ".gz")):
        lines = plain.splitlines()
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = draw(mutated_json(json.loads(lines[number]))).encode(errors="surrogatepass")
        changed = b"".join(line + b"\n" for line in lines)
    else:
        changed = draw(mutated_json(json.loads(plain))).encode(errors="surrogatepass")
    return gzip.compress(changed, 1, mtime=0) if packed else changed


@st.composite
def damaged_runs(draw):
    files = Files(draw(st.sampled_from(base_runs())))
    for name in draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=3, unique=True)):
        if draw(st.integers(0, 7)):
            files[name] = files.changes[name] = draw(changed_file(name, files[name]))
        else:
            files.changes[name] = None
            del files[name]
    return files


@given(damaged_runs())
def test_damaged_runs_are_read_and_reported(files):
    run = written(files)
    with nothing_executes():
        try:
            read_run(run)
        except RunError:
            return
        report = decoded(run)
    assert len(report.runs) == 1
    for row, body in report.rows():
        assert isinstance(row["id"], str)
        assert isinstance(body["turns"], list)


@cache
def records():
    """Return the records of a run's metrics, its summary and its environment info."""
    files = base_runs()[0]
    lines = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    return {
        "metrics.jsonl": [line for line in lines if line["kind"] != "evaluation"] + lines[:1],
        "summary.json": json.loads(files["summary.json"]),
        "env_info.json": json.loads(files["env_info.json"]),
    }


@st.composite
def mutated_metrics(draw):
    files = {"recipe.toml": base_runs()[0]["recipe.toml"]}
    for name, content in records().items():
        changed = draw(mutated(content, most=6))
        lines = changed if isinstance(changed, list) and name.endswith(".jsonl") else [changed]
        files[name] = "".join(f"{to_text(line)}\n" for line in lines).encode(errors="surrogatepass")
    return files


@given(mutated_metrics())
def test_mutated_metrics_are_reported(files):
    run = written(files)
    with nothing_executes():
        overview = run_overview(read_run(run), "run", Selection())
        with suppress(RunError):
            RunDirectory.open(run).env_info()
        with suppress(RunError):
            RunDirectory.open(run).metrics()
    json.dumps(overview, allow_nan=False)


DECODERS = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "ByteFallback"},
    {"type": "Strip", "content": "a", "start": 5, "stop": 5},
    {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True},
    {"type": "BPEDecoder", "suffix": "a"},
    {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
    {"type": "Fuse"},
    {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"},
    {"type": "WordPiece", "prefix": "a", "cleanup": True},
]
MODELS = [
    {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "": 2}, "unk_token": "a"},
    {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0], ["b", -1.0]], "byte_fallback": True},
    {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3}, "merges": [["a", "b"]], "ignore_merges": False},
]


@st.composite
def tokenizers(draw):
    """Return the file of a tokenizer of any kind, mutated."""
    base = json.loads(tokenizer().to_str())
    decoder = {"type": "Sequence", "decoders": draw(st.lists(st.sampled_from(DECODERS), max_size=3))}
    return draw(mutated_json({**base, "decoder": decoder, "model": draw(st.sampled_from(MODELS))}))


@given(tokenizers(), st.lists(st.integers(0, 5) | st.sampled_from([-1, 2**31, 2**32, 2**64, 0.5, None]), max_size=5))
def test_mutated_tokenizers_decode_or_raise_value_errors(text, ids):
    path = scratch() / "tokenizer.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with nothing_executes(), suppress(ValueError, TypeError):
        texts, counts = TokenDecoder(path).token_texts(ids)
        assert (len(texts), sum(counts)) == (len(counts), len(ids))


STRINGS = st.lists(TEXTS | ODD_TEXTS, min_size=1, max_size=4)


@given(STRINGS, st.data())
def test_reports_of_any_strings_hold_them_as_data(strings, data):
    """Replace all strings of the trajectories and of an evaluation, except those with a fixed meaning."""
    files = dict(base_runs()[0])
    for name in [name for name in files if name.endswith(".jsonl.gz")]:
        lines = [json.loads(line) for line in gzip.decompress(files[name]).splitlines()]
        for record in lines[1:]:
            record["task"] = data.draw(st.sampled_from(strings))
            record["opening"] = strings[0]
            for turn in record["turns"]:
                turn["response"], turn["observation"] = strings[-1], data.draw(st.sampled_from(strings))
        files[name] = gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode(), 1, mtime=0)
    rows = list(decoded(written(files)).rows())
    shown = {_valid(text) for text in strings}
    assert rows
    assert {row["task"] for row, _ in rows} <= {shortened(text) for text in shown}
    assert {body["opening"] for _, body in rows} == {_valid(strings[0])}
    assert {turn["observation"] for _, body in rows for turn in body["turns"]} <= shown


def _valid(text):
    """Return the text with lone surrogates replaced, as UTF-8 requires."""
    return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)


@cache
def evaluations():
    return [
        json.loads(content)
        for files in base_runs()
        for name, content in files.items()
        if name.startswith("evaluations/") and name.endswith(".json")
    ]


@given(st.deferred(lambda: st.sampled_from(evaluations()).flatmap(lambda each: mutated(each, most=4))), st.data())
def test_mutated_evaluations_are_read_or_rejected(record, data):
    path, other = scratch() / "evaluation.json", scratch() / "other.json"
    path.write_bytes(data.draw(st.just(to_text(record).encode(errors="surrogatepass"))))
    other.write_text(json.dumps(evaluations()[0]))
    with nothing_executes(), suppress(EvaluationError):
        found = Evaluation.read(path)
        found.summary()
        difference = compare(found, Evaluation.read(other))
        verdict_of(difference, found.plan.k)
        found.write(path)
        assert Evaluation.read(path).results.keys() == found.results.keys()


NAMES = st.sampled_from(["trajectories/00009.jsonl.gz", "evaluations/00009.json", "recipe.toml", "metrics.jsonl"])


@given(st.lists(NAMES, min_size=1, unique=True), st.sampled_from(["pipe", "directory", "loop", "device", "outside"]))
def test_files_that_are_not_files_are_skipped(names, kind):
    run = written(base_runs()[0])
    for name in names:
        path = run / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to({"loop": path.name, "device": "/dev/zero", "outside": "/nowhere/at/all"}[kind])
    with nothing_executes(), suppress(RunError):
        decoded(run)
