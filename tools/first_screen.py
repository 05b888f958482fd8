"""The first screen: the README's table and plot, from the committed run and the committed benchmarks."""

from __future__ import annotations

import hashlib
import json
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ldf.core.certificate import TOLERANCE
from ldf.reproduce import report, targets
from ldf.reproduce.glance import COLUMNS, TRAINED, Entry, glance, lowest
from ldf.reproduce.tables import Section, digits, sections_of
from ldf.viewing.figures import COLOURS, grid, save

GRID, CASE, SIZE = "case118_ieee", "adult-sex", "1000"
"""The power network, the variant of Adult, and the number of training configurations that are shown."""
GROUP_BLIND = ("OxonFair", "Cooper", "Zafar")
"""Peers that train or adjust the same network, and do not need the attribute at prediction."""


@dataclass(frozen=True)
class Row:
    """One row of the first table: results by column, and the target that judges the row."""

    label: str
    entries: Mapping[str, Entry]
    target: str = ""

    def __str__(self) -> str:
        cells = [self.entries[column].text if column in self.entries else "–" for column in COLUMNS]
        return f"| {' | '.join([self.label, *cells, self.target])} |"


class Results:
    """The committed run and the committed benchmarks."""

    def __init__(self, folder: Path) -> None:
        _, self.parts, self.facts, missing = report.read(folder)
        if missing:
            raise ValueError(f"{folder} is not a complete run: {', '.join(missing)} is missing")
        self.benchmarks: dict[str, dict[str, Any]] = json.loads((folder / "benchmarks.json").read_text())
        self.sections = {section.key: section for part in self.parts for section in sections_of(part.rows)}
        self.lines = {line.key: line for line in glance(self.parts)}

    def section(self, table: str, case: str, sampling: str | None, recipe: str = "tuned") -> Section:
        """The rows of one table."""
        return self.sections[table, case, sampling, recipe, None]

    def values(self, benchmark: str) -> dict[str, float]:
        """The flat object of a benchmark."""
        found: dict[str, float] = self.benchmarks[benchmark]["values"]
        return found

    def source(self, benchmark: str) -> str:
        """Where the values of a benchmark come from."""
        about = self.benchmarks[benchmark]
        return f"From `{about['command']}` ({about['date'][:10]}, {about['machine']})."

    def answers(self, case: str, sampling: str) -> Callable[[str], float]:
        """A function of a key of `benchmarks/answers.py` for one case and sampling; NaN if it was not measured."""
        values = self.values("answers-gas") | self.values("answers")
        return lambda key: values.get(f"{case}_{sampling}_{key}", math.nan)


def compact(section: Section, quantity: str, model: str, name: str = "") -> Entry:
    """A result in three significant digits, its spread in one."""
    mean, std = section.mean(quantity, model), section.std(quantity, model)
    spread = f" ± {digits(std, 1)}" if std > 0 else ""
    return Entry(mean, f"{digits(mean)}{spread}{name and f' {name}'}".replace("-", "−"))


def first_rows(results: Results) -> list[Row]:
    """The rows of the first table: power, reduced precision, fairness; violation and cost of each."""
    return [*_power(results), *_precision(results), *_fairness(results)]


def _power(results: Results) -> list[Row]:
    laws, answer = results.section("power-laws", GRID, "independent"), results.answers(GRID, "independent")
    errors, judged = results.section("power-errors", GRID, "independent"), ("power-errors", GRID, "independent")
    target = results.lines[*judged, "tuned", None, "p"].target.replace("0 ", "0 (the paper's) ")
    # flow_p and flow_q compare with labels; they are not constraints on a state
    limits = [law for law in laws.quantities if law != "cost gap" and not law.startswith("flow")]
    worst = {model: max(limits, key=lambda law: laws.mean(law, model)) for model in (*TRAINED, "linear")}
    violated = {model: compact(laws, law, model) for model, law in worst.items()}
    cost = {model: compact(laws, "cost gap", model) for model in (*TRAINED, "linear")}
    share = f"≤ {TOLERANCE:g} in {100 * answer('certified'):.3g} %"
    solved = answer("solver")
    label = "AC-OPF, 118 buses, independent loads"
    return [
        Row(
            f"{label}: violation (p.u.)¹",
            {
                **_named(violated),
                "repaired": Entry(TOLERANCE, share),
                "best peer": Entry(solved, f"≤ {solved:.0e} IPOPT"),
            },
        ),
        Row(
            "· cost above the optimum (%)",
            {
                **_named(cost),
                "repaired": Entry(answer("gap"), digits(answer("gap"))),
                "best peer": Entry(0.0, "0 IPOPT"),
            },
        ),
        Row(
            "· time per certified answer (ms)",
            {
                "repaired": Entry(answer("ms"), digits(answer("ms"), 2)),
                "best baseline": Entry(answer("own_ms"), f"{digits(answer('own_ms'), 2)} ldf's solver"),
                "best peer": Entry(answer("cold_ms"), f"{digits(answer('cold_ms'), 2)} IPOPT"),
            },
        ),
        Row(
            "· error of p (%): **duality does not help**",
            _named({model: compact(errors, "p", model) for model in (*TRAINED, "linear")}),
            target,
        ),
    ]


def _named(bars: Mapping[str, Entry]) -> dict[str, Entry]:
    """Bars by column, with the baseline named."""
    found = {model: bars[model] for model in TRAINED}
    return found | {"best baseline": Entry(bars["linear"].value, f"{bars['linear'].text} linear")}


def _precision(results: Results) -> list[Row]:
    section = results.section("transprecision", SIZE, "random")
    rows = []
    for quantity, words in (("VC", "violated pairs"), ("MAE y", "mean absolute error of y")):
        line = results.lines["transprecision", SIZE, "random", "tuned", None, quantity]
        label = f"Reduced precision, {SIZE} configurations: {words}" if not rows else f"· {words}"
        bars = {model: compact(section, quantity, model) for model in TRAINED}
        bars["repaired"] = compact(section, quantity, "MCD repaired")
        bars["best baseline"] = compact(section, quantity, "linear", "linear")
        bars["best peer"] = compact(section, quantity, "LightGBM", "LightGBM")
        rows.append(Row(label, bars, line.target.replace("MCD repaired", "repaired")))
    return rows


def _fairness(results: Results) -> list[Row]:
    section, peers = results.section("fairness", CASE, None), results.values("fairness")
    literal = results.section("fairness", CASE, None, "paper")
    judged = results.lines["fairness", CASE, None, "tuned", None, "signed DT"]
    close = [peer for peer in GROUP_BLIND if peers[f"{CASE}_{peer}_dt"] < targets.GAP]
    best = max(close, key=lambda peer: peers[f"{CASE}_{peer}_accuracy"])
    rows = []
    for quantity, words in (("signed DT", "rate gap"), ("accuracy", "accuracy")):
        shown = {"M": "M", "MCD": "MCD", "repaired": "M + plug-in"}
        bars = {column: compact(section, quantity, model) for column, model in shown.items()}
        bars["MC"] = compact(literal, quantity, "MC", "²")  # the tuned recipe has no MC
        bars["best baseline"] = compact(section, quantity, "linear", "linear")
        peer = peers[f"{CASE}_{best}_{'dt' if quantity == 'signed DT' else 'accuracy'}"]
        bars["best peer"] = Entry(peer, f"{digits(peer)} {best}")
        label = f"Adult, parity by sex, attribute not used: {words}" if not rows else f"· {words}"
        network = [check for check in judged.checks if check.model == "MCD"]
        target = "; ".join(f"MCD within ±{check.bound:g} {check.mark}" for check in network)
        rows.append(Row(label, bars, target if quantity == "signed DT" else ""))
    return rows


def first_screen(results: Results) -> str:
    """The README's table and how it was made."""
    facts, bench, first = results.facts, results.benchmarks, lowest(results.parts)
    lines = [f"| | {' | '.join(COLUMNS)} | target |", f"|---|{'---:|' * len(COLUMNS)}---|"]
    lines += [*map(str, first_rows(results)), ""]
    lines += paragraph(
        "M has no constraints, MC has λ = 1, MCD has λ by dual ascent. On networks with plenty of labels M is hard to",
        f"beat: of {sum(first.values())} lines on power and gas networks, M is lowest in {first['M']},",
        f"MC in {first['MC']}, MCD in {first['MCD']}. Duality helps where labels contradict the constraint (fairness),",
        "and a little on monotonicity; repair makes answers feasible everywhere. Mean ± standard deviation over 5",
        "seeds, 10 training sets or 5 folds, on test rows; – means not applicable.",
    )
    again = f"; {facts['run again'].removesuffix(' UTC')[:-6]}" if "run again" in facts else ""
    lines += paragraph(
        "¹ Largest mean ν of any constraint; repaired (`ldf predict`, one network) and IPOPT: largest ν of any answer.",
        f"² The paper's recipe; the tuned one has no MC. From `{facts['command']}` ({facts['date'][:10]}{again})",
        f"and, for peers, `{bench['fairness']['command'].split(' --')[0]}` ({bench['fairness']['date'][:10]}), on",
        f"{facts['machine']}; times and answers from `{bench['answers']['command'].split(' --')[0]}`",
        f"({bench['answers']['date'][:10]}), {bench['answers']['machine'].split(',')[0]}.",
    )
    return "\n".join(lines[:-1]) + "\n"


def paragraph(*parts: str) -> list[str]:
    """Text as a paragraph of Markdown, wrapped, with an empty line after it."""
    return [*textwrap.wrap(" ".join(parts), 150, break_on_hyphens=False, break_long_words=False), ""]


def picture(results: Results, path: Path) -> None:
    """Draw what M, MC, MCD, the repaired answer and the best peer violate (top) and cost (bottom)."""
    rows = first_rows(results)
    columns = ("M", "MC", "MCD", "repaired", "best peer")
    colours = [COLOURS["M"], COLOURS["MC"], COLOURS["MCD"], COLOURS["MCD repaired"], COLOURS["LightGBM"]]
    panels = [
        (rows[0], "AC optimal power flow, 118 buses", "violation ν (p.u.)"),
        (rows[4], "Reduced precision", "violated pairs"),
        (rows[6], "Adult, parity by sex", "gap of positive rates"),
        (rows[1], "", "cost above the optimum (%)"),
        (rows[5], "", "mean absolute error"),
        (rows[7], "", "error rate (%)"),
    ]
    figure, axes = grid(6, 3.9, 2.55, columns=3)
    for place, ((row, title, label), panel) in enumerate(zip(panels, axes, strict=True)):
        last = place == 5
        values = [100 * (1 - row.entries[c].value) if last else abs(row.entries[c].value) for c in columns]
        panel.bar(range(5), values, color=colours, width=0.72)
        for at, value in enumerate(values):
            text = f"{value:.1f}" if last else f"{value:.2g}"
            text = f"≤ {value:.0e}" if place == 0 and at > 2 else text
            panel.annotate(text, (at, value), (0, 2), textcoords="offset points", ha="center", fontsize=7.5)
        peer = row.entries["best peer"].text.split(" ")[-1]
        took = {at: f"\n{digits(rows[2].entries[columns[at]].value, 2)} ms" if place == 3 else "" for at in (3, 4)}
        names = ["M", "MC*" if place in (2, 5) else "MC", "MCD", f"repaired{took[3]}", f"{peer}{took[4]}"]
        panel.set_xticks(range(5), names, fontsize=8)
        panel.tick_params(axis="x", length=0)
        panel.tick_params(axis="y", labelsize=7)
        panel.set_ylabel(label, fontsize=8)
        panel.set_title(title, fontsize=10)
        panel.margins(y=0.16)
    axes[5].set_xlabel("* the paper's recipe", fontsize=7, loc="left")
    save(figure, path, {"values": fingerprint(results)})


def fingerprint(results: Results) -> str:
    """Identifies the values that the plot shows."""
    return hashlib.sha256("\n".join(map(str, first_rows(results))).encode()).hexdigest()


def shown_values(path: Path) -> str:
    """The fingerprint of the values that a plot shows."""
    from PIL import Image

    return str(Image.open(path).info.get("values", ""))
