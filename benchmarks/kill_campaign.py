"""Kill commands with SIGKILL at random moments, repeat them as a user would, and compare with what was never killed.

python benchmarks/kill_campaign.py train --tries 70  # or compare, eval, export, report, ranks (2 ranks, a sampler)

A try kills the main process, another one (worker, rank, sampler) or all, at a random time or file operation. Up to
three tries in a row hit the same output, which is then completed. They are lost if a file that they leave is
half-written, if finished work is repeated, if processes stay behind, or if the end differs in a file or its content,
except for times. Commands are forked from a process that has imported PyTorch. A second call continues the first.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import gzip
import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import transformers.models.llama.modeling_llama  # noqa: F401
from filelock import FileLock
from safetensors.torch import load_file

import seeupo.training.setup  # noqa: F401
from seeupo.cli import main as seeupo_command
from seeupo.comparison.result_store import read_packed
from seeupo.config.loader import recipe_to_toml
from seeupo.config.model_settings import LoraSettings
from seeupo.config.process_settings import EngineSettings, SamplerSettings
from seeupo.evaluation import evaluate
from seeupo.runs.checkpoints import Checkpoints

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))
from comparison.small_study import write_study  # noqa: E402
from training.small_runs import small  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "kill_campaign.json"
COMMAND_SECONDS, GONE_SECONDS = 600.0, 60.0
"""Time limits of a command, and for the processes of a killed one to end."""
FACTORY = "seeupo.envs.pocket:PocketFactory"
"""The environment of the other runs, but in sandboxed workers, as that of a user."""
CLUSTER = {"engine": EngineSettings(kind="cluster", trainers=2), "sampler": SamplerSettings(count=1)}
RECIPES = {
    "plain": small(),
    "workers": small(environment={"name": FACTORY, "workers": 2}),
    "lora": small(model={"lora": LoraSettings(rank=2)}, collect={"lag": 1}),
    "ranks": small(model={"dtype": "float64"}, evaluation={"every": 0}, **CLUSTER),
}
NEEDED = [("train", "plain"), ("train", "workers"), ("train", "lora")]
VARIANTS = {
    "train": ("plain", "workers", "lora", "longer"),
    "compare": ("study",),
    "eval": ("plain", "workers"),
    "export": ("plain", "lora", "merge"),
    "report": ("plain",),
    "ranks": ("ranks",),
}
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
CLOCK = {"timings", "seconds", "time", "sentences"}
"""Keys of values that depend on the clock."""
CLOCK_FILES = {"manifest.json", "env_info.json", "report.html", "comparison.html", "comparison.md", ".lock-owner"}


class LostError(Exception):
    """A kill had a consequence that it must not have."""


class Campaign:
    """The tries of a command; `work` has a folder for each variant of it: `whole`, and one for each output to kill."""

    def __init__(self, command: str, work: Path) -> None:
        self.command, self.work = command, work
        self.operations = mmap.mmap(-1, 8)  # number of file operations, which the running command counts
        self.costs: dict[str, tuple[float, int]] = {}
        write_study(work)
        for name, recipe in RECIPES.items():
            (work / f"{name}.toml").write_text(recipe_to_toml(recipe))
        for kind, variant in (*NEEDED, *((command, name) for name in VARIANTS[command])):
            folder = self.whole(kind, variant)
            cost = folder.with_suffix(".cost")
            with FileLock(f"{folder.parent}.lock"):  # another campaign needs the same runs
                if not cost.exists():
                    self.new(variant, folder)
                    begun = time.monotonic()
                    if code := wait(self.start(self.arguments(kind, variant, folder) or [], folder)):
                        sys.exit(f"{kind} {variant}: exit code {code}; see {folder}.log")
                    counted = int.from_bytes(self.operations[:], "big")
                    cost.write_text(json.dumps([time.monotonic() - begun, counted]))
            self.costs[variant] = json.loads(cost.read_text())

    def whole(self, command: str, variant: str) -> Path:
        return self.work / f"{command}-{variant}" / "whole"

    def new(self, variant: str, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if variant == "longer":
            shutil.copytree(self.whole("train", "plain") / "out", folder / "out")

    def arguments(self, command: str, variant: str, folder: Path) -> list[str] | None:
        """Return the arguments with which a user starts or continues; None if the output is complete."""
        out = folder / {"eval": "out.json", "report": "out.html"}.get(command, "out")
        plain, lora = (str(self.whole("train", name) / "out") for name in ("plain", "lora"))
        source = {"plain": plain, "workers": str(self.whole("train", "workers") / "out")}.get(variant, lora)
        trust = ["--trust", FACTORY] * (variant == "workers")
        longer = ["--run.iterations", "5"] * (variant == "longer")
        again = ["--resume", str(out), *longer] if (out / "recipe.toml").exists() else None
        training = ["train", *(again or [f"{self.work}/{variant}.toml", "--out", str(out)]), *trust]
        if command == "export" and out.exists():
            return None
        return {
            "train": training,
            "ranks": training,
            "compare": ["compare", f"{self.work}/study.toml", "--out", str(out), "--jobs", "2"],
            "eval": ["eval", source, "--attempts", "24", "--out", str(out), *["--resume"] * out.exists(), *trust],
            "export": ["export", source, str(out), *["--merge"] * (variant == "merge")],
            "report": ["report", plain, lora, "--out", str(out)],
        }[command]

    def start(self, arguments: list[str], folder: Path, deadly: int = 0) -> int:
        """Start a command and return its process id; it kills itself at file operation `deadly` below the folder."""
        self.operations[:] = bytes(8)
        if child := os.fork():
            return child
        os.setsid()
        log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        evaluate.SECONDS_BETWEEN_WRITES = 0.05  # an attempt takes milliseconds

        def count(event: str, values: tuple[Any, ...]) -> None:
            if event == "os.remove" or (event in OPERATIONS and str(values[0]).startswith(str(folder))):
                number = int.from_bytes(self.operations[:], "big") + 1
                self.operations[:] = number.to_bytes(8, "big")
                if number == deadly:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        code: Any = 1
        try:
            seeupo_command(arguments)
        except SystemExit as end:
            code = end.code
        finally:
            atexit._run_exitfuncs()
            os._exit(code if isinstance(code, int) else code is not None)

    def chain(self, number: int, most: int) -> tuple[Counter[str], bool]:
        """Kill the commands for one output up to `most` times and complete it; return what was killed, and if lost."""
        generator = random.Random(f"{self.command} {number}")
        variant = generator.choice(VARIANTS[self.command])
        whole = self.whole(self.command, variant)
        folder = whole.with_name(str(number))
        self.new(variant, folder)
        kills, most = Counter[str](), generator.randint(1, min(3, most))
        try:
            code = None
            while code != 0 and (arguments := self.arguments(self.command, variant, folder)) is not None:
                before = finished_work(folder / "out")
                seconds, operations = self.costs[variant] if kills.total() < most else (0.0, 0)
                deadly = (
                    generator.randint(0, operations) if generator.random() < (0.1 if variant == "ranks" else 0.5) else 0
                )
                code, killed = self.one_command(arguments, folder, generator, deadly, 0 if deadly else seconds)
                kills += Counter([killed] if killed else [])
                if code and not killed:
                    raise LostError(f"exit code {code} without a kill")
                self.check_files(folder, whole, before)
            whole_files, files = contents(whole, partial=True), contents(folder, partial=True)
            if found := [name for name in {**files, **whole_files} if files.get(name, 0) != whole_files.get(name, 0)]:
                raise LostError(f"the end differs: {found}")
            end = time.monotonic() + GONE_SECONDS
            while (remaining := descendants(os.getpid())) and time.monotonic() < end:
                with suppress(ChildProcessError):
                    wait(0, 0.1)
            if remaining:
                raise LostError(f"processes stay behind: {remaining}")
        except Exception as error:  # half-written files cause many types
            print(f"LOST {self.command} {number}, {variant}, {dict(kills)}: {error!r}; see {folder}", flush=True)
            return kills, True
        shutil.rmtree(folder)
        Path(f"{folder}.log").unlink()
        return kills, False

    def one_command(
        self, arguments: list[str], folder: Path, generator: random.Random, deadly: int, seconds: float
    ) -> tuple[int | None, str]:
        """Run a command, kill it at a file operation or within some seconds; return exit code and what was killed."""
        process = self.start(arguments, folder, deadly)
        code = wait(process, generator.uniform(0, seconds)) if seconds else wait(process)
        if code is None:
            killed = kill(process, generator)
            return wait(process), killed
        return code, "main, at a file operation" if deadly and code == -signal.SIGKILL else ""

    def check_files(self, folder: Path, whole: Path, before: dict[str, Any]) -> None:
        """Raise an error for half-written files, incomplete policies, and repeated work."""
        files, complete = contents(folder, partial=False), contents(whole, partial=False)
        for name in ("out/policy", *["out"] * (self.command == "export")):
            if missing := [file for file in complete if file.startswith(name) and name in files and file not in files]:
                raise LostError(f"{name} is incomplete: {missing}")
        after = finished_work(folder / "out")
        if repeated := [name for name, value in before.items() if after.get(name) != value]:
            raise LostError(f"finished work was repeated: {repeated}")


def wait(process: int, seconds: float | None = None) -> int | None:
    """Return the exit code of a process; None if it has not ended in this time, which is otherwise an error.

    Orphans that end meanwhile are collected, as init does: Ray's workers live as long as their raylet has a process id.
    """
    end = time.monotonic() + (COMMAND_SECONDS if seconds is None else seconds)
    while time.monotonic() < end:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
        if ended is None:
            time.sleep(0.005)
        elif ended.si_pid == process:
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    if seconds is None:
        raise LostError(f"it hangs: {descendants(process)}")
    return None


def descendants(process: int) -> dict[int, str]:
    """Return the ids and commands of the processes that a process and its descendants have started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines() if "ps -eo" not in line]
    members = [str(process)]
    for member in members:
        members += [pid for pid, parent, text in rows if parent == member and text[0] != "Z"]
    return {int(pid): text[:80] for pid, _, text in rows if pid in members[1:]}


def kill(process: int, generator: random.Random) -> str:
    """Kill one or all processes of a command, and return which."""
    others = descendants(process)
    actors = [pid for pid, text in others.items() if "ray::Rank" in text or "ray::Sampler" in text]
    which = generator.choice(("main", "another", *["actor"] * 3 * bool(actors), "all")) if others else "main"
    one = generator.choice(sorted(actors if which == "actor" else others) or [0])
    for pid in {"main": [process], "all": [process, *others]}.get(which, [one]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return {"actor": "a sampler" if "Sampler" in others.get(one, "") else "a rank"}.get(which, which)


def finished_work(out: Path) -> dict[str, Any]:
    """Return what no later command may compute again: iterations before the last checkpoint, and compared runs."""
    if (out / "checkpoints").is_dir():
        latest = Checkpoints(out / "checkpoints", 1, read_only=True).latest()
        done = 0 if latest is None else latest.iteration
        return {file.name: file.stat().st_ino for file in out.glob("trajectories/*.gz") if int(file.name[:5]) <= done}
    packed = read_packed(path) if (path := out / "results.jsonl.gz").exists() else {}
    loose = [path for kind in ("runs", "warm_starts") for path in (out / kind).glob("*.json")]
    return packed | {path.relative_to(out).as_posix(): json.loads(path.read_text()) for path in loose}


def contents(folder: Path, *, partial: bool) -> dict[str, Any]:
    """Return what the files of an output must have in common with one that was not killed, by path.

    A half-written file is an error, unless its name says so. Such files are in the result if `partial` is set.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        unfinished = name.endswith(".partial") or any(part.startswith(".") for part in Path(name).parts)
        if not name.startswith("out/logs") and (partial or not unfinished):
            value = None if unfinished or path.is_dir() else content(path)
            found[name] = None if path.name in CLOCK_FILES else value
    return found


def content(path: Path) -> Any:
    if path.name == "results.jsonl.gz":
        return without_clock(read_packed(path))
    if path.suffix == ".safetensors":  # ranks write tensors in any order
        return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in load_file(path).items()}
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if ".jsonl" in path.suffixes:  # an interrupt may cut off the last line of the metrics
        return [without_clock(json.loads(line)) for line in data.splitlines(True) if line.endswith(b"\n")]
    if path.suffix == ".json":
        return without_clock(json.loads(data))
    if path.suffix == ".html" and not data.endswith(b"</html>\n"):
        raise LostError(f"{path} is half a page")
    return hashlib.sha256(data).hexdigest()


def without_clock(value: Any) -> Any:
    """Return JSON without values that depend on the clock; the modules of an adapter are a set."""
    if isinstance(value, dict):
        value = {key: without_clock(entry) for key, entry in value.items() if key not in CLOCK}
        return value | {key: sorted(value[key]) for key in ("target_modules",) if key in value}
    return [without_clock(entry) for entry in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=VARIANTS)
    parser.add_argument("--tries", type=int, default=30, help="Number of kills, those of earlier calls included.")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "kill-campaign")
    options = parser.parse_args()
    options.work.mkdir(exist_ok=True)
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans of a killed command become children of this one
    os.environ |= {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
    campaign = Campaign(options.command, options.work.resolve())
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    row = results.get(options.command, {"outputs": 0, "tried": 0, "survived": 0, "killed": {}})
    while row["tried"] < options.tries:
        kills, lost = campaign.chain(row["outputs"], options.tries - row["tried"])
        if lost and not kills:
            sys.exit("a command fails without a kill")
        row["outputs"] += 1
        row["tried"] += kills.total()
        row["survived"] += 0 if lost else kills.total()
        row["killed"] = dict(sorted((Counter(row["killed"]) + kills).items()))
        with FileLock(f"{options.work}/results.lock"):
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            RESULTS.write_text(json.dumps({**results, options.command: row}, indent=1) + "\n")
        print(f"{options.command}: {row['survived']} of {row['tried']} survived", flush=True)


if __name__ == "__main__":
    main()
