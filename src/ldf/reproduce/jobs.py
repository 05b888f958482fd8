"""Jobs whose results are kept in files, and the scheduler that runs them on all cores.

A killed run resumes: a job whose file exists is not run again.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import joblib
import torch

from ..io.text import Progress, write_whole


class JobError(ValueError):
    """A job failed; the message says why."""


class Job(ABC):
    """One piece of work for one core. A subclass is a frozen dataclass whose fields determine the result."""

    unit: ClassVar[str] = "cell"
    """The unit that the progress line counts."""
    version: ClassVar[int | None] = None
    """Version of the computation; results of other versions are recomputed. If set, the file also has the seconds."""

    @abstractmethod
    def describe(self) -> str:
        """Description for the progress line and for errors."""

    @abstractmethod
    def path(self, work: Path) -> Path:
        """The file of the result."""

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Estimated seconds on one core, as measured on one machine; NaN if not known."""

    @property
    def needs(self) -> Sequence[Job]:
        """Jobs whose results this one reads."""
        return ()

    @abstractmethod
    def run(self, work: Path) -> Any:
        """Compute the result, as JSON data."""

    def read(self, work: Path) -> Any:
        """The result of an earlier run; None if there is none, or if it is damaged or of another version."""
        try:
            found = json.loads(self.path(work).read_text())
        except (OSError, ValueError):
            return None
        if self.version is None:
            return found
        return found if isinstance(found, dict) and found.get("version") == self.version else None

    def make(self, work: Path) -> Job:
        """Run on one thread and write the result."""
        torch.set_num_threads(1)
        begun = time.monotonic()
        try:
            found = self.run(work)
        except (ValueError, OSError) as error:
            raise JobError(f"{self.describe()}: {error}") from error
        except Exception as error:
            error.add_note(f"in the job {self.describe()}")
            raise
        if self.version is not None:
            found = {"version": self.version, "seconds": time.monotonic() - begun, **found}
        write_whole(self.path(work), json.dumps(found) + "\n")
        return self


J = TypeVar("J", bound=Job)


def left(jobs: Iterable[Job], work: Path) -> dict[Path, float]:
    """By file, the seconds of one core of the unfinished ones among these jobs and the jobs they need."""
    return {job.path(work): job.seconds for job in _with_needs(jobs) if job.read(work) is None}


def run(jobs: Sequence[J], work: Path, workers: int | None = None, progress: bool | None = None) -> dict[J, Any]:
    """The results of jobs, in their order; missing ones are computed on all cores.

    Args:
        work: folder of all results.
        workers: number of processes; by default one per core.
        progress: whether to show a progress line; None shows it on a terminal only.
    """
    work = work.absolute()  # a process of the pool may have been started in another folder
    every = list(dict.fromkeys(_with_needs(jobs)))
    todo = [job for job in every if job.read(work) is None]
    total = Counter(job.unit for job in every)
    done = total - Counter(job.unit for job in todo)
    lines: dict[str, Progress] = {}
    while todo:
        waiting = set(todo)
        ready = [job for job in todo if waiting.isdisjoint(job.needs)]
        # The long ones first, so that all cores finish together.
        ready.sort(key=lambda job: 0.0 if math.isnan(job.seconds) else -job.seconds)
        for job in ready:
            if job.unit not in lines:
                lines[job.unit] = Progress(total[job.unit], job.unit, progress, done=done[job.unit])
                lines[job.unit].update(done[job.unit], job.describe)
        pool = joblib.Parallel(n_jobs=workers or joblib.cpu_count(), return_as="generator_unordered")
        for job in pool(joblib.delayed(job.make)(work) for job in ready):
            done[job.unit] += 1
            lines[job.unit].update(done[job.unit], job.describe)
        todo = [job for job in todo if job not in ready]
    return {job: job.read(work) for job in jobs}


def _with_needs(jobs: Iterable[Job]) -> Iterator[Job]:
    """Jobs, each after those that it needs."""
    for job in jobs:
        yield from _with_needs(job.needs)
        yield job
