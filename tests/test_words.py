"""Plain words: phrases that made readers stop do not come back, and the README stays short."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PHRASES = (
    "begun is gone on with",
    "gone on with",
    "Of the draws.",
    "The largest.",
    "Solved demands to have",
    "this share besides",
    "Say the version",
    "figures to reach",
    "figure to reach",
    "are reached",
    "a look and no result",
    "keep rules",
    "keeps rules",
    "what chance explains",
    "than chance explains",
    "behind one face",
    "is no demand",
    "Puts certificates to",
    "of the paper again",
    "tables again",
    "solved beforehand",
    "where it was stopped",
    "goes on where",
    "go on where",
    "Where to go on",
    "cannot be had",
    "can be had",
    "made-up",
    "word for word",
)
"""The phrases that were found, and close relatives of them."""
READING = re.compile(r"\breadings\b|\b(?:a|one|each|every|the same|both) reading\b|--reading\b|READINGS|\breading such as\b")
"""A variant of a data set is not a reading."""
LINES = 150
"""Lines of the README, at most."""


def texts() -> list[Path]:
    """Every text of the project that people read, this file excepted."""
    kept = ["*.py", "*.md", "*.toml", "*.yml", "*.cff", "Makefile", ".ci/run", "results/*.json"]
    done = subprocess.run(["git", "ls-files", *kept], cwd=ROOT, capture_output=True, text=True)
    names = done.stdout.split() if done.returncode == 0 else []
    if not names:  # an unpacked archive has no git
        folders = ("src", "tests", "docs", "examples", "benchmarks", "tools")
        names = [*(str(p) for f in folders for s in ("py", "md") for p in (ROOT / f).rglob(f"*.{s}")), "README.md"]
    return [ROOT / name for name in names if (ROOT / name) != Path(__file__)]


def found(text: str) -> list[str]:
    """The phrases in a text, whatever its case and line breaks."""
    flat = re.sub(r'\s*(?:"\n\s*f?"|\n[#>\s]*)\s*', " ", text).lower()
    return [phrase for phrase in PHRASES if phrase.lower() in flat] + READING.findall(text)


def test_no_text_uses_a_phrase_that_readers_stopped_at() -> None:
    every = texts()
    assert {"README.md", "app.py", "power.md"} <= {path.name for path in every}
    assert {str(path.relative_to(ROOT)): words for path in every if (words := found(path.read_text()))} == {}


def test_the_readme_fits_on_three_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= LINES
    rows = [line for line in lines if line.startswith("|")]
    assert 3 <= len(rows) <= 2 + 8, "a head, a rule, and at most eight rows of results"


@pytest.mark.parametrize(
    "text",
    [
        "The folder; one that was begun is gone\n    on with.",
        'help="The folder; one that was begun is gone "\n    "on with."',
        "Figures To Reach",
        "both readings are run",
        "on one reading of each data set",
    ],
)
def test_a_phrase_is_found_across_lines_and_in_any_case(text: str) -> None:
    assert found(text)


def test_ordinary_words_pass() -> None:
    assert found("Reading the file takes a second. The largest value. You can go on. Resume where you stopped.") == []
