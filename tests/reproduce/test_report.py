"""Reports: the same rows as JSON, Markdown, text, page and figures."""

import json
import math
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ldf.core.history import History
from ldf.reproduce import figures, report, tables
from ldf.reproduce.tables import Figure, Part, Shown
from ldf.viewing import figures as drawing

MEANS = {"mean": 8.12, "linear": 1.23, "previous": 0.912, "M": 0.456, "MC": 0.0789, "MCD": 0.0234}
PAPER = {"M": 0.5, "MC": 0.05, "MCD": 0.0234}


def rows(case: str = "case30_ieee", **changes) -> list[dict]:
    found = []
    for quantity, factor in (("p", 1.0), ("v", 10.0)):
        for model, mean in MEANS.items():
            row = {
                "table": "power-errors",
                "case": case,
                "sampling": "shared",
                "recipe": "tuned",
                "model": model,
                "quantity": quantity,
                "mean": mean * factor,
                "std": 0.0 if model in tables.BASELINES else mean / 4,
                "seeds": 1 if model in tables.BASELINES else 5,
                "unit": "%",
                "paper": PAPER.get(model),
            }
            found.append(row | changes)
    return found


def size(png: Path) -> tuple[int, int]:
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


class Page(HTMLParser):
    """Every tag closed in order; cells, links and texts collected."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict]] = []
        self.cells: list[list[str]] = []
        self.bold: list[str] = []
        self.seen = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.attributes.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "link"):
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells[-1][-1] += data
        if "strong" in self.open:
            self.bold.append(data)
        if not {"style", "script"} & set(self.open):
            self.seen += data


def test_digits_are_three_and_significant() -> None:
    assert [tables.digits(x) for x in (0.0234, 81.2, 99.96, 123456.0, -0.5)] == [
        "0.0234",
        "81.2",
        "100",
        "123456",
        "-0.500",
    ]
    assert tables.digits(math.nan) == "nan"


def test_markdown_has_a_table_for_each_group_with_all_figures_and_bold_for_the_best_network() -> None:
    text = tables.markdown(rows() + rows("case118_ieee"))
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## power-errors · case30_ieee · shared sampling · tuned recipe",
        "## power-errors · case118_ieee · shared sampling · tuned recipe",
    ]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == ["quantity", "unit", *MEANS, "paper M", "paper MC", "paper MCD"]
    assert lines[2] == [
        "p", "%", "8.12", "1.23", "0.912", "0.456 ± 0.11", "0.0789 ± 0.020", "**0.0234 ± 0.0059**",
        "0.500 ✓", "0.0500", "0.0234 ✓",
    ]  # fmt: skip
    assert len(lines) == 8
    assert all(len(line) == 11 for line in lines)


def test_terminal_ticks_where_our_mcd_is_no_worse_than_the_papers() -> None:
    heading, header, p, v = tables.terminal(rows()).splitlines()
    assert "case30_ieee" in heading
    assert header.split() == [*MEANS, "paper", "MCD"]
    assert p.split() == [
        "p",
        "(%)",
        "8.12",
        "1.23",
        "0.912",
        "0.456±0.11",
        "0.0789±0.020",
        "0.0234±0.0059",
        "0.0234",
        "✓",
    ]
    assert v.endswith("0.0234")  # ten times as much as the paper's: no tick
    assert "paper" not in tables.terminal(rows(paper=None))
    assert "✓" not in tables.terminal(rows(paper=None))


def test_of_accuracy_more_is_better() -> None:
    changed = [row | {"unit": None} for row in rows(quantity="accuracy")[:6]]
    text = tables.markdown(changed)
    assert "**0.456 ± 0.11**" in text
    assert "0.500 |" in text  # M is below the paper's
    assert "0.0500 ✓" in text  # MC is above it


def test_slack_parts_tables_and_a_row_stands_only_once() -> None:
    text = tables.markdown(rows(slack=0.1) + rows(slack=0.2, sampling=None))
    assert "## power-errors · case30_ieee · shared sampling · tuned recipe · slack 0.1" in text
    assert "## power-errors · case30_ieee · tuned recipe · slack 0.2" in text
    with pytest.raises(ValueError, match="two rows for p of mean"):
        tables.markdown(rows() + rows())
    with pytest.raises(ValueError, match="lacks unit, paper"):
        tables.terminal([{key: value for key, value in rows()[0].items() if key not in ("unit", "paper")}])


def test_write_gives_results_table_and_a_page_that_holds_every_row(tmp_path: Path) -> None:
    given = rows() + rows("case118_ieee", slack=0.5)
    (tmp_path / "the errors.png").write_bytes(b"drawn")
    part = Part(
        "power-errors",
        "Errors",
        given,
        [Figure("the errors.png", "Errors by model")],
        ["Sampling differs from the paper's."],
        {"labels": "4000 rows"},
    )
    page = report.write(tmp_path, "Errors", [part], {"command": "ldf reproduce power-errors --out x"}, {})
    assert page == tmp_path / "index.html"
    assert json.loads((tmp_path / "results.json").read_text()) == given
    text = (tmp_path / "table.md").read_text()
    html = page.read_text()
    seen = Page(html)
    for row in given:
        assert tables.digits(row["mean"]) in text
    table = next(i for i, line in enumerate(seen.cells) if line[:2] == ["quantity", "mean"])
    assert seen.cells[table] == ["quantity", *MEANS, "paper M", "paper MC", "paper MCD"]
    assert seen.cells[table + 1][1:] == [
        "8.12", "1.23", "0.912", "0.456 ± 0.11", "0.0789 ± 0.020", "0.0234 ± 0.0059",
        "0.500 ✓", "0.0500", "0.0234 ✓",
    ]  # fmt: skip
    assert seen.bold[-4:] == ["0.0234 ± 0.0059", "0.234 ± 0.0059"] * 2
    for words in ("Sampling differs from the paper's.", "ldf reproduce power-errors --out x", "4000 rows"):
        assert words in text
        assert words in seen.seen
    own = "ldf reproduce power-errors --case case118_ieee --sampling shared --recipe tuned --seeds 5 --out DIR"
    assert own in seen.seen, "what makes this table again"
    image = next(attributes for tag, attributes in seen.attributes if tag == "img")
    assert image == {"src": "data:image/png;base64,ZHJhd24=", "alt": "Errors by model."}
    assert "prefers-color-scheme: dark" in html
    assert not re.search(r"https?://", html)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index.html",
        "results.json",
        "run.json",
        "table.md",
        "the errors.png",
    ]
    assert report.read(tmp_path) == ("Errors", [part], {"command": "ldf reproduce power-errors --out x"}, {})
    assert report.page_of(tmp_path) == html


def test_an_answered_demand_comes_first_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "map.png").write_bytes(b"drawn")
    tables_ = {"Dispatch": [["generator", "answer MW"], ["1", "12.5"]], "Certificate": [["law", "ok"], ["ohm", "✗"]]}
    shown = Shown("One demand", "Uncertified in 2 ms", False, Figure("map.png", "The grid"), {"cost": "7 $/h"}, tables_)
    part = Part("demo", "Learning", rows(), answer=shown)
    page = report.write(tmp_path, "Demo", [part], {"command": "ldf demo"}, {}).read_text()
    order = [page.index(words) for words in ("Uncertified in 2 ms", "The grid", "12.5", "ohm", "<nav>", "At a glance")]
    assert order == sorted(order)
    assert '<span class="bad">✗</span>' in page
    assert report.read(tmp_path)[1][0].answer == shown
    with pytest.raises(ValueError, match=r"no figure 'map\.png'"):
        report.write(tmp_path / "elsewhere", "Demo", [part], {}, {})


def test_values_are_escaped(tmp_path: Path) -> None:
    nasty = '<script>alert("x")</script> & a|b'
    (tmp_path / "a.png").write_bytes(b"")
    given = [row | {"case": nasty, "quantity": nasty, "unit": nasty} for row in rows()[:6]]
    part = Part("power-errors", nasty, given, [Figure("a.png", nasty)], [nasty], {nasty: nasty}, quick=True)
    page = report.write(tmp_path, nasty, [part], {nasty: nasty}, {nasty: nasty})
    html = page.read_text()
    assert html.count("<script") == 1, "its own"
    seen = Page(html)
    assert seen.seen.count(nasty) > 12
    assert any(attributes.get("alt", "").startswith(nasty) for _, attributes in seen.attributes)
    table = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert not any("<script" in line for line in table)


def test_numbers_that_are_none_are_null(tmp_path: Path) -> None:
    given = rows()
    given[5] |= {"mean": math.nan, "std": math.inf}
    report.write(tmp_path, "t", [Part("power-errors", "t", given)], {}, {})
    read = json.loads((tmp_path / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert read[5]["mean"] is None
    assert read[5]["std"] is None
    assert read[0] == given[0]
    assert "**0.0789 ± 0.020**" in tables.markdown(read)  # MC is the best that is left


def test_a_figure_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no figure 'x\.png'"):
        report.write(tmp_path, "t", [Part("power-errors", "t", rows(), [Figure("x.png", "")])], {}, {})
    assert list(tmp_path.iterdir()) == []


def test_errors_figure_has_a_panel_for_each_group(tmp_path: Path) -> None:
    names = {"p": "$p^g$", "v": "v"}
    figures.errors_figure(rows(), tmp_path / "one.png", names)
    figures.errors_figure(rows() + rows("case118_ieee", slack=1), tmp_path / "two.png", names)
    one, two = size(tmp_path / "one.png"), size(tmp_path / "two.png")
    assert one[0] >= 600
    assert one[1] >= 400
    assert two == (2 * one[0], one[1])
    with pytest.raises(ValueError, match="no rows"):
        figures.errors_figure([], tmp_path / "none.png", names)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "changes",
    [
        {"mean": 0.0, "std": 0.0, "paper": None},
        {"mean": 0.0, "std": 0.1, "paper": 0.0},
        {"mean": None, "paper": None},
        {"unit": ""},
    ],
)
def test_errors_figure_draws_zeros_and_gaps(tmp_path: Path, changes: dict) -> None:
    some = [row | (changes if i % 2 else {}) for i, row in enumerate(rows())]
    figures.errors_figure(some + rows("case118_ieee", **changes), tmp_path / "errors.png", {})
    assert min(size(tmp_path / "errors.png")) >= 400


def test_errors_figure_draws_zeros_inside_and_the_papers_figures_hollow(tmp_path: Path, monkeypatch) -> None:
    drawn: list = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    figures.errors_figure([row | ({"mean": 0.0} if row["model"] == "MC" else {}) for row in rows()], tmp_path / "x", {})
    (axes,) = drawn[0].axes
    assert axes.get_yscale() == "log"
    bottom, top = axes.get_ylim()
    points = [
        line for line in axes.get_lines() if len(line.get_ydata()) == 1 and line.get_marker() in ("v", "^", *"PosD")
    ]
    heights = [float(line.get_ydata()[0]) for line in points]
    assert all(bottom < height < top for height in heights)
    hollow = [line for line in points if line.get_markerfacecolor() == "white"]
    assert sorted(float(line.get_ydata()[0]) for line in hollow) == sorted([*PAPER.values()] * 2)
    assert len(points) - len(hollow) == 12
    assert [text.get_text() for text in axes.texts] == ["0", "0"]


@pytest.mark.filterwarnings("error")
def test_traces_figure_has_a_panel_for_each_law_also_for_laws_that_are_kept(tmp_path: Path) -> None:
    def history(laws: str, scale: float) -> History:
        values = {"a": [1.0, 0.1, 0.01], "b": [0.5, 0.0, 0.0], "c": [0.0] * 3, "d": [math.nan] * 3}
        return History(
            [{"epoch": e + 1, **{f"nu_mean/{law}": scale * values[law][e] for law in laws}} for e in range(3)]
        )

    traces = {"M": history("ab", 1.0), "MC": history("abc", 0.5), "MCD": history("abcd", 0.1)}
    drawing.traces_figure(traces, tmp_path / "four.png", {"a": "law ν_a"})
    drawing.traces_figure({"MCD": history("a", 1.0), "peer": history("a", 2.0)}, tmp_path / "one.png")
    drawing.traces_figure({"MCD": History([{"epoch": 1, "nu_mean/a": 0.0}])}, tmp_path / "short.png")
    four, one = size(tmp_path / "four.png"), size(tmp_path / "one.png")
    assert four[0] >= 900
    assert four[1] >= 600  # two by two
    assert one[1] < four[1]
    assert size(tmp_path / "short.png") == one
    with pytest.raises(ValueError, match="no constraints"):
        drawing.traces_figure({"M": History([{"epoch": 1, "loss": 0.5}])}, tmp_path / "none.png")
