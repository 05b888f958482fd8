"""Reports: tables of results as JSON, as text, and with pictures on a page that needs no network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from ..io.text import write_whole
from ..viewing import page
from ..viewing.page import Cell
from . import targets
from .tables import LEGEND, Figure, Part, Section, digits, glance, markdown, plain, sections_of


def write(
    folder: Path, title: str, parts: Sequence[Part], facts: Mapping[str, str], missing: Mapping[str, str]
) -> Path:
    """Write results.json, run.json, table.md and index.html, and return the path of the page.

    Args:
        facts: what is to be known of the run as a whole: the command, the date, the machine.
        missing: tables that could not be made, and why.
    """
    for part in parts:
        for figure in part.figures:
            if not (folder / figure.path).is_file():
                raise ValueError(
                    f"there is no figure {figure.path!r} in {folder}; draw it before the report is written"
                )
    # What takes any time or may fail comes before the first file is written.
    text, html = _document(title, parts, facts, missing), _page(folder, title, parts, facts, missing)
    finite = [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for part in parts
        for row in part.rows
    ]
    about = {
        "title": title,
        "facts": dict(facts),
        "missing": dict(missing),
        "parts": [{**asdict(part), "rows": len(part.rows)} for part in parts],
    }
    write_whole(folder / "results.json", json.dumps(finite, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_whole(folder / "run.json", json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    write_whole(folder / "table.md", text)
    write_whole(folder / "index.html", html)
    return folder / "index.html"


def read(folder: Path) -> tuple[str, list[Part], dict[str, str], dict[str, str]]:
    """What `write` wrote: title, parts, facts, and what is missing."""
    rows = json.loads((folder / "results.json").read_text())
    about = json.loads((folder / "run.json").read_text())
    parts, at = [], 0
    for part in about["parts"]:
        own = rows[at : at + part["rows"]]
        at += part["rows"]
        parts.append(Part(**{**part, "rows": own, "figures": [Figure(**figure) for figure in part["figures"]]}))
    if at != len(rows):
        raise ValueError(f"{folder}: run.json speaks of {at} rows, and results.json has {len(rows)}")
    return about["title"], parts, about["facts"], about["missing"]


def page_of(folder: Path) -> str:
    """The page of a folder that `write` wrote, made again."""
    return _page(folder, *read(folder))


def _document(title: str, parts: Sequence[Part], facts: Mapping[str, str], missing: Mapping[str, str]) -> str:
    lines = [f"# {plain(title)}", ""]
    lines += [f"- {plain(name)}: `{value}`" for name, value in facts.items()]
    lines += [f"- **{plain(name)} is missing**: {plain(reason)}" for name, reason in missing.items()]
    lines += ["", "## Figures to reach", "", *(f"- {line}" for line in targets.summary(parts)), ""]
    for part in parts:
        quick = " (quick run: a look and no result)" if part.quick else ""
        lines += [f"# {plain(part.title)}{quick}", "", markdown(part.rows)]
        lines += ["Notes:", "", *(f"- {plain(note)}" for note in part.notes), ""] if part.notes else []
        lines += [*(f"- {plain(name)}: {plain(value)}" for name, value in part.facts.items()), ""] if part.facts else []
    return "\n".join(lines).rstrip() + "\n"


def _page(folder: Path, title: str, parts: Sequence[Part], facts: Mapping[str, str], missing: Mapping[str, str]) -> str:
    links = [f'<li><a href="#{part.name}">{escape(part.title)}</a></li>' for part in parts]
    body = [f"<h1>{escape(title)}</h1>", page.facts(facts)]
    body += [f'<p class="bad">✗ {escape(name)} is missing: {escape(why)}</p>' for name, why in missing.items()]
    if any(part.quick for part in parts):
        body.append('<p class="bad">A quick run: few labels, epochs and repeats. A look, and no result.</p>')
    if len(parts) > 1:
        body += ["<nav><ul>", *links, "</ul></nav>"]
    body += [*_front(parts), *(line for part in parts for line in _section(folder, part))]
    body.append('<p class="legend">The same as data: <a href="results.json">results.json</a>, ')
    body.append('as text: <a href="table.md">table.md</a>.</p>')
    return page.document(title, body)


def _front(parts: Sequence[Part]) -> list[str]:
    """At a glance: the paper's figures, ours, the baselines, and what was to be reached."""
    checks = targets.checks(parts)
    lines: list[str] = []
    if checks:
        lines.append("<h2>Figures to reach</h2>")
        good, bad = '<span class="good">✓</span>', '<span class="bad">✗</span>'
        lines += ["<ul>"]
        for words, reached, count in targets.counts(checks):
            lines.append(f"<li>{good if reached == count else bad} {escape(words)}: {reached} of {count}</li>")
        lines += ["</ul>"]
        heads = ["table", "case", "sampling", "what", "ours", "bound", "reached"]
        rows = [
            [
                Cell(check.table, kind="text"),
                Cell(check.case, kind="text"),
                Cell(check.sampling or "", kind="text quiet"),
                Cell(check.what, kind="text"),
                Cell(digits(check.ours), check.ours),
                Cell(f"{check.sign} {digits(check.bound)}", check.bound, kind="quiet"),
                Cell("✓" if check.reached else "✗", float(check.reached), kind="good" if check.reached else "bad"),
            ]
            for check in checks
        ]
        lines.append(page.details("Each of them", [page.table("Every figure to reach", heads, rows)]))
    found = glance(parts)
    if found:
        heads = [
            "table",
            "case",
            "sampling",
            "quantity",
            "paper's MCD",
            "MCD, paper recipe",
            "MCD, tuned",
            "best baseline",
            "reached",
        ]
        rows = []
        for line in found:
            marks = [check for check in checks if check.key == line.key]
            reached = all(check.reached for check in marks)
            rows.append(
                [
                    Cell(line.table, kind="text"),
                    Cell(line.case, kind="text"),
                    Cell(line.sampling, kind="text quiet"),
                    Cell(line.quantity, kind="text"),
                    Cell(digits(line.paper), line.paper),
                    Cell(line.figures.get("paper", ""), line.values.get("paper")),
                    Cell(line.figures.get("tuned", ""), line.values.get("tuned"), strong=True),
                    Cell(line.figures.get("baseline", ""), line.values.get("baseline"), kind="quiet"),
                    Cell("", kind="")
                    if not marks
                    else Cell("✓" if reached else "✗", float(reached), kind="good" if reached else "bad"),
                ]
            )
        note = "Mean ± standard deviation. ✓ or ✗: the figures to reach. A click on a head sorts."
        lines += ["<h2>At a glance</h2>", page.table("Every figure of the paper's M_C^D, and ours", heads, rows, note)]
    return lines


def _section(folder: Path, part: Part) -> list[str]:
    """A table of the paper: pictures, tables, notes."""
    quick = ". Quick run: a look and no result." if part.quick else "."
    shown: dict[str, list[str]] = {}
    for figure in part.figures:
        shown.setdefault(figure.group, []).append(
            page.picture(folder / figure.path, figure.caption.rstrip(".") + quick)
        )
    lines = [f'<h2 id="{part.name}">{escape(part.title)}</h2>', page.pictures(shown.pop("", []))]
    lines += [page.details(f"{group}: {len(found)}", [page.pictures(found)]) for group, found in shown.items()]
    tables: dict[str, list[str]] = {}
    for section in sections_of(part.rows):
        tables.setdefault(section.table, []).append(_html_table(part, section))
    for name, found in tables.items():
        beside = "\n".join(['<div class="tables">', *found, "</div>"])
        aside = name != part.name and not name.startswith("transprecision") and part.name in tables
        lines.append(page.details(f"{name}: {len(found)} tables more", [beside]) if aside else beside)
    lines.append(f'<p class="legend">{escape(LEGEND)}</p>')
    if part.notes:
        lines += ["<h3>What differs from the paper, and what to know</h3>", "<ul>"]
        lines += [*(f"<li>{escape(note)}</li>" for note in part.notes), "</ul>"]
    if part.facts:
        lines.append(page.details("How it was made", [page.facts(part.facts)]))
    return lines


def _html_table(part: Part, section: Section) -> str:
    heads = ["quantity", *section.models, *(f"paper {model}" for model in section.papers)]
    rows = []
    for quantity in section.quantities:
        best, unit = section.best(quantity), section.unit(quantity)
        line = [Cell(f"{quantity} ({unit})" if unit else quantity, kind="text")]
        for model in section.models:
            value = section.mean(quantity, model)
            shown = section.figure(quantity, model)
            line.append(Cell(shown, None if math.isnan(value) else value, strong=model in best))
        for model in section.papers:
            value = section.paper(quantity, model)
            shown = section.paper_figure(quantity, model)
            line.append(Cell(shown, None if math.isnan(value) else value, kind="quiet"))
        rows.append(line)
    row = next(iter(section.cells.values()))
    note = f"{escape(part.settings(row))} · <code>{escape(part.command(row))}</code>"
    return page.table(section.heading, heads, rows, note)
