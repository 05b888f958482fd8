"""`fit.report`: the content of its page for one or several fits, and its figures."""

import importlib
import math
import os
import re
import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import dispatch, dispatch_constraints, network

import ldf
from ldf.core.doctor import Advice, Diagnosis
from ldf.core.history import History
from ldf.io.text import number
from ldf.viewing import figures
from tests.reproduce.test_report import Page

module = importlib.import_module("ldf.viewing.report")


def trained(constraints=None, epochs: int = 3, **options) -> ldf.Fit:
    """A small network trained for three epochs."""
    torch.manual_seed(0)
    constraints = dispatch_constraints() if constraints is None else constraints
    loss = torch.nn.functional.mse_loss
    return ldf.fit(network(), dispatch(128), loss=loss, constraints=constraints, epochs=epochs, **options)


@pytest.fixture(scope="module")
def fit() -> ldf.Fit:
    """A fit that satisfies capacity and violates balance."""
    return trained(dual=ldf.Ascent(step=1e-2))


@pytest.fixture
def dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the figures by a few bytes, for tests that do not check them."""
    for name in ("losses_figure", "traces_figure", "multipliers_figure"):
        monkeypatch.setattr(module, name, lambda histories, path: path.write_bytes(b"drawn"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list:
    """Collects the figures instead of saving them."""
    found: list = []
    monkeypatch.setattr(figures, "save", lambda figure, path: found.append(figure))
    yield found
    for figure in found:
        figures.pyplot().close(figure)


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def findings(page: Page) -> list[dict[str, str]]:
    """Rows of the tables of findings, keyed by column heading."""
    found: list[dict[str, str]] = []
    heads: list[str] = []
    for line in page.cells:
        if line[:2] == ["constraint", "verdict"]:
            heads = line
        elif len(line) == len(heads) and line[1][:1] in "✓✗":
            found.append(dict(zip(heads, line, strict=True)))
    return found


# ---------------------------------------------------------------- the page


def test_satisfied_constraints_are_marked_good_and_violated_ones_bad(fit: ldf.Fit, tmp_path: Path) -> None:
    path = fit.report(tmp_path / "report.html")
    assert path == tmp_path / "report.html"
    page = read(path)
    advice = {one.constraint: one for one in fit.doctor().advice}
    assert {name: one.verdict for name, one in advice.items()} == {"capacity": "never active", "balance": "too short"}
    last = fit.history.rows[-1]
    lines = {line["constraint"]: line for line in findings(page)}
    assert list(lines) == ["capacity", "balance"]
    for name, line in lines.items():
        assert line == {
            "constraint": name,
            "verdict": f"{'✓' if name == 'capacity' else '✗'} {advice[name].verdict}",
            "mean ν": number(last[f"nu_mean/{name}"]),
            "largest ν": number(last[f"nu_max/{name}"]),
            "tolerance": number(fit.lagrangian.tolerances[name]),
            "multiplier": number(last[f"lambda/{name}"]),
            "rule": repr(ldf.Ascent(step=1e-2)),
            "advice": f"{advice[name].finding} {advice[name].change}",
        }
    kinds = [attributes.get("class", "") for tag, attributes in page.attributes if tag == "td"]
    assert [kind for kind in kinds if "good" in kind or "bad" in kind] == ["text good", "text bad"]
    values = [attributes.get("data-value") for tag, attributes in page.attributes if tag == "td"]
    assert repr(last["nu_mean/balance"]) in values, "the sort key has all digits"


@pytest.mark.usefixtures("dots")
@pytest.mark.parametrize(
    ("verdict", "held"),
    [("satisfied", True), ("never active", True), ("not enforced", False), ("infeasible", False), ("stalled", False)],
)
def test_verdicts_are_marked(fit: ldf.Fit, tmp_path: Path, monkeypatch, verdict: str, held: bool) -> None:
    given = Diagnosis((Advice("capacity", verdict, "Words.", ""),), ("beware of <this>",))
    monkeypatch.setattr(ldf.Fit, "doctor", lambda self: given)
    path = fit.report(tmp_path / "a.html")
    (line,) = findings(read(path))
    assert line["verdict"] == f"{'✓' if held else '✗'} {verdict}"
    assert line["advice"] == "Words."
    kind = "good" if held else "bad"
    assert re.findall(r'<td class="text (good|bad)">', path.read_text()) == [kind]
    assert '<p class="bad">Warning: beware of &lt;this&gt;</p>' in path.read_text()


@pytest.mark.usefixtures("dots")
def test_held_out_violations_are_shown_if_available(fit: ldf.Fit, tmp_path: Path) -> None:
    validated = trained(validation=0.25)
    lines = findings(read(validated.report(tmp_path / "a.html")))
    last = validated.history.rows[-1]
    assert [line["held-out mean ν"] for line in lines] == [
        number(last["val_nu_mean/capacity"]),
        number(last["val_nu_mean/balance"]),
    ]
    assert all("held-out mean ν" not in line for line in findings(read(fit.report(tmp_path / "b.html"))))


@pytest.mark.usefixtures("dots")
def test_names_title_and_labels_are_escaped(tmp_path: Path) -> None:
    nasty = '<script>alert("x")</script> & more'
    named = ldf.equality(nasty, lambda y, batch: y.sum(1, keepdim=True) - 1)
    one = replace(trained([named]), label={nasty: nasty})
    path = ldf.report({nasty: one, "other": trained()}, tmp_path / "a.html", title=nasty)
    html = path.read_text()
    page = Page(html)
    assert html.count("<script") == 1, "the script of the page"
    assert html.count("alert(") == html.count("alert(&quot;x&quot;)")
    assert f"<title>{escape(nasty)}</title>" in html
    assert page.seen.count(nasty) >= 8, "title, heading, training, label, doctor, constraint, columns, details"
    assert any(line["constraint"] == nasty for line in findings(page))


@pytest.mark.usefixtures("dots")
def test_several_fits_are_on_one_page(fit: ldf.Fit, tmp_path: Path) -> None:
    other = replace(trained(validation=0.25, epochs=2), label={"seed": 7}, stopped_early=True)
    page = read(ldf.report({"one": fit, "two": other}, tmp_path / "a.html", title="Both"))
    assert [line["constraint"] for line in findings(page)] == ["capacity", "balance"] * 2
    for words in ("Doctor's findings: one", "Doctor's findings: two", "Table of epochs: two"):
        assert words in page.seen
    weights = sum(p.numel() for p in other.model.parameters())
    for facts in (
        rf"two: training\s*2 epochs, stopped early, weights of epoch 2, \d+\.\d s, {weights} weights",
        r"one: training\s*3 epochs, weights of epoch 3",
        r"two: seed\s*7",
    ):
        assert re.search(facts, page.seen)
    alone = read(fit.report(tmp_path / "b.html", title="Alone"))
    assert "Doctor's findings" in alone.seen
    assert "Doctor's findings:" not in alone.seen
    for shown in (page, alone):
        assert [a["alt"] for tag, a in shown.attributes if tag == "img"] == [
            "Loss; dashed: on held-out rows", "Mean violation ν of each constraint", "Multipliers",
        ]  # fmt: skip


@pytest.mark.usefixtures("dots")
def test_conflicting_constraints_are_listed(tmp_path: Path) -> None:
    fit = replace(trained(), conflicts={("capacity", "balance"): -0.256})
    page = read(fit.report(tmp_path / "a.html"))
    assert ["one", "other", "cosine"] in page.cells
    assert ["capacity", "balance", "-0.26"] in page.cells
    without = read(replace(fit, conflicts={}).report(tmp_path / "b.html"))
    assert ["one", "other", "cosine"] not in without.cells


@pytest.mark.usefixtures("dots")
def test_a_fit_without_constraints_shows_only_its_loss(tmp_path: Path) -> None:
    page = read(trained([]).report(tmp_path / "a.htm"))
    assert "There are no constraints." in page.seen
    assert [a["alt"] for tag, a in page.attributes if tag == "img"] == ["Loss; dashed: on held-out rows"]
    assert findings(page) == []


@pytest.mark.usefixtures("dots")
def test_of_many_epochs_a_selection_and_the_last_are_shown(fit: ldf.Fit, tmp_path: Path) -> None:
    rows = [{**fit.history.rows[i % 3], "epoch": i + 1} for i in range(60)]
    rows[0] = {name: value for name, value in rows[0].items() if name != "loss"} | {"nu_max/capacity": math.inf}
    page = read(replace(fit, history=History(rows)).report(tmp_path / "a.html"))
    head = next(i for i, line in enumerate(page.cells) if line[0] == "epoch")
    shown = [dict(zip(page.cells[head], line, strict=True)) for line in page.cells[head + 1 :]]
    assert [line["epoch"] for line in shown] == [str(e) for e in (*range(1, 61, 3), 60)]
    assert shown[0]["loss"] == "", "a value that is not finite is left empty"
    assert shown[0]["nu_max/capacity"] == ""
    assert shown[1]["loss"] == number(rows[3]["loss"])
    whole = read(fit.report(tmp_path / "b.html"))
    assert "All epochs" in whole.seen
    assert [line[0] for line in whole.cells[-3:]] == ["1", "2", "3"]


# ---------------------------------------------------------------- rejected input


@pytest.mark.parametrize("name", ["report", "report.txt", "report.html.gz", ""])
def test_a_page_must_be_an_html_file(fit: ldf.Fit, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"a report must be an \.html file such as report\.html, got "):
        fit.report(tmp_path / name)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ValueError, match=r"got '.*folder\.html'"):
        fit.report(tmp_path / "folder.html")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder.html"]


def test_there_must_be_a_fit_and_an_epoch(fit: ldf.Fit, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no fit to report on"):
        ldf.report({}, tmp_path / "a.html")
    empty = replace(fit, history=History())
    with pytest.raises(ValueError, match="without any epochs"):
        empty.report(tmp_path / "a.html")
    with pytest.raises(ValueError, match="without any epochs"):
        ldf.report({"one": fit, "two": empty}, tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_error_names_what_to_install(fit: ldf.Fit, tmp_path: Path, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"figures need matplotlib: pip install 'ldf\[cli\]'"):
        fit.report(tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("dots")
def test_a_page_is_written_atomically(fit: ldf.Fit, tmp_path: Path, monkeypatch) -> None:
    def fails(*given: object) -> None:
        raise OSError("no room")

    path = tmp_path / "deep" / "a.html"
    fit.report(path)
    before = path.read_bytes()
    for where, name in ((module, "multipliers_figure"), (os, "replace")):
        with monkeypatch.context() as changed:
            changed.setattr(where, name, fails)
            with pytest.raises(OSError, match="no room"):
                fit.report(path, title="another")
        assert path.read_bytes() == before
        assert [one.name for one in path.parent.iterdir()] == ["a.html"]
    fit.report(path, title="another")
    assert "<h1>another</h1>" in path.read_text()


# ---------------------------------------------------------------- figures


def history(**multipliers: list[float]) -> History:
    """A history with one epoch per value."""
    length = len(next(iter(multipliers.values())))
    return History(
        {"epoch": e + 1, **{f"{part}/{n}": v[e] for n, v in multipliers.items() for part in ("nu_mean", "lambda")}}
        for e in range(length)
    )


def lines(axes) -> list[list[float]]:
    return [[float(y) for y in line.get_ydata()] for line in axes.get_lines()]


def legend(figure) -> list[str]:
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def panels(found: list) -> list[SimpleNamespace]:
    """Contents of each panel of the last figure."""
    return [
        SimpleNamespace(
            scale=axes.get_yscale(), lines=lines(axes), title=axes.get_title(), texts=[t.get_text() for t in axes.texts]
        )
        for axes in found[-1].axes
    ]


@pytest.mark.filterwarnings("error")
def test_multipliers_are_drawn_once_nonzero_and_may_be_negative(drawn: list) -> None:
    given = {
        "rising": history(a=[0.0, 0.1, 10.0], b=[0.0, 0.0, 2.0]),
        "signed": history(a=[0.0, -0.5, 1.0]),
        "still": history(b=[0.0, 0.0, 0.0]),
        "partly": history(a=[math.nan, 0.0, 3.0]),
    }
    figures.multipliers_figure(given, Path("a.png"), {"a": "ν1 a"})
    rising, signed, still, partly = panels(drawn)
    assert [panel.title for panel in (rising, signed, still, partly)] == list(given)
    assert (rising.scale, partly.scale) == ("log", "log")
    assert [[str(y) for y in line] for line in rising.lines] == [["nan", "0.1", "10.0"], ["nan", "nan", "2.0"]]
    assert (signed.scale, signed.lines) == ("linear", [[0.0, -0.5, 1.0]])
    assert (still.scale, still.lines, still.texts) == ("linear", [[0.0] * 3], ["all multipliers are 0"])
    assert rising.texts == signed.texts == []
    assert legend(drawn[0]) == ["ν1 a", "b"]
    looks = [(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].get_lines()]
    assert len(set(looks)) == 2
    assert drawn[0].axes[2].get_lines()[0].get_color() == looks[1][0], "a constraint keeps its colour"
    assert len({axes.get_position().y0 > 0.5 for axes in drawn[0].axes}) == 2, "four panels take more than one row"


def test_one_history_has_one_panel_and_many_constraints_have_distinct_styles(drawn: list) -> None:
    many = {f"c{i}": [1.0 + i, 2.0 + i] for i in range(20)}
    figures.multipliers_figure({"only": history(**many)}, Path("a.png"))
    (panel,) = panels(drawn)
    assert (panel.title, panel.lines, panel.scale) == ("", list(many.values()), "log")
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].get_lines()}
    assert len(looks) == 20
    assert legend(drawn[0]) == list(many)
    with pytest.raises(ValueError, match="these histories have no constraints"):
        figures.multipliers_figure({"only": History([{"epoch": 1, "loss": 1.0}])}, Path("a.png"))


def test_negative_losses_are_drawn_on_a_linear_scale(drawn: list) -> None:
    def losses(*values: float, **more: float) -> History:
        return History({"epoch": e + 1, "loss": value, **more} for e, value in enumerate(values))

    figures.losses_figure({"one": losses(1.0, 0.1), "two": losses(2.0, 0.5, val_loss=0.7)}, Path("a.png"))
    figures.losses_figure({"one": losses(1.0, -0.1)}, Path("a.png"))
    figures.losses_figure({"one": losses(1.0, 0.5, val_loss=-0.2)}, Path("a.png"))
    figures.losses_figure({"one": losses(1.0, 0.0)}, Path("a.png"))
    assert [figure.axes[0].get_yscale() for figure in drawn] == ["log", "linear", "linear", "linear"]
    axes = drawn[0].axes[0]
    assert lines(axes) == [[1.0, 0.1], [2.0, 0.5], [0.7, 0.7]]
    assert [line.get_linestyle() for line in axes.get_lines()] == ["-", "-", "--"]
    one, two, held_out = (line.get_color() for line in axes.get_lines())
    assert one != two == held_out
    assert legend(drawn[0]) == ["one", "two", "two, held out"]
    assert lines(drawn[1].axes[0]) == [[1.0, -0.1]]
