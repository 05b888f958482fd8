"""The results of the full run in `results/`, for the README and for the documentation.

    python tools/results.py          writes them into README.md, between its marks
    python tools/results.py --check  ends with 1 if they are not there as they should be

mkdocs takes this file as a hook: it adds the pictures and the page of the run to the site.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from ldf.reproduce import report, targets
from ldf.reproduce.tables import digits, glance

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
MARKS = re.compile(r"(<!-- --8<-- \[start:results\] -->\n).*?(<!-- --8<-- \[end:results\] -->)", re.S)
TABLES = {
    "power-errors": "Errors on power networks",
    "gas-errors": "Errors on gas networks",
    "violations": "Distance that repair moves",
    "transprecision": "Transprecision, by training rows",
    "fairness": "Fair classifiers",
    "relaxed-fairness": "Fair classifiers with a slack",
}
"""The paper's six, in its order."""
HEAD = (
    "| | | paper's M_C^D | MCD, the paper's recipe | MCD, tuned | best baseline | |",
    "|---|---|---:|---:|---:|---:|---|",
)


def section(folder: Path) -> str:
    """Markdown: when and how, the figures to reach, and every figure of the paper's M_C^D beside ours."""
    _, parts, facts, missing = report.read(folder)
    if missing:
        raise ValueError(f"{folder} is not a whole run: {', '.join(missing)} is missing")
    lines = [
        f"From `{facts['command']}` of {facts['date']} on {facts['machine']} ({facts['versions']}).",
        "✓ or ✗: whether the figures to reach are reached. With *shared* demands, as in the paper; *independent* ones,",
        "every model, the laws, the baselines and the notes are in [results/table.md](results/table.md).",
        "",
        *(f"- {line}" for line in targets.summary(parts)),
    ]
    checks = targets.checks(parts)
    for name, words in TABLES.items():
        lines += ["", f"**{words}**", "", *HEAD]
        for line in glance(parts):
            if line.table != name or line.sampling == "independent":
                continue
            marks = [check.reached for check in checks if check.key == line.key]
            cells = [line.case, line.quantity, digits(line.paper)]
            cells += [line.figures.get(recipe, "") for recipe in ("paper", "tuned", "baseline")]
            shown = " | ".join(cell.replace(" ", "\u00a0") for cell in cells)
            lines.append(f"| {shown} | {'' if not marks else '✓' if all(marks) else '✗'} |")
    return "\n".join(lines) + "\n"


def readme(text: str, made: str) -> str:
    """The README's text with the results between its marks."""
    if not MARKS.search(text):
        raise ValueError("README.md has no marks [start:results] and [end:results]")
    return MARKS.sub(lambda found: found[1] + made + found[2], text)


def on_files(files: Any, config: Any) -> Any:
    """The hook: the pictures of the run under results/, its page as report/index.html."""
    from mkdocs.structure.files import File

    for picture in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    files.append(File.generated(config, "results/table.md", content=(RESULTS / "table.md").read_text()))
    page = report.page_of(RESULTS).replace('href="table.md"', 'href="../results/table.html"')
    files.append(File.generated(config, "report/index.html", content=page))
    files.append(File.generated(config, "report/results.json", content=(RESULTS / "results.json").read_text()))
    return files


def main() -> None:
    """Write the README, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    path = ROOT / "README.md"
    text = path.read_text()
    made = readme(text, section(RESULTS))
    if check and made != text:
        sys.exit("README.md does not show results/: run python tools/results.py")
    if not check:
        path.write_text(made)


if __name__ == "__main__":
    main()
