"""Write the results of the committed run into the README and the documentation, and draw the README's plots.

    python tools/results.py          writes README.md and docs/ between their marks, and two plots into results/
    python tools/results.py --check  exits with 1 if one of them does not show results/

The values come from results/results.json (`ldf reproduce all`) and results/benchmarks.json (`tools/benchmarks.py`).
mkdocs uses this file as a hook that adds the plots and the page of the run to the site.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path

from first_screen import GRID, Results, fingerprint, first_screen, paragraph, picture, shown_values

from ldf.reproduce import report, targets
from ldf.reproduce.glance import COLUMNS, TRAINED, Line, grouped, lowest
from ldf.reproduce.tables import digits

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PICTURE, SCORES = RESULTS / "summary.png", RESULTS / "problems.png"
VARIANTS = {"adult-sex": "Adult by sex", "default-sex": "Default by sex", "bank-balanced-age": "Bank by age"}
"""The variants on which peers were measured."""


def answers(results: Results) -> str:
    """The table of certified answers."""
    heads = (
        "network", "demands", "answer", "ldf's solver", "IPOPT", "times as fast as ldf's solver", "as IPOPT",
        "alternating", "from the prediction", "certified without IPOPT", "gap, mean / worst",
        "answers per second, batch",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    keys = results.values("answers") | results.values("answers-gas")
    for found in dict.fromkeys(re.findall(r"(\S+)_(shared|independent)_ratio\b", "\n".join(keys))):
        at = results.answers(*found)
        gap = f"{digits(at('gap'), 2)} / {digits(at('gap_worst'), 2)} %" if not math.isnan(at("gap")) else ""
        cells = [
            *found, f"{digits(at('ms'), 2)} ms", _known(at("own_ms"), "{} ms"), f"{digits(at('cold_ms'), 3)} ms",
            _known(at("own_ratio")), digits(at("ratio"), 2), digits(at("ratio_alternating"), 2),
            _known(100 * at("warm"), "{} %", 3), f"{100 * at('certified'):.3g} %", gap, digits(at("batch"), 2),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    recheck = max(value for key, value in keys.items() if key.endswith("_recheck"))
    pypower = max(value for key, value in keys.items() if key.endswith("_pypower"))
    checked = paragraph(
        results.source("answers"),
        f"Gas networks, wall time: {results.source('answers-gas')[0].lower()}{results.source('answers-gas')[1:]}",
        f"The certified answers were checked again with the torch constraints: the largest ν is {digits(recheck)}.",
        "For ten answers per power network, PYPOWER's power flow of the answered dispatch differs by at most",
        f"{digits(pypower, 2)} p.u. in any voltage.",
    )
    return "\n".join([*lines, "", *checked])


def _known(value: float, text: str = "{}", count: int = 2) -> str:
    """A value in a text; nothing if it was not measured."""
    return "" if math.isnan(value) else text.format(digits(value, count))


def solver(results: Results) -> str:
    """The table of ldf's solver beside IPOPT."""
    values = results.values("solver")
    heads = (
        "network", "samples", "of them feasible", "ldf", "four at a time", "IPOPT", "times as fast", "four at a time",
        "all samples", "same status", "cost above IPOPT's, worst", "below, best", "left to IPOPT", "largest ν",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for case in dict.fromkeys(re.findall(r"(\S+)_lanes_ratio\b", "\n".join(values))):

        def at(key: str, case: str = case) -> float:
            return values[f"{case}_{key}"]

        cells = [
            case, f"{at('draws'):.0f}", f"{100 * at('solvable'):.3g} %",
            *(f"{digits(at(key), 2)} ms" for key in ("ms", "lanes_ms", "ipopt_ms")),
            *(digits(at(key), 2) for key in ("ratio", "lanes_ratio", "all_ratio")), f"{100 * at('agree'):.4g} %",
            f"{digits(at('gap'), 1)} %", f"{digits(at('below'), 1)} %", f"{100 * at('fallback'):.2g} %",
            digits(at("nu"), 1),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *paragraph(results.source("solver"))])


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
    lines = [f"| | lines | {' | '.join(f'{model} lowest' for model in TRAINED)} |", f"|---|{'---:|' * 4}"]
    for title, own in grouped(results.lines.values()).items():
        if own[0].key[0] in targets.WORDS:
            first = [min(TRAINED, key=lambda model, line=line: line.entries[model].value) for line in own]
            lines.append(f"| {title} | {len(own)} | {' | '.join(str(first.count(model)) for model in TRAINED)} |")
    every = lowest(results.parts)
    totals = [f"**{count}**" for count in (sum(every.values()), *(every[model] for model in TRAINED))]
    return "\n".join([*lines, f"| **all** | {' | '.join(totals)} |"]) + "\n"


def goals(results: Results) -> str:
    """The targets, in words."""
    return "\n".join(f"- {line}" for line in targets.summary(results.parts)) + "\n"


def tables(results: Results) -> str:
    """Every quantity that the paper reports of M_C^D, with all models side by side."""
    lines: list[str] = []
    for title, own in grouped(results.lines.values()).items():
        lines += [f"### {title}", "", *_markdown(own), ""]
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


def _fair(values: Mapping[str, float], variant: str, model: str) -> str:
    """Accuracy / |gap| of a model."""
    return f"{values[f'{variant}_{model}_accuracy']:.4f} / {values[f'{variant}_{model}_dt']:.4f}"


def _fair_table(values: Mapping[str, float], models: Mapping[str, str]) -> list[str]:
    """Accuracy / |gap| on every variant; models by the name that is shown."""
    lines = [f"| | {' | '.join(VARIANTS.values())} |", f"|---|{'---:|' * len(VARIANTS)}"]
    for name, model in models.items():
        lines.append(f"| {name} | {' | '.join(_fair(values, variant, model) for variant in VARIANTS)} |")
    return lines


def fair_peers(results: Results) -> str:
    """Our fair classifiers and their peers."""
    values = results.values("fairness")
    found = re.findall(rf"^{next(iter(VARIANTS))}_(.+)_accuracy$", "\n".join(values), re.M)
    models = {f"**{model}**" if model.endswith("MCD") else model: model for model in found}
    return "\n".join([*_fair_table(values, models), "", *paragraph(results.source("fairness"))])


def beside_cooper(results: Results) -> str:
    """One step and fair networks, compared with Cooper."""
    step, fair = results.values("step"), results.values("fairness")
    found = [f"{words} {_fair(fair, v, 'Cooper')} against {_fair(fair, v, 'MCD')}" for v, words in VARIANTS.items()]
    text = paragraph(
        "**Measured**: one training step with six constraints of 126 columns ([speed](results.md#speed)), as a",
        f"multiple of a plain PyTorch step: Cooper {step['cooper']:.2f}, `ldf` with `Ascent` {step['ldf_eager']:.2f},",
        f"`ldf` with the automatic rule {step['ldf_auto']:.2f}. Fair networks",
        "([peers](results.md#fair-classifiers-and-their-peers)), accuracy / |gap| of Cooper against `ldf`:",
        f"{'; '.join(found)}. Cooper trained one network there; `ldf` takes the mean of five. On thirteen problems",
        "([scores](results.md#dual-rules-on-thirteen-problems)) Cooper, with the best of three steps, is best or",
        f"within a tenth of the best in {_near(results.values('problems'), 'cooper')}, the automatic rule in",
        f"{_near(results.values('problems'), 'default')}.",
    )
    return "\n".join(text)


def beside_humancompatible(results: Results) -> str:
    """One step, compared with humancompatible-train."""
    step = results.values("step")
    text = paragraph(
        f"**Measured**: the training step above: humancompatible-train {step['humancompatible']:.2f}, `ldf` with",
        f"`Ascent` {step['ldf_eager']:.2f}. Quality: [thirteen problems](results.md#dual-rules-on-thirteen-problems).",
    )
    return "\n".join(text)


def beside_dc3(results: Results) -> str:
    """DC3's families of problems, compared with its published objectives."""
    values = results.values("problems")

    def at(problem: str, key: str) -> str:
        return _minus(digits(values[f"{problem}_{key}"], 4))

    text = paragraph(
        "**Measured**, by the default rule with two layers of 200 units, then [repair](repair.md), on DC3's",
        "problems of 100 variables, 50 equalities and 50 inequalities. Quadratic program: objective",
        f"{at('dc3_qp', 'default_repaired_objective')} without violations; the optimum is",
        f"{at('dc3_qp', 'solver_objective')}, DC3's paper reports −13.46. Nonconvex variant:",
        f"{at('dc3_nonconvex', 'default_repaired_objective')}; the optimum is",
        f"{at('dc3_nonconvex', 'solver_objective')}, DC3's paper reports −10.66. DC3's code was not run here.",
    )
    return "\n".join(text)


def _minus(number: str) -> str:
    """A number with a true minus sign."""
    return number.replace("-", "−", 1) if number.startswith("-") else number


def beside_solvers(results: Results) -> str:
    """Answers compared with IPOPT, labels with PYPOWER."""
    values, labels = results.values("solver"), results.values("labelling")
    cases = (GRID, "case300_ieee")
    single, wide = (
        " and ".join(digits(values[f"{case}_{key}"], 2) for case in cases) for key in ("ratio", "lanes_ratio")
    )
    found = [results.answers(case, "independent") for case in cases]
    times = " and ".join(f"{digits(at('ms'), 2)} ms" for at in found)
    ratios = " and ".join(digits(at("ratio"), 2) for at in found)
    rates = " and ".join(digits(labels[f"{case}_ratio"], 2) for case in ("case30_ieee", GRID))
    text = paragraph(
        "**Measured**: not against these packages. Against IPOPT, by CasADi ([the solver](results.md#the-solver)),",
        f"from a flat start, on 118 and 300 buses: {single} times as fast, {wide} times with four demands side by",
        f"side. With a trained network ([certified answers](results.md#certified-answers)) an answer takes {times}",
        f"with loads that vary independently, {ratios} times as fast as IPOPT. Labelling, against PYPOWER: {rates}",
        "times as many solves per second on 30 and 118 buses.",
    )
    return "\n".join(text)


def beside_trees(results: Results) -> str:
    """Boosted trees without the attribute, compared with OxonFair and fairlearn."""
    models = {
        "`ldf`, MCD": "boosting MCD", "`ldf`, M with closed-form repair": "boosting M + plug-in",
        "OxonFair, groups inferred": "boosting OxonFair",
        "fairlearn, ExponentiatedGradient": "boosting ExponentiatedGradient",
    }  # fmt: skip
    return "\n".join(_fair_table(results.values("fairness"), models)) + "\n"


STEPS = {
    "plain": ("plain PyTorch", "no constraints"),
    "degrees": ("the six functions alone", "evaluated and differentiated, not enforced"),
    "penalty": ("penalties written by hand", "stacked, λ = 1, no dual"),
    "ldf_eager": ("**ldf**, in your own loop", "`Lagrangian`, `Ascent(1e-2)`"),
    "ldf_auto": ("**ldf**, the default rule", '`Lagrangian`, `dual="auto"`'),
    "humancompatible": ("humancompatible-train", "one stacked constraint"),
    "cooper": ("Cooper", "one stacked constraint"),
    "ldf_compiled": ("**ldf**, compiled step", "forward, backward and Adam as one graph"),
    "plain_compiled": ("plain PyTorch, compiled", "no constraints"),
    "ldf_fit": ("**ldf.fit**", "with fused Adam"),
    "ldf_fit_compiled": ("**ldf.fit**, `compile=True`", ""),
    "ldf_fit_auto": ("**ldf.fit**, 60 000 steps", "compiled by itself"),
    "ldf_many_per_model": ("**ldf.fit_many**, 8 models", "per model"),
}


def labelling(results: Results) -> str:
    """How fast demands are labelled."""
    at = results.values("labelling")
    rates = [digits(at[f"{case}_per_second"], 2) for case in ("case30_ieee", GRID)]
    ratios = [digits(at[f"{case}_ratio"], 2) for case in ("case30_ieee", GRID)]
    text = paragraph(
        f"**Labelling**: {' and '.join(rates)} solves per second on 30 and 118 buses on one core,",
        f"{' and '.join(ratios)} times PYPOWER's `runopf` on the same samples; two workers are",
        f"{digits(at['two_workers_ratio'])} times as fast as one. Objectives of 14 to 300 buses agree with PGLib's to",
        f"{max(v for k, v in at.items() if k.endswith('published_difference')):.0e}. {results.source('labelling')}",
    )
    return "\n".join(text)


def speed(results: Results) -> str:
    """What one training step costs, as a ratio to a plain PyTorch step."""
    values = results.values("step")
    lines = ["| | ratio | |", "|---|---:|---|"]
    lines += [f"| {name} | {values[key]:.2f} | {words} |" for key, (name, words) in STEPS.items() if values.get(key)]
    return "\n".join([*lines, "", *paragraph(results.source("step"))])


RULES = {
    "M": "M", "MC": "Fixed(1)", "default": "**default**", "balanced": "Balanced()", "ascent": "Ascent¹",
    "augmented": "Augmented()", "cooper": "Cooper¹", "humancompatible": "humancompatible¹",
}  # fmt: skip


def _problems(values: Mapping[str, float]) -> list[str]:
    return re.findall(r"^(.+)_default_ratio$", "\n".join(values), re.M)


def _near(values: Mapping[str, float], method: str) -> int:
    """Number of problems on which a method is best, or within a tenth of the best."""
    count = 0
    for name in _problems(values):
        scores = {other: values.get(f"{name}_{other}_score", math.inf) for other in RULES}
        count += scores[method] <= 1.1 * min(scores.values())
    return count


def _repairable(values: Mapping[str, float]) -> list[str]:
    """The problems with labels whose repair does not need the labels of the repaired rows."""
    return [name for name in _problems(values) if f"{name}_solver_objective" not in values and name != "recall"]


def _unlabelled(values: Mapping[str, float]) -> list[str]:
    """The problems without labels."""
    return [name for name in _problems(values) if f"{name}_solver_objective" in values]


def _repaired(values: Mapping[str, float], names: Sequence[str], method: str, extreme: Callable[..., float]) -> int:
    """Number of these problems on which a method has the lowest (min) or highest (max) objective after repair."""
    found = [{other: values.get(f"{name}_{other}_repaired_objective") for other in RULES} for name in names]
    return sum(own[method] == extreme(value for value in own.values() if value is not None) for own in found)


def _solvers(values: Mapping[str, float], problem: str) -> dict[str, float]:
    """Milliseconds per optimum of each solver that was run on a problem."""
    found = {title: f"{problem}_{title.lower()}_ms" for title in ("DAQP", "IPOPT")}
    return {title: values[key] for title, key in found.items() if key in values}


def problems(results: Results) -> str:
    """Scores of all methods on all problems, and the problems without labels in detail."""
    values = results.values("problems")
    lines = [f"| | {' | '.join(RULES.values())} |", f"|---|{'---:|' * len(RULES)}"]
    for name in _problems(values):
        scores = {method: values.get(f"{name}_{method}_score", math.nan) for method in RULES}
        best = min(score for score in scores.values() if not math.isnan(score))
        cells = ["–" if math.isnan(score) else digits(score / best, 3) for score in scores.values()]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    lines += ["", "Score on fresh rows as a multiple of the best: objective plus price of violations, mean of 3 seeds."]
    lines += ["", f"| objective after repair | {' | '.join(RULES.values())} |", f"|---|{'---:|' * len(RULES)}"]
    for name in _problems(values):
        found = [values.get(f"{name}_{method}_repaired_objective", math.nan) for method in RULES]
        cells = ["–" if math.isnan(value) else _minus(digits(value, 4 if value < 0 else 3)) for value in found]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    largest = max(value for key, value in values.items() if key.endswith("_repaired_worst"))
    best = _repaired(values, _repairable(values), "M", min)
    worst = _repaired(values, _unlabelled(values), "M", max)
    lines += [
        "",
        *paragraph(
            f"The largest ν of any repaired row is {digits(largest, 1)}.",
            f"M is lowest in {best} of {len(_repairable(values))} problems with labels: where labels are at hand and",
            "answers are repaired, duality does not help. (The repair of recall is left out: it uses the labels of the",
            "test rows.) Without labels, M is highest in",
            f"{worst} of {len(_unlabelled(values))}.",
        ),
    ]
    heads = (
        "without labels", "method", "objective", "equalities, mean / max ν", "inequalities, mean / max ν", "repaired",
        "max ν", "ms per repair",
    )  # fmt: skip
    lines += [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for name in _problems(values):
        if f"{name}_solver_objective" not in values or f"{name}_M_equalities_mean" not in values:
            continue
        optimum = _minus(digits(values[f"{name}_solver_objective"], 4))
        for title, spent in zip((name.replace("_", " "), ""), _solvers(values, name).items(), strict=False):
            cells = [title, spent[0], optimum, "0 / 0", "0 / 0", "", "", f"{digits(spent[1], 2)} per solve"]
            lines.append(f"| {' | '.join(cells)} |")
        for method, title in RULES.items():

            def at(key: str, count: int = 2, name: str = name, method: str = method) -> str:
                return _minus(digits(values[f"{name}_{method}_{key}"], count))

            cells = [
                title, at("objective", 4), f"{at('equalities_mean')} / {at('equalities_max')}",
                f"{at('inequalities_mean')} / {at('inequalities_max')}", at("repaired_objective", 4),
                at("repaired_worst", 1), at("repair_ms"),
            ]  # fmt: skip
            lines.append(f"| | {' | '.join(cells)} |")
    note = (
        "Mean / max ν: means over the rows of the mean and of the largest ν of a row; after repair, the largest of all"
        " rows. ¹ The best of three steps, chosen on validation rows."
    )
    return "\n".join([*lines, "", *paragraph(note, results.source("problems"))])


def scores(results: Results, path: Path) -> None:
    """Draw the scores of all methods on all problems, as the benchmark does."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from problems import draw

    values = results.values("problems")
    draw(values, _problems(values), path, {"values": shown_scores(results)})


def shown_scores(results: Results) -> str:
    """Identifies the scores."""
    return hashlib.sha256(problems(results).encode()).hexdigest()


def tuning(results: Results) -> str:
    """How the default does without an argument, in words."""
    values = results.values("problems")
    ratios = {name: values[f"{name}_default_ratio"] for name in _problems(values)}
    far = [f'"{name.replace("_", " ")}" ({digits(ratio, 3)} times)' for name, ratio in ratios.items() if ratio > 1.1]

    def at(key: str, count: int = 2) -> str:
        return _minus(digits(values[f"dc3_qp_{key}"], count))

    text = paragraph(
        f"On {len(ratios)} problems the default, with no argument but the constraints, is the best",
        f"method or within a tenth of the best in {int(values['within_a_tenth'])}"
        + (f"; not on {' and '.join(far)}." if far else "."),
        f"Any other method is in at most {max(_near(values, method) for method in RULES if method != 'default')}.",
        "The others are `Ascent`, Cooper and humancompatible-train, each with the best of three steps, `Augmented()`,",
        "`Balanced()`, λ = 1, and no constraints. On DC3's quadratic program, without labels, it reaches an objective",
        f"of {at('default_objective', 4)}, with a largest violation per row of {at('default_equalities_max')}",
        f"(equalities) and {at('default_inequalities_max')} (inequalities), and after repair",
        f"{at('default_repaired_objective', 4)} without violations. The optimum is {at('solver_objective', 4)}; DC3",
        f"published −13.46. A repair takes {at('default_repair_ms')} ms in a batch, a solver",
        f"{' or '.join(f'{digits(spent, 2)} ms ({title})' for title, spent in _solvers(values, 'dc3_qp').items())}.",
        "With labels and repair, duality does not help: M is best in",
        f"{_repaired(values, _repairable(values), 'M', min)} of {len(_repairable(values))} such problems.",
    )
    return "\n".join(text)


BLOCKS: dict[str, dict[str, Callable[[Results], str]]] = {
    "README.md": {"results": first_screen, "tuning": tuning},
    "docs/dual.md": {"tuning": tuning},
    "docs/results.md": {
        "glance": first_screen,
        "answers": answers, "solver": solver, "prices": prices, "duality": duality, "targets": goals, "tables": tables,
        "peers": fair_peers, "problems": problems, "labelling": labelling, "speed": speed,
    },
    "docs/compared.md": {
        "cooper": beside_cooper, "humancompatible": beside_humancompatible, "dc3": beside_dc3,
        "solvers": beside_solvers, "trees": beside_trees,
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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The mkdocs hook: pages link to results/ as in the repository; on the site it is below the pages."""
    return markdown.replace("](../results/", "](results/")


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
    for path, wanted in ((PICTURE, fingerprint(results)), (SCORES, shown_scores(results))):
        if check and shown_values(path) != wanted:
            sys.exit(f"{path.relative_to(ROOT)} does not show results/: run python tools/results.py")
    if not check:
        picture(results, PICTURE)
        scores(results, SCORES)


if __name__ == "__main__":
    main()
