"""Reports: tables of results as JSON, as text, and with plots on a self-contained HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from itertools import compress
from pathlib import Path

from ..io.text import write_whole
from ..viewing import page
from ..viewing.page import Cell
from . import targets
from .glance import COLUMNS, TRAINED, Line, glance, grouped, lowest
from .tables import CENTRED, HIGHER, LEGEND, Figure, Part, Section, Shown, digits, markdown, plain, sections_of


def write(
    folder: Path, title: str, parts: Sequence[Part], facts: Mapping[str, str], missing: Mapping[str, str]
) -> Path:
    """Write results.json, run.json, table.md and index.html, and return the path of the page.

    Args:
        facts: facts about the whole run: the command, the date, the machine.
        missing: tables that could not be made, and why.
    """
    for part in parts:
        for figure in (*part.figures, *([part.answer.map] if part.answer else [])):
            if not (folder / figure.path).is_file():
                raise ValueError(f"there is no figure {figure.path!r} in {folder}; draw it before writing the report")
    # Everything that may fail comes before the first file is written.
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
    """Read what `write` wrote: title, parts, facts, and missing tables with the reason."""
    rows = json.loads((folder / "results.json").read_text())
    about = json.loads((folder / "run.json").read_text())
    parts, at = [], 0
    for part in about["parts"]:
        own = rows[at : at + part["rows"]]
        at += part["rows"]
        answer = part.get("answer") and Shown(**{**part["answer"], "map": Figure(**part["answer"]["map"])})
        figures = [Figure(**figure) for figure in part["figures"]]
        parts.append(Part(**{**part, "rows": own, "figures": figures, "answer": answer}))
    if at != len(rows):
        raise ValueError(f"{folder}: run.json lists {at} rows, but results.json has {len(rows)}")
    return about["title"], parts, about["facts"], about["missing"]


def page_of(folder: Path) -> str:
    """The HTML page of a folder that `write` wrote."""
    return _page(folder, *read(folder))


def _document(title: str, parts: Sequence[Part], facts: Mapping[str, str], missing: Mapping[str, str]) -> str:
    lines = [f"# {plain(title)}", ""]
    lines += [f"- {plain(name)}: `{value}`" for name, value in facts.items()]
    lines += [f"- **{plain(name)} is missing**: {plain(reason)}" for name, reason in missing.items()]
    goals = targets.summary(parts)
    lines += ["", "## Targets", "", *(f"- {line}" for line in goals), ""] if goals else [""]
    for part in parts:
        quick = " (quick run, not for comparison)" if part.quick else ""
        lines += [f"# {plain(part.title)}{quick}", "", markdown(part.rows)]
        lines += ["Notes:", "", *(f"- {plain(note)}" for note in part.notes), ""] if part.notes else []
        lines += [*(f"- {plain(name)}: {plain(value)}" for name, value in part.facts.items()), ""] if part.facts else []
    return "\n".join(lines).rstrip() + "\n"


def _page(folder: Path, title: str, parts: Sequence[Part], facts: Mapping[str, str], missing: Mapping[str, str]) -> str:
    """The page: an operator's view if there is one, targets, all models at a glance, then each table."""
    body = [f"<h1>{escape(title)}</h1>"]
    body += [f'<p class="bad">✗ {escape(name)} is missing: {escape(why)}</p>' for name, why in missing.items()]
    if any(part.quick for part in parts):
        body.append('<p class="bad">Quick run: few labels, epochs and repeats. Not for comparison.</p>')
    body += [line for part in parts if part.answer for line in _answer(folder, part.answer)]
    checks, lines = targets.checks(parts), glance(parts)
    linked = {"targets": "Targets"} if checks else {}
    linked |= {"glance": "At a glance"} if lines else {}
    linked |= {part.name: part.title for part in parts} | {"made": "How this page was made"}
    body += ["<nav><ul>", *(f'<li><a href="#{at}">{escape(words)}</a></li>' for at, words in linked.items())]
    body += ["</ul></nav>", *_targets(checks), *_glance(lines, lowest(parts))]
    body += [line for part in parts for line in _section(folder, part)]
    body += ['<h2 id="made">How this page was made</h2>', page.facts(facts)]
    body.append('<p class="legend">The same results as data: <a href="results.json">results.json</a>; ')
    body.append('as text: <a href="table.md">table.md</a>.</p>')
    return page.document(title, body)


def _answer(folder: Path, answer: Shown) -> list[str]:
    """One answered demand: the verdict, the map of the network, the dispatch and the certificate."""
    kind, mark = ("good", "✓") if answer.certified else ("bad", "✗")
    tables = []
    for caption, (heads, *rows) in answer.tables.items():
        cells = [[Cell(row[0], kind="text"), *(_judged(text) for text in row[1:])] for row in rows]
        tables.append(page.table(caption, heads, cells))
    return [
        f"<h2>{escape(answer.title)}</h2>",
        f'<p class="lead"><span class="{kind}">{mark}</span> {escape(answer.verdict)}</p>',
        page.pictures([page.picture(folder / answer.map.path, answer.map.caption)]),
        page.facts(answer.facts),
        "\n".join(['<div class="tables small">', *tables, "</div>"]),
    ]


def _judged(text: str) -> Cell:
    """A cell, coloured if it begins with a mark."""
    return Cell(text, kind={"✓": "good", "✗": "bad"}.get(text[:1], ""))


def _targets(checks: Sequence[targets.Check]) -> list[str]:
    """What was asked for, in words, and whether it was met; each check when unfolded."""
    if not checks:
        return []
    lines = ['<h2 id="targets">Targets</h2>', "<ul>"]
    for words, met, count in targets.counts(checks):
        mark = '<span class="good">✓</span>' if met == count else '<span class="bad">✗</span>'
        lines.append(f"<li>{mark} {escape(words)}: {met} of {count} met</li>")
    heads = ["table", "case", "sampling", "recipe", "quantity", "model", "result", "target", "from", "met"]
    rows = []
    for check in checks:
        name, case, sampling, recipe, _, quantity = check.key
        place = [Cell(text or "", kind="text") for text in (name, case, sampling, recipe, quantity, check.model)]
        values = [Cell(digits(check.ours), check.ours), Cell(f"{check.sign} {digits(check.bound)}", check.bound)]
        judged = Cell(check.mark, float(check.met), kind="good" if check.met else "bad")
        rows.append([*place, *values, Cell(check.source, kind="text quiet"), judged])
    return [*lines, "</ul>", page.details("Every target", [page.table("Every target", heads, rows)])]


def _glance(lines: Sequence[Line], first: Mapping[str, int]) -> list[str]:
    """M, MC, MCD, repaired, the best baseline and the best peer, next to the paper's value and the target."""
    if not lines:
        return []
    count = sum(first.values())
    shares = ", ".join(f"{model} in {first[model]}" for model in TRAINED)
    words = f" Lowest mean of the three over the {count} lines on networks: {shares}." if count else ""
    note = (
        "M: no constraints; MC: λ = 1; MCD: λ by dual ascent. Mean ± standard deviation; bold: the best of the three."
        f"{words} A target names the model that it judges. Click a head to sort."
    )
    tables = [_compared(title, own) for title, own in grouped(lines).items()]
    return ['<h2 id="glance">At a glance</h2>', f'<p class="legend">{note}</p>', *tables]


def _compared(title: str, lines: Sequence[Line]) -> str:
    """One table: a line per case and quantity, a column per model, without empty columns."""
    heads = ["case", "quantity", *COLUMNS, "paper's M_C^D", "target"]
    rows = []
    for line in lines:
        quantity = line.key[5]
        sign = -1 if quantity in HIGHER else 1
        scores = [sign * line.entries[model].value for model in TRAINED if model in line.entries]
        row = [Cell(line.case, kind="text"), Cell(line.quantity, kind="text")]
        for column in COLUMNS:
            entry = line.entries.get(column)
            best = entry is not None and column in TRAINED and sign * entry.value == min(scores)
            strong = best and quantity not in CENTRED
            row.append(Cell("") if entry is None else Cell(entry.text, entry.value, strong=strong))
        row.append(Cell("") if math.isnan(line.paper) else Cell(digits(line.paper), line.paper, kind="quiet"))
        kind = "" if not line.checks else "good" if all(check.met for check in line.checks) else "bad"
        rows.append([*row, Cell(line.target, kind=f"text {kind}".rstrip())])
    used = [any(row[at].text for row in rows) for at in range(len(heads))]
    return page.table(title, list(compress(heads, used)), [list(compress(row, used)) for row in rows])


def _section(folder: Path, part: Part) -> list[str]:
    """One table of the paper: plots, tables, notes, settings."""
    quick = ". Quick run, not for comparison." if part.quick else "."
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
        lines.append(page.details(f"{name}: {len(found)} more tables", [beside]) if aside else beside)
    lines.append(f'<p class="legend">{escape(LEGEND)}</p>')
    if part.notes:
        lines += ["<h3>Notes, and differences from the paper</h3>", "<ul>"]
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
            shown = section.text(quantity, model)
            line.append(Cell(shown, None if math.isnan(value) else value, strong=model in best))
        for model in section.papers:
            value = section.paper(quantity, model)
            shown = section.paper_text(quantity, model)
            line.append(Cell(shown, None if math.isnan(value) else value, kind="quiet"))
        rows.append(line)
    row = next(iter(section.cells.values()))
    note = f"{escape(part.settings(row))} · <code>{escape(part.command(row))}</code>"
    return page.table(section.heading, heads, rows, note)
