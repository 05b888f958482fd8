"""Work that is kept in files: what is run, in which order, what is read back, and what a failure says."""

import json
import math
from pathlib import Path

import pytest
from helpers import kill_after_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_jobs import COUNT, Square, Total, slow

from ldf.reproduce import jobs
from ldf.reproduce.jobs import JobError


def ran(work: Path) -> list[str]:
    """What has run so far, in its order."""
    log = work / "log"
    return log.read_text().split() if log.exists() else []


def run(work: Path, *asked: jobs.Job, workers: int = 1) -> list:
    return list(jobs.run(asked, work, workers, progress=False).values())


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_jobs_and_are_kept(tmp_path: Path, workers: int) -> None:
    asked = [Square(3), Square(1), Square(2)]
    found = run(tmp_path, *asked, workers=workers)
    assert [one["square"] for one in found] == [9, 1, 4]
    assert all(one["version"] == 3 and 0 <= one["seconds"] < 60 for one in found)
    assert sorted(ran(tmp_path)) == ["1", "2", "3"]
    assert run(tmp_path, *asked, Square(4), workers=workers)[:3] == found
    assert ran(tmp_path)[3:] == ["4"], "what is there is read"
    assert not list(tmp_path.glob(".*")), "no temporary file is left"


@pytest.mark.parametrize(
    "content", ["", "{", '{"square": 9', '{"square": 9}', '{"version": 2, "square": 9}', "[3]", "\x00\xff"]
)
def test_a_result_that_is_damaged_or_of_another_version_is_made_anew(tmp_path: Path, content: str) -> None:
    (whole,) = run(tmp_path, Square(3))
    Square(3).path(tmp_path).write_bytes(content.encode("latin-1"))
    assert Square(3).read(tmp_path) is None
    assert jobs.left([Square(3)], tmp_path) == {Square(3).path(tmp_path): 1.0}
    (again,) = run(tmp_path, Square(3))
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}
    assert ran(tmp_path) == ["3", "3"]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(math.nan)), max_size=8))
def test_the_longest_run_first_and_unknown_ones_last(tmp_path_factory, seconds: list[float]) -> None:
    work = tmp_path_factory.mktemp("work")
    run(work, *(Square(number, length) for number, length in enumerate(seconds)))
    lengths = [0.0 if math.isnan(seconds[int(number)]) else seconds[int(number)] for number in ran(work)]
    assert len(lengths) == len(seconds)
    assert lengths == sorted(lengths, reverse=True)


def test_what_a_job_needs_runs_before_it_once_and_only_where_it_is_not_there(tmp_path: Path) -> None:
    total = Total((Square(1), Square(2)))
    folder = total.path(tmp_path)
    assert jobs.left([total, Square(2)], tmp_path) == {
        Square(1).path(tmp_path): 1.0, Square(2).path(tmp_path): 1.0, folder: 100.0,
    }  # fmt: skip
    assert run(tmp_path, total, Square(2))[0] == [5]
    assert ran(tmp_path) == ["1", "2", "total"]
    assert json.loads(folder.read_text()) == [5], "as it is: it has no version"
    folder.unlink()
    assert jobs.left([total], tmp_path) == {folder: 100.0}
    assert run(tmp_path, total) == [[5]]
    assert ran(tmp_path)[3:] == ["total"]


def test_one_line_for_each_unit_counts_what_was_there_before(tmp_path: Path, capsys) -> None:
    total = Total((Square(1), Square(2)))
    run(tmp_path, Square(1))
    jobs.run([total], tmp_path, 1, progress=True)
    lines = [line.split("  ")[:2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        ["cell 1/2", "square of 2"], ["cell 2/2", "square of 2"], ["total 0/1", "sum"], ["total 1/1", "sum"],
    ]  # fmt: skip
    jobs.run([total], tmp_path, 1, progress=True)
    assert not capsys.readouterr().err, "nothing to do, nothing to say"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_names_its_job_and_the_others_stay(tmp_path: Path, workers: int) -> None:
    with pytest.raises(JobError, match=r"^square of 13: 13 is refused$"):
        run(tmp_path, Square(1, 50.0), Square(13), workers=workers)
    with pytest.raises(ZeroDivisionError) as mistake:
        run(tmp_path, Square(14), workers=workers)
    assert mistake.value.__notes__ == ["in the job square of 14"], "a mistake keeps its kind and its traceback"
    assert Square(13).read(tmp_path) is Square(14).read(tmp_path) is None
    assert run(tmp_path, Square(1))[0]["square"] == 1


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    assert kill_after_checkpoint(slow()[0].path(tmp_path), 0.2, "killed_jobs.py", str(tmp_path))
    there = {job for job in slow() if job.read(tmp_path) is not None}
    assert 0 < len(there) < COUNT
    before = {job: job.path(tmp_path).stat().st_mtime_ns for job in there}
    found = run(tmp_path, *slow(), workers=2)
    assert [one["square"] for one in found] == [number**2 for number in range(COUNT)]
    assert {job: job.path(tmp_path).stat().st_mtime_ns for job in there} == before, "read, not made again"


def test_a_relative_folder_is_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the pool are kept, and stay in the folder in which they were started."""
    for name in ("one", "two"):
        (tmp_path / name / "work").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        run(Path("work"), Square(1), Square(2), workers=2)
        assert sorted(ran(tmp_path / name / "work")) == ["1", "2"]
