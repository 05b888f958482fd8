"""Jobs that log their runs; run as a script and killed by reproduce/test_jobs.py."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ldf.reproduce import jobs
from ldf.reproduce.jobs import Job

COUNT = 12


@dataclass(frozen=True)
class Square(Job):
    """number² after a pause; each run is logged to a file."""

    version = 3
    number: int
    seconds: float = 1.0
    pause: float = 0.0

    def describe(self) -> str:
        return f"square of {self.number}"

    def path(self, work: Path) -> Path:
        return work / f"square-{self.number}.json"

    def run(self, work: Path) -> dict[str, Any]:
        with (work / "log").open("a") as log:
            log.write(f"{self.number}\n")
        time.sleep(self.pause)
        if self.number == 13:
            raise ValueError("13 is refused")
        return {"square": self.number**2, "half": 1 // (self.number != 14)}


@dataclass(frozen=True)
class Total(Job):
    """The sum of squares, stored without a version."""

    unit = "total"
    squares: tuple[Square, ...]
    seconds: float = 100.0

    def describe(self) -> str:
        return "sum"

    def path(self, work: Path) -> Path:
        return work / "deep" / "total.json"

    @property
    def needs(self) -> Sequence[Job]:
        return self.squares

    def run(self, work: Path) -> Any:
        with (work / "log").open("a") as log:
            log.write("total\n")
        return [sum(square.read(work)["square"] for square in self.squares)]


def slow() -> list[Square]:
    """Enough jobs that a kill interrupts them."""
    return [Square(number, pause=0.15) for number in range(COUNT)]


if __name__ == "__main__":
    jobs.run(slow(), Path(sys.argv[1]), workers=2, progress=False)
