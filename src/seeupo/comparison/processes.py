"""Run jobs in worker processes, a few at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from seeupo.errors import TrainingError, UserError, first_line

WORKER = "seeupo.comparison.training_process"


@dataclass(frozen=True)
class Job:
    """A request to a worker.

    Attributes:
        name: Name of the run, for messages.
        request: What `seeupo.comparison.training_process` reads.
    """

    name: str
    request: Mapping[str, Any]


class Workers:
    """Worker processes that are started when they are needed and end with this object.

    Args:
        count: Number of processes.
        logs: Directory of their log files.
    """

    def __init__(self, count: int, logs: Path) -> None:
        self.count, self.logs = count, logs
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False

    def run(self, jobs: Iterable[Job], *, on_text: Callable[[str, str], None], on_done: Callable[[str], None]) -> None:
        """Run all jobs; `on_text` gets progress, `on_done` the name of each finished job, both from other threads.

        Raises:
            TrainingError: A job failed. Jobs that run are stopped, and can be resumed.
        """
        waiting: SimpleQueue[Job] = SimpleQueue()
        for job in jobs:
            waiting.put(job)
        problems: list[Sequence[str]] = []
        self._threads = [
            threading.Thread(target=self._serve, args=(slot, waiting, problems, on_text, on_done), daemon=True)
            for slot in range(min(self.count, waiting.qsize()))
        ]
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            while thread.is_alive() and not problems:
                thread.join(0.2)  # with a timeout, so that Ctrl-C and problems are noticed
        if problems:
            raise TrainingError(*problems[0])

    def close(self) -> None:
        """Stop all workers at once."""
        self._closed = True
        for process in self._processes.values():
            process.kill()
        for thread in self._threads:
            thread.join()
        for process in self._processes.values():
            with suppress(BrokenPipeError), process:  # closes its pipes
                pass

    def _serve(
        self,
        slot: int,
        waiting: SimpleQueue[Job],
        problems: list[Sequence[str]],
        on_text: Callable[[str, str], None],
        on_done: Callable[[str], None],
    ) -> None:
        while not problems and not self._closed:
            try:
                job = waiting.get_nowait()
            except Empty:
                return
            try:
                answer = self._ask(slot, job, on_text)
                if answer is None:
                    on_done(job.name)
            except UserError as error:
                answer = error.lines
            except Exception as error:  # otherwise it ends this thread, but not the study
                answer = [f"the run {job.name} failed: {type(error).__name__}: {first_line(error)}"]
            if answer is not None and not self._closed:
                problems.append(answer)

    def _ask(self, slot: int, job: Job, on_text: Callable[[str, str], None]) -> Sequence[str] | None:
        """Run a job in the worker of a slot and return the lines of its error, or None."""
        process = self._process(slot)
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(job.request), file=process.stdin, flush=True)
        for line in process.stdout:
            message = json.loads(line)
            if "text" in message:
                on_text(job.name, message["text"])
            elif "done" in message:
                return None
            else:
                first, *rest = message["error"]
                return [f"the run {job.name} failed: {first}", *rest]
        return [
            f"the process of the run {job.name} ended with exit code {process.wait()}; {self._log(slot)} may say why. "
            "Run the same command again to continue"
        ]

    def _process(self, slot: int) -> subprocess.Popen[str]:
        if slot not in self._processes:
            self.logs.mkdir(parents=True, exist_ok=True)
            with self._log(slot).open("ab") as log:
                self._processes[slot] = _start(log)
        return self._processes[slot]

    def _log(self, slot: int) -> Path:
        return self.logs / f"worker-{slot}.log"


def _start(log: IO[bytes]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C reaches the parent only, which then ends its workers
    )
