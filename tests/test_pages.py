"""Every code block of the README and of the documentation runs, page by page, each page in a separate folder.

    ```python    runs, in one namespace for the whole page
    ```console   lines that start with "$ " run in a shell; the other lines are the expected output
    ```text      right after one of these: the expected output, "..." matches anything
    ```yaml, ```csv, …   with title="name": written to that file for the following blocks

A line `--8<-- "examples/dcopf/ldf_dcopf.py:program"` in a block is replaced by that part of the file, as in the
documentation. A comment `<!-- needs: gas/GasLib-40.zip -->` skips the page, with the reason, if that public file is not
available; `<!-- installed: examples/dcopf -->` installs that package for the page. Other blocks have no language and
are not run.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from inside import inside
from plugins import install

from ldf.io import data
from ldf.proxies import registry
from ldf.transprecision.kernels import KERNELS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)(?P<more>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$", re.M | re.S)
SNIPPET = re.compile(r'^--8<-- "(?P<path>[^":]+)(?::(?P<part>\w+))?"\n', re.M)
PLAIN = re.compile(r'ldf (?P<arguments>[^|&;<>$*`]+?)(?P<merged> 2>&1(?P<code>; echo "exit code \$\?")?)?')
"""An `ldf` line that needs no shell runs in this process, which saves the seconds that a new one takes to start."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    language: str
    title: str
    body: str
    line: int
    follows: bool
    """Whether only white space separates it from the previous block."""


def blocks(text: str) -> list[Block]:
    """The code blocks of a page, in order."""
    found, end = [], 0
    for match in FENCE.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["body"].splitlines(keepends=True))
        title = re.search(r'title="([^"]+)"', match["more"])
        line = text[: match.start()].count("\n") + 1
        follows = not text[end : match.start()].strip()
        found.append(Block(match["language"], title[1] if title else "", body, line, follows))
        end = match.end()
    return found


def included(body: str) -> str:
    """The body with include lines replaced by the parts of files that they name."""

    def part(match: re.Match[str]) -> str:
        text = (ROOT / match["path"]).read_text()
        if match["part"]:
            _, _, text = text.partition(f"# --8<-- [start:{match['part']}]\n")
            text, end, _ = text.partition(f"# --8<-- [end:{match['part']}]\n")
            assert end, f"{match['path']} has no part {match['part']}"
        return text

    return SNIPPET.sub(part, body)


def compare(page: Path, line: int, expected: str, printed: str) -> None:
    """Fail unless the output matches; "..." matches anything."""
    checker = doctest.OutputChecker()
    if not checker.check_output(expected, printed, FLAGS):
        pytest.fail(f"{page.name}:{line}: expected\n{expected}\nprinted\n{printed}", pytrace=False)


def shell(command: str, folder: Path) -> str:
    """Run a line in a shell, with this environment first in PATH, and return its output."""
    if plain := PLAIN.fullmatch(command.strip()):
        # One worker gives the same rows as two, and needs no processes; `tests/proxies` labels with two.
        arguments = shlex.split(plain["arguments"].replace("--workers 2", "--workers 1"))
        done = inside(*arguments, cwd=folder, merged=bool(plain["merged"]))
        if plain["code"]:
            done = subprocess.CompletedProcess(command, 0, f"{done.stdout}exit code {done.returncode}\n", done.stderr)
    else:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        options = {"cwd": folder, "env": {**os.environ, "PATH": path}, "capture_output": True, "text": True}
        done = subprocess.run(command, shell=True, timeout=600, **options)
    if done.returncode:
        pytest.fail(f"{command}\nexited with code {done.returncode}:\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


def run(page: Path, folder: Path) -> None:
    """Run all blocks of a page."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed = None
    for block in blocks(page.read_text()):
        if block.language == "python":
            code = compile("\n" * block.line + included(block.body), str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            printed = out.getvalue()
        elif block.language == "console":
            for part in re.split(r"^\$ ", block.body, flags=re.M)[1:]:
                command, _, expected = part.replace("\\\n", "").partition("\n")
                printed = shell(command, folder)
                if expected.strip():
                    compare(page, block.line, expected, printed)
        elif block.language == "text" and block.follows and printed is not None:
            compare(page, block.line, block.body, printed)
        elif block.title:
            (folder / block.title).write_text(included(block.body))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_code_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"<!-- needs: (\S+) -->", page.read_text()):
        try:
            data.locate(name)
        except (data.DataError, OSError) as reason:
            pytest.skip(f"{name} is not available: {reason}")
    for name in re.findall(r"<!-- installed: (\S+) -->", page.read_text()):
        folder = install(ROOT / name, tmp_path / "site")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    known = dict(KERNELS)
    run(page, tmp_path)
    KERNELS.clear()  # remove kernels that the page registered
    KERNELS.update(known)


def test_every_test_that_a_page_names_exists() -> None:
    named = [
        (page.name, file, test) for page in PAGES for file, test in re.findall(r"`(\S+\.py)::(\w+)`", page.read_text())
    ]
    assert "paper.md" in {page for page, _, _ in named}
    defined = {
        path.relative_to(ROOT / "tests").as_posix(): set(re.findall(r"^def (test_\w+)", path.read_text(), re.M))
        for path in (ROOT / "tests").rglob("test_*.py")
    }
    assert [(page, file, test) for page, file, test in named if test not in defined.get(file, ())] == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    wrong = []
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        place = page.parent / path if path else page
        heading = anchor and not anchor.startswith("ldf.") and place.suffix == ".md"  # ldf.…: made by mkdocstrings
        if not place.exists() or (heading and anchor not in anchors(place.read_text())):
            wrong.append(f"{path}#{anchor}")
    assert wrong == []


def test_every_module_is_in_the_reference() -> None:
    source = ROOT / "src"
    modules = {".".join(path.relative_to(source).with_suffix("").parts) for path in source.rglob("*.py")}
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    named = set(re.findall(r"^::: (\S+)$", pages, re.M))
    missing = {name for name in modules - named if not name.endswith("__init__") and "ldf.reproduce." not in name}
    assert not missing
    assert "ldf.reproduce" in named, "documented with its submodules"


def test_blocks_have_language_title_and_whether_they_follow() -> None:
    text = (
        '```python\nprint(1)\n```\n\n```text\n1\n```\nwords\n```csv title="a.csv"\nx\n```\n'
        '=== "tab"\n    ```console\n    $ ls\n    ```\n'
    )
    found = blocks(text)
    assert [(b.language, b.title, b.body, b.line, b.follows) for b in found] == [
        ("python", "", "print(1)\n", 1, True),
        ("text", "", "1\n", 5, True),
        ("csv", "a.csv", "x\n", 9, False),
        ("console", "", "$ ls\n", 13, False),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```\n```text\n2\n```\n",
        "```python\nraise ValueError\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
    ],
)
def test_an_incorrect_page_fails(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises((pytest.fail.Exception, ValueError)):
        run(page, tmp_path)


def test_a_part_of_a_file_is_included() -> None:
    body = included('x = 1\n--8<-- "examples/dcopf/ldf_dcopf.py:problem"\ny = 2\n')
    assert body.startswith("x = 1\nclass DC(Problem):\n")
    assert body.endswith("y = 2\n")
    assert "--8<--" not in body
    with pytest.raises(AssertionError, match="has no part gravity"):
        included('--8<-- "examples/dcopf/ldf_dcopf.py:gravity"\n')


def test_a_correct_page_passes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```python\nx = 1\n```\n```python\nprint(x, "and more")\n```\n```text\n1 and ...\n```\n'
        '```csv title="a.csv"\np,q\n```\n```console\n$ cat \\\n  a.csv\np,q\n$ echo done > ran\n```\n'
    )
    run(page, tmp_path)
    assert (tmp_path / "ran").read_text() == "done\n", "runs to the last line"
