"""Write the results of the committed run into the README and the documentation, and draw the README's plot.

    python tools/results.py          writes README.md and docs/results.md between their marks, and results/summary.png
    python tools/results.py --check  exits with 1 if one of them does not show results/

The values come from results/results.json (`ldf reproduce all`) and results/benchmarks.json (`tools/benchmarks.py`).
mkdocs uses this file as a hook that adds the plots and the page of the run to the site.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ldf.core.certificate import TOLERANCE
from ldf.reproduce import report, targets
from ldf.reproduce.glance import COLUMNS, TRAINED, Line, glance, lowest
from ldf.reproduce.tables import Section, digits, sections_of
from ldf.viewing.figures import COLOURS, grid, save

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PICTURE = RESULTS / "summary.png"
GRID, CASE = "case118_ieee", "adult-sex"
SIZE = "1000"
TABLES = {
    "power-errors": "Errors on power networks",
    "gas-errors": "Errors on gas networks",
    "violations": "Distance moved by repair",
    "transprecision": "Reduced precision, by number of training rows",
    "fairness": "Fair classifiers",
    "relaxed-fairness": "Fair classifiers with slack",
}
"""The paper's six tables, in its order."""
GROUP_BLIND = ("OxonFair", "Cooper", "Zafar")
"""Peers that train or adjust the same network, and do not need the attribute at prediction."""


@dataclass(frozen=True)
class Bar:
    """One result: a value and its text."""

    value: float
    text: str


@dataclass(frozen=True)
class Row:
    """One row of the first table: results by column, and the target that judges the row."""

    label: str
    bars: Mapping[str, Bar]
    target: str = ""

    def __str__(self) -> str:
        cells = [self.bars[column].text if column in self.bars else "–" for column in COLUMNS]
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

    def grouped(self) -> dict[tuple[str, str | None, str | None], list[Line]]:
        """The lines at a glance by table, sampling and recipe."""
        found: dict[tuple[str, str | None, str | None], list[Line]] = {}
        for key, line in self.lines.items():
            found.setdefault((key[0], key[2], key[3]), []).append(line)
        return found

    def answers(self, case: str, sampling: str) -> Callable[[str], float]:
        """A function of a key of `benchmarks/answers.py` for one case and sampling; NaN if it was not measured."""
        values = self.values("answers")
        return lambda key: values.get(f"{case}_{sampling}_{key}", math.nan)


def compact(section: Section, quantity: str, model: str, name: str = "") -> Bar:
    """A result in three significant digits, its spread in one."""
    mean, std = section.mean(quantity, model), section.std(quantity, model)
    spread = f" ± {digits(std, 1)}" if std > 0 else ""
    return Bar(mean, f"{digits(mean)}{spread}{name and f' {name}'}".replace("-", "−"))


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
            {**_named(violated), "repaired": Bar(TOLERANCE, share), "best peer": Bar(solved, f"≤ {solved:.0e} IPOPT")},
        ),
        Row(
            "· cost above the optimum (%)",
            {**_named(cost), "repaired": Bar(answer("gap"), digits(answer("gap"))), "best peer": Bar(0.0, "0 IPOPT")},
        ),
        Row(
            "· time per certified answer (ms)",
            {
                "repaired": Bar(answer("ms"), digits(answer("ms"), 2)),
                "best peer": Bar(answer("cold_ms"), f"{digits(answer('cold_ms'), 2)} IPOPT"),
            },
        ),
        Row(
            "· error of p (%): **duality does not help**",
            _named({model: compact(errors, "p", model) for model in (*TRAINED, "linear")}),
            target,
        ),
    ]


def _named(bars: Mapping[str, Bar]) -> dict[str, Bar]:
    """Bars by column, with the baseline named."""
    found = {model: bars[model] for model in TRAINED}
    return found | {"best baseline": Bar(bars["linear"].value, f"{bars['linear'].text} linear")}


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
        bars["best peer"] = Bar(peer, f"{digits(peer)} {best}")
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
    lines += paragraph(
        "¹ Largest mean ν of any constraint; repaired and IPOPT: largest ν of any answer. ² The paper's recipe; the",
        f"tuned one has no MC. From `{facts['command']}` ({facts['date'][:10]}) and, for times and peers,",
        f"`{bench['answers']['command'].split(' --')[0]}` and `{bench['fairness']['command'].split(' --')[0]}`",
        f"({bench['answers']['date'][:10]}), on {facts['machine']}.",
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
        values = [100 * (1 - row.bars[c].value) if last else abs(row.bars[c].value) for c in columns]
        panel.bar(range(5), values, color=colours, width=0.72)
        for at, value in enumerate(values):
            text = f"{value:.1f}" if last else f"{value:.2g}"
            text = f"≤ {value:.0e}" if place == 0 and at > 2 else text
            panel.annotate(text, (at, value), (0, 2), textcoords="offset points", ha="center", fontsize=7.5)
        peer = row.bars["best peer"].text.split(" ")[-1]
        took = {at: f"\n{digits(rows[2].bars[columns[at]].value, 2)} ms" if place == 3 else "" for at in (3, 4)}
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


def answers(results: Results) -> str:
    """The table of certified answers."""
    heads = (
        "network", "demands", "answer", "IPOPT", "times as fast", "alternating", "certified without the solver",
        "gap, mean / worst", "answers per second, batch", "optimal",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    keys = results.values("answers")
    for found in dict.fromkeys(re.findall(r"(\S+)_(shared|independent)_ratio\b", "\n".join(keys))):
        at = results.answers(*found)
        gap = f"{digits(at('gap'), 2)} / {digits(at('gap_worst'), 2)} %" if not math.isnan(at("gap")) else ""
        cells = [
            *found, f"{digits(at('ms'), 2)} ms", f"{digits(at('cold_ms'), 3)} ms", digits(at("ratio"), 2),
            digits(at("ratio_alternating"), 2), f"{100 * at('certified'):.3g} %", gap, digits(at("batch"), 2),
            digits(at("optimal"), 2),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    recheck = max(value for key, value in keys.items() if key.endswith("_recheck"))
    pypower = max(value for key, value in keys.items() if key.endswith("_pypower"))
    checked = paragraph(
        results.source("answers"),
        f"The certified answers were checked again with the torch constraints: the largest ν is {digits(recheck)}.",
        "For ten answers per power network, PYPOWER's power flow of the answered dispatch differs by at most",
        f"{digits(pypower, 2)} p.u. in any voltage.",
    )
    return "\n".join([*lines, "", *checked])


def prices(results: Results) -> str:
    """The table of errors of predicted prices."""
    heads = ("network", "demands", "predicted by the network", "linear", "previous", "mean")
    lines = [f"| {' | '.join(heads)} |", "|---|---|---:|---:|---:|---:|"]
    keys = "\n".join(results.values("answers"))
    for found in dict.fromkeys(re.findall(r"(case\S+)_(shared|independent)_prices\b", keys)):
        errors = map(results.answers(*found), ("prices", "prices_linear", "prices_previous", "prices_mean"))
        cells = ["" if math.isnan(error) else f"{digits(error, 2)} %" for error in errors]
        lines.append(f"| {' | '.join([*found, *cells])} |")
    return "\n".join(lines) + "\n"


def duality(results: Results) -> str:
    """How often M, MC and MCD are lowest, by table and recipe."""
    heads = ("table", "demands", "recipe", "lines", *(f"{model} lowest" for model in TRAINED))
    lines = [f"| {' | '.join(heads)} |", f"|---|---|---|{'---:|' * 4}"]
    for (table, sampling, recipe), own in results.grouped().items():
        if table in targets.WORDS:
            first = [min(TRAINED, key=lambda model, line=line: line.entries[model].value) for line in own]
            counts = [str(first.count(model)) for model in TRAINED]
            lines.append(f"| {targets.WORDS[table]} | {sampling} | {recipe} | {len(own)} | {' | '.join(counts)} |")
    every = lowest(results.parts)
    totals = [f"**{count}**" for count in (sum(every.values()), *(every[model] for model in TRAINED))]
    return "\n".join([*lines, f"| **all** | | | {' | '.join(totals)} |"]) + "\n"


def goals(results: Results) -> str:
    """The targets, in words."""
    return "\n".join(f"- {line}" for line in targets.summary(results.parts)) + "\n"


def tables(results: Results) -> str:
    """Every quantity that the paper reports of M_C^D, with all models side by side."""
    lines: list[str] = []
    for name, words in TABLES.items():
        lines += [f"### {words}", ""]
        for (table, sampling, recipe), own in results.grouped().items():
            if table == name:
                kind = f", {sampling} demands" if sampling in ("shared", "independent") else ""
                lines += [f"**{str(recipe).capitalize()} recipe{kind}**", "", *_markdown(own), ""]
    return "\n".join(lines)


def _markdown(lines: Sequence[Line]) -> list[str]:
    used = [column for column in COLUMNS if any(column in line.entries for line in lines)]
    heads = ["case", "quantity", *used, "paper's M_C^D", "target"]
    found = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(used) + 1)}---|"]
    for line in lines:
        cells = [line.entries[column].text if column in line.entries else "" for column in used]
        paper = "" if math.isnan(line.paper) else digits(line.paper)
        shown = [line.case, line.quantity, *cells, paper, line.target]
        found.append(f"| {' | '.join(cell.replace(' ', chr(160)) for cell in shown)} |")
    return found


def fair_peers(results: Results) -> str:
    """Accuracy / |gap| of our classifiers and of their peers."""
    values = results.values("fairness")
    variants = list(dict.fromkeys(re.findall(r"^(\S+?)_MCD_accuracy$", "\n".join(values), re.M)))
    models = list(dict.fromkeys(re.findall(rf"^{variants[0]}_(.+)_accuracy$", "\n".join(values), re.M)))
    lines = [f"| | {' | '.join(variants)} |", f"|---|{'---:|' * len(variants)}"]
    for model in models:
        cells = [f"{values[f'{v}_{model}_accuracy']:.4f} / {values[f'{v}_{model}_dt']:.4f}" for v in variants]
        lines.append(f"| {f'**{model}**' if model.endswith('MCD') else model} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *paragraph(results.source("fairness"))])


STEPS = {
    "plain": ("plain PyTorch", "no constraints"),
    "degrees": ("the six functions alone", "evaluated and differentiated, not enforced"),
    "penalty": ("penalties written by hand", "stacked, λ = 1, no dual"),
    "ldf_eager": ("**ldf**, in your own loop", "`Lagrangian`, `Ascent(1e-2)`"),
    "ldf_auto": ("**ldf**, automatic rule", "`Lagrangian`, `Balanced()`"),
    "humancompatible": ("humancompatible-train", "one stacked constraint"),
    "cooper": ("Cooper", "one stacked constraint"),
    "ldf_compiled": ("**ldf**, compiled step", "forward, backward and Adam as one graph"),
    "plain_compiled": ("plain PyTorch, compiled", "no constraints"),
    "ldf_fit": ("**ldf.fit**", "with fused Adam"),
    "ldf_fit_compiled": ("**ldf.fit**, `compile=True`", ""),
    "ldf_many_per_model": ("**ldf.fit_many**, 8 models", "per model"),
}


def speed(results: Results) -> str:
    """What one training step costs, as a ratio to a plain PyTorch step."""
    values = results.values("step")
    lines = ["| | ratio | |", "|---|---:|---|"]
    lines += [f"| {name} | {values[key]:.2f} | {words} |" for key, (name, words) in STEPS.items() if values.get(key)]
    return "\n".join([*lines, "", *paragraph(results.source("step"))])


BLOCKS: dict[str, dict[str, Callable[[Results], str]]] = {
    "README.md": {"results": first_screen},
    "docs/results.md": {
        "answers": answers, "prices": prices, "duality": duality, "targets": goals, "tables": tables,
        "peers": fair_peers, "speed": speed,
    },
}  # fmt: skip
"""By file, the generated blocks: `<!-- --8<-- [start:name] -->` to `<!-- --8<-- [end:name] -->`."""


def filled(text: str, name: str, made: str) -> str:
    """A text with the block of this name replaced."""
    marks = re.compile(rf"(<!-- --8<-- \[start:{name}\] -->\n).*?(<!-- --8<-- \[end:{name}\] -->)", re.S)
    if not marks.search(text):
        raise ValueError(f"no marks [start:{name}] and [end:{name}]")
    return marks.sub(lambda found: found[1] + made + found[2], text)


def pages(results: Results) -> dict[Path, str]:
    """The files with generated blocks, as they should be."""
    found = {}
    for name, blocks in BLOCKS.items():
        text = (ROOT / name).read_text()
        for block, make in blocks.items():
            text = filled(text, block, make(results))
        found[ROOT / name] = text
    return found


def on_files(files: Any, config: Any) -> Any:
    """The mkdocs hook: the plots of the run under results/, its page as report/index.html."""
    from mkdocs.structure.files import File

    for plot in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, f"results/{plot.name}", abs_src_path=str(plot)))
    files.append(File.generated(config, "results/table.md", content=(RESULTS / "table.md").read_text()))
    page = report.page_of(RESULTS).replace('href="table.md"', 'href="../results/table.html"')
    files.append(File.generated(config, "report/index.html", content=page))
    files.append(File.generated(config, "report/results.json", content=(RESULTS / "results.json").read_text()))
    return files


def main() -> None:
    """Write the generated blocks and the plot, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something is out of date")
    check = parser.parse_args().check
    results = Results(RESULTS)
    for path, text in pages(results).items():
        if check and path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} does not show results/: run python tools/results.py")
        if not check:
            path.write_text(text)
    if check and shown_values(PICTURE) != fingerprint(results):
        sys.exit(f"{PICTURE.relative_to(ROOT)} does not show results/: run python tools/results.py")
    if not check:
        picture(results, PICTURE)


def shown_values(path: Path) -> str:
    """The fingerprint of the values that a plot shows."""
    from PIL import Image

    return str(Image.open(path).info.get("values", ""))


if __name__ == "__main__":
    main()
