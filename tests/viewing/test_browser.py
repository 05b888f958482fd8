"""Report pages in a real browser: no errors, no requests, figures, sorting, narrow and wide, light and dark."""

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from browser import Seen, contrast, look

import ldf
from ldf.io.data import SOURCES
from ldf.reproduce import figures, report
from ldf.reproduce.tables import Figure, Part
from ldf.viewing import figures as drawing
from ldf.viewing import page as building
from ldf.viewing.page import Cell
from tests.reproduce.test_report import Page, rows
from tests.reproduce.test_targets import fairness, row, transprecision
from tests.viewing.test_report import trained

SURVEY = """
const root = document.documentElement, all = selector => [...document.querySelectorAll(selector)];
const widths = () => [root.scrollWidth, innerWidth];
const closed = widths();
const back = element => {
  const colour = getComputedStyle(element).backgroundColor;
  return colour !== "rgba(0, 0, 0, 0)" || !element.parentElement ? colour : back(element.parentElement);
};
const colours = Object.fromEntries(
  ["body", "p", "td", "dt", "a", ".quiet", ".good", ".bad", ".legend", "figcaption", "th button", "summary"]
  .flatMap(name => all(name).slice(0, 1).map(e => [name, [getComputedStyle(e).color, back(e)]])));
const band = document.createElement("i");
band.style.color = "var(--band)";
document.body.append(band);
const hovered = getComputedStyle(band).color;
band.remove();
const images = all("img").map(e => [e.complete, e.naturalWidth, e.naturalHeight, Boolean(e.closest("details"))]);
const shut = all("details").filter(e => !e.open).length;
all("details").forEach(e => e.open = true);
const boxes = all(".wide").map(e => [e.scrollWidth, e.clientWidth, getComputedStyle(e).overflowX]);
const broad = all("img").map(e => e.getBoundingClientRect().right);
const tables = all("table").map(table => {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], lines = [...body.rows];
  const state = () => ({order: [...body.rows].map(line => lines.indexOf(line)),
    sorts: heads.map(head => head.getAttribute("aria-sort"))});
  const cells = lines.map(line => [...line.cells].map(cell => [cell.textContent, cell.dataset.value ?? null]));
  const buttons = heads.map(head => {
    const button = head.firstElementChild;
    button.focus();
    return [button.tagName, button.type, head.children.length, document.activeElement === button,
      getComputedStyle(button).textDecorationLine];
  });
  const clicks = heads.map(head => [1, 2, 3].map(() => { head.firstElementChild.click(); return state(); }));
  return {name: table.getAttribute("aria-label"), cells, buttons, clicks};
});
return {widths: {closed, open: widths()}, colours, hovered, images, shut, boxes, broad, tables,
  dark: matchMedia("(prefers-color-scheme: dark)").matches, letters: document.characterSet, seen: root.innerText};
"""
PAGES = ("fits", "whole", "quick")
VIEWS = {"wide and light": (1500, False), "narrow and dark": (420, True)}
# The message about data that cannot be downloaded contains a long URL without spaces.
REASON = f"gas/gaslib-40-E.m is missing, and could not be downloaded from {SOURCES['gas/gaslib-40-E.m'].url}: no route"


def draw(folder: Path, fits: dict[str, ldf.Fit]) -> list[Part]:
    """Tables of invented values with figures, and figures of real fits."""
    power = [*rows(), *rows(recipe="paper"), *rows("case118_ieee", sampling="independent", samples=4000, epochs=80)]
    power += [row("MCD", "pf", 1e-7, paper=0.001), row("M", "pf", None, seeds=0), row("mean", "pf", 12.0)]
    precise = [
        one | {"case": size, "mean": one["mean"] * int(size), "paper": 0.1}
        for size in ("200", "1000")
        for one in transprecision("paper", M=(9.0, 0.2, 0.19, 1e-7), MC=(30.0, 0.1, 0.25), MCD=(0.0, 0.1, 1e-6, 3e-7))
    ]
    fair = [fairness(m, q, x, 0.05) for m, x in (("M", 0.2), ("MCD", -0.001)) for q in ("DT", "signed DT", "accuracy")]
    histories = {name: fit.history for name, fit in fits.items()}
    figures.errors_figure(power, folder / "power.png", {"p": "p^g"})
    drawing.multipliers_figure(histories, folder / "multipliers.png")
    drawing.traces_figure(histories, folder / "traces.png")
    figures.curves_figure(precise, folder / "curves.png", ("VC", "SMVC", "MAE y"), "training configurations")
    shown = [
        Figure("power.png", "Errors, %, by model"),
        Figure("multipliers.png", "Multipliers of MCD over the epochs"),
        Figure("traces.png", "Mean ν per law over the epochs", "Violations over the epochs"),
    ]
    facts = {"labels, case30_ieee, shared": "4000 rows", "assumptions, gaslib-135": f"taken from {REASON}"}
    return [
        Part("power-errors", "Errors", power + rows(table="power-laws", paper=None), shown, [REASON], facts),
        Part("transprecision", "Transprecision", precise, [Figure("curves.png", "Against the size")], repeats="sets"),
        Part("fairness", "Fair classifiers", fair, repeats="folds"),
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of several fits, a page of several tables, and the same tables from a quick run with one missing."""
    folder = tmp_path_factory.mktemp("pages")
    crossed = replace(trained(), conflicts={("capacity", "balance"): -0.5})
    fits = {"M": trained(dual=None), "MCD": crossed, "a model with held-out rows": trained(validation=0.25)}
    parts = draw(folder, fits)
    found = {"fits": ldf.report(fits, folder / "fits.html", title="Several fits")}
    command = {"command": f"ldf reproduce all --case {'a/very/long/name/of/a/file/' * 4}case.m", **building.machine()}
    whole = report.write(folder, "The paper's tables", parts, command, {})
    found["whole"] = whole.rename(folder / "whole.html")
    hasty = [replace(part, quick=True) for part in parts]
    found["quick"] = report.write(folder, "The paper's tables", hasty, command, {"gas-errors, gaslib-40": REASON})
    return found


@pytest.fixture(scope="module")
def seen(made: dict[str, Path]):
    """Survey of a page in a view; each is opened once."""
    return cache(lambda name, view: look(made[name], SURVEY, VIEWS[view][0], dark=VIEWS[view][1]))


every_page = pytest.mark.parametrize("name", PAGES)
every_view = pytest.mark.parametrize("view", VIEWS)


# ---------------------------------------------------------------- the test tool


def test_errors_on_a_page_are_detected(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(building.document("t", ["<p>✓ fine</p>"]))
    read = "return [document.querySelector('p').innerText, innerWidth]"
    assert look(path, read, width=420) == Seen(["✓ fine", 420], [])
    wrong = [
        "<script>nothing();</script>",
        '<script>console.warn("careful");</script>',
        '<img src="data:image/png;base64,AAAA" alt="">',
        '<img src="http://localhost:9/far.png" alt="">',
        '<img src="local.png" alt="">',
        "<style>p { background: url(style.png); }</style><p>text</p>",
    ]
    path.write_text(building.document("t", wrong))
    errors = "\n".join(look(path, "return absent.value").errors)
    for words in ("nothing is not", "careful", "base64,AAAA", ":9/far.png", "local.png", "style.png", "absent is not"):
        assert words in errors


# ---------------------------------------------------------------- the pages


@every_view
@every_page
def test_a_page_opens_without_errors_or_console_output(name: str, view: str, seen) -> None:
    found: Seen = seen(name, view)
    assert found.errors == []
    assert found.found["letters"] == "UTF-8"
    assert found.found["dark"] == VIEWS[view][1]
    words = {"fits": "Doctor's findings: MCD", "whole": "Targets", "quick": f"is missing: {REASON}"}
    assert words[name] in found.found["seen"]


@every_page
def test_a_page_is_self_contained(name: str, made: dict[str, Path]) -> None:
    page = Page(made[name].read_text())
    given = [value for _, found in page.attributes for key, value in found.items() if key in ("src", "href", "srcset")]
    inside = {f"#{found['id']}" for _, found in page.attributes if "id" in found}
    linked = {"results.json", "table.md"} if name != "fits" else set()
    assert {value for value in given if not value.startswith("data:")} == inside | linked
    assert sum(value.startswith("data:image/png;base64,") for value in given) >= 3
    for folder in {made[name].parent / file for file in linked}:
        assert folder.is_file()
    style = re.search(r"<style>(.*?)</style>", made[name].read_text(), re.DOTALL)
    assert not re.search(r"url\(|@import", style[1])


@every_view
@every_page
def test_every_figure_is_shown_including_those_in_closed_details(name: str, view: str, seen) -> None:
    found = seen(name, view).found
    assert len(found["images"]) == {"fits": 3, "whole": 4, "quick": 4}[name]
    assert all(done and width > 100 and height > 100 for done, width, height, _ in found["images"])
    assert any(hidden for *_, hidden in found["images"]) == (name != "fits")
    assert found["shut"] >= 3, "details are closed initially"
    assert max(found["broad"]) <= VIEWS[view][0]


@every_view
@every_page
def test_nothing_overflows_and_wide_tables_scroll_in_their_own_box(name: str, view: str, seen) -> None:
    found = seen(name, view).found
    for state, (needed, there) in found["widths"].items():
        assert there == VIEWS[view][0]
        assert needed <= there, state
    assert len(found["boxes"]) == len(found["tables"])
    assert {overflow for *_, overflow in found["boxes"]} == {"auto"}
    scrolled = [inner > outer for inner, outer, _ in found["boxes"]]
    assert any(scrolled) or view == "wide and light"
    assert max(outer for _, outer, _ in found["boxes"]) <= VIEWS[view][0]


@every_view
@every_page
def test_text_contrasts_with_its_background(name: str, view: str, seen) -> None:
    found = seen(name, view).found
    colours, (text, background) = found["colours"], found["colours"]["body"]
    assert {"body", "td", "dt", ".quiet", ".good", ".bad", "th button", "summary", "figcaption"} <= colours.keys()
    for what, (fore, back) in colours.items():
        assert back == background, what
        assert contrast(fore, back) >= 4.5, what
        assert contrast(fore, found["hovered"]) >= 4.5, f"{what}, a row under the pointer"
    assert len({colours[what][0] for what in ("body", ".quiet", ".good", ".bad")}) == 4
    assert contrast(background, "rgb(0, 0, 0)" if VIEWS[view][1] else "rgb(255, 255, 255)") < 1.5
    assert contrast(text, background) > 10


@every_page
def test_light_and_dark_are_different(name: str, seen) -> None:
    light, dark = (seen(name, view).found["colours"] for view in VIEWS)
    assert light.keys() == dark.keys()
    for what in light:
        assert light[what][0] != dark[what][0], what
        assert light[what][1] != dark[what][1], what


# ---------------------------------------------------------------- sorting


def key(cell: list) -> tuple[bool, list]:
    """Whether a cell is empty, and its sort key: a number, or text in which numbers compare as numbers."""
    text, value = cell
    shown = text if value is None else value
    try:
        return shown in ("", "nan"), [(0, float(shown), "")]
    except ValueError:
        parts = re.findall(r"\d+|\D", shown.lower())
        return not shown, [(0, float(p), "") if p.isdigit() else (2 if p.isalpha() else 1, 0.0, p) for p in parts]


def check(table: dict) -> None:
    """Every column heading sorts the table, ascending and descending."""
    count = len(table["cells"])
    for column, clicks in enumerate(table["clicks"]):
        where = (table["name"], column)
        assert [state["sorts"] for state in clicks] == [
            [direction if other == column else None for other in range(len(table["clicks"]))]
            for direction in ("ascending", "descending", "ascending")
        ], where
        for state, down in zip(clicks, (False, True, False), strict=True):
            assert sorted(state["order"]) == list(range(count)), f"{where}: no row is lost"
            keys = [key(table["cells"][at][column]) for at in state["order"]]
            empty = [one for one, _ in keys]
            assert empty == sorted(empty), f"{where}: what is empty is last"
            values = [value for gone, value in keys if not gone]
            assert values == sorted(values, reverse=down), where


@every_page
def test_every_heading_is_a_button_and_sorts_its_table(name: str, seen) -> None:
    tables = seen(name, "wide and light").found["tables"]
    assert len(tables) == {"fits": 7, "whole": 13, "quick": 13}[name]
    for table in tables:
        assert {len(line) for line in table["cells"]} == {len(table["buttons"])}
        for button in table["buttons"]:
            assert button == ["BUTTON", "button", 1, True, "underline"], "reachable by keyboard, with visible focus"
        check(table)


def test_numbers_are_sorted_as_numbers_text_as_text_and_empty_cells_last(tmp_path: Path) -> None:
    names = ("item 10", "item 9", "b", "Äpfel", "a", "", "item 2", "c")
    values = [10.0, 9.0, 1e-7, 0.001, -2.0, None, math.nan, math.inf]
    lines = [
        [Cell(name, kind="text"), Cell(f"{value} ± 1", value), Cell("" if value is None else str(value))]
        for name, value in zip(names, values, strict=True)
    ]
    lines[5][1] = Cell("")
    path = tmp_path / "a.html"
    path.write_text(building.document("t", [building.table("T", ["text", "value", "bare"], lines)]))
    found = look(path, SURVEY)
    assert found.errors == []
    (table,) = found.found["tables"]
    rising = [[table["cells"][at][column][0] for at in table["clicks"][column][0]["order"]] for column in range(3)]
    falling = [[table["cells"][at][column][0] for at in table["clicks"][column][1]["order"]] for column in range(3)]
    numbers = ["-2.0", "1e-07", "0.001", "9.0", "10.0", "inf"]
    words = ["a", "Äpfel", "b", "c", "item 2", "item 9", "item 10"]
    for column, wanted in enumerate((words, [f"{one} ± 1" for one in numbers], numbers)):
        assert rising[column][: len(wanted)] == wanted
        assert falling[column][: len(wanted)] == wanted[::-1]
    assert rising[0][7:] == falling[0][7:] == [""]
    assert sorted(rising[1][6:]) == sorted(falling[1][6:]) == ["", "nan ± 1"]
    assert sorted(rising[2][6:]) == sorted(falling[2][6:]) == ["", "nan"]
