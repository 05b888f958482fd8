"""The demonstration: learn to share a load between four units, without and under its two constraints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from .batch import Batch
from .certificate import certify
from .constraint import Constraint, equality, inequality
from .dual import Ascent, Dual, Fixed
from .history import History
from .replicas import fit_many
from .text import write_whole
from .training import Fit

COSTS = (1.0, 1.5, 2.0, 3.0)
MODELS: dict[str, Dual | None] = {"M": None, "MC": Fixed(1.0), "MCD": Ascent()}
"""The paper's three models: no constraints, λ = 1, and λ by dual ascent."""


def dispatch(rows: int = 2000, *, seed: int = 0, noise: float = 0.05) -> tuple[Tensor, Tensor]:
    """A load to share between four units at the least cost ½ Σ cᵢ yᵢ², as labelled data.

    Args:
        rows: how many cases.
        noise: standard deviation of what is added to the optimal shares, as if they had been measured.

    Returns:
        inputs [rows, 5]: what each unit can carry and, as a negative number, the capacity that is to stay unused, so
        that the load is the sum of a row; targets [rows, 4]: the share of each unit.
    """
    generator = torch.Generator().manual_seed(seed)
    capacity = 0.5 + torch.rand(rows, 4, generator=generator)
    unused = capacity.sum(1, keepdim=True) * (0.1 + 0.5 * torch.rand(rows, 1, generator=generator))
    inputs = torch.cat([capacity, -unused], 1)
    load = inputs.sum(1, keepdim=True)
    costs = torch.tensor(COSTS)
    low, high = torch.zeros(rows, 1), torch.full((rows, 1), 10.0)
    for _ in range(60):  # bisection on the price p at which Σ min(p/cᵢ, capacityᵢ) is the load
        price = (low + high) / 2
        short = (price / costs).minimum(capacity).sum(1, keepdim=True) < load
        low, high = torch.where(short, price, low), torch.where(short, high, price)
    optimum = (price / costs).minimum(capacity)
    return inputs, optimum + noise * torch.randn(optimum.shape, generator=generator)


def constraints() -> list[Constraint]:
    """No unit carries more than it can; together they carry the load."""
    return [
        inequality("capacity", lambda y, batch: y - batch.inputs[:, :4]),
        equality("balance", lambda y, batch: y.sum(1, keepdim=True) - batch.inputs.sum(1, keepdim=True)),
    ]


def network() -> nn.Module:
    """Five inputs, four outputs, one hidden layer."""
    return nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 4))


def run(out: Path, *, epochs: int, seeds: int, show: Callable[[str], None], progress: bool | None = None) -> None:
    """Train M, MC and MCD for several seeds, compare them on fresh data, and write table, histories and picture."""
    inputs, targets = dispatch(2000)
    fits = fit_many(
        network,
        (inputs, targets),
        loss=nn.functional.mse_loss,
        constraints=constraints(),
        duals=list(MODELS.values()),
        seeds=range(seeds),
        epochs=epochs,
        schedule="cosine",
        checkpoint=out / "checkpoint",
        progress=progress,
    )
    by_model = {name: [fit for fit in fits if fit.label["dual"] == dual] for name, dual in MODELS.items()}
    rows = compare(by_model, inputs, targets)
    chosen = by_model["MCD"][0]
    write_whole(out / "results.json", json.dumps(rows, indent=1) + "\n")
    for name, runs in by_model.items():
        runs[0].history.to_csv(out / f"history-{name}.csv")
    draw({name: runs[0].history for name, runs in by_model.items()}, out / "demo.png")
    show("[bold]Share a load between four units[/bold], learnt from 2000 noisy examples, tested on 2000 fresh ones\n")
    show(as_table(rows))
    show(f"\n[bold]MCD over the epochs[/bold], seed 0\n{sparklines(chosen.history)}")
    show(f"\n[bold]What the doctor says[/bold]\n{chosen.doctor()}")
    show(f"\nwritten to {out}: results.json, history-*.csv, demo.png")


def compare(by_model: dict[str, list[Fit]], inputs: Tensor, targets: Tensor) -> list[dict[str, Any]]:
    """Every model and two baselines on fresh data: mean and spread over the seeds of error and violations."""
    fresh, truth = dispatch(2000, seed=1, noise=0.0)
    design = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
    linear = torch.linalg.lstsq(design, targets).solution
    answers: dict[str, list[Tensor]] = {
        "mean": [targets.mean(0).expand(len(fresh), -1)],
        "linear": [torch.cat([fresh, torch.ones(len(fresh), 1)], 1) @ linear],
    }
    with torch.no_grad():
        answers |= {name: [fit.model(fresh) for fit in runs] for name, runs in by_model.items()}
    rows = []
    for name, predictions in answers.items():
        found: dict[str, list[float]] = {"error": [], "capacity": [], "balance": []}
        for y in predictions:
            found["error"].append(100 * float((y - truth).abs().sum() / truth.abs().sum()))
            for finding in certify(constraints(), y, Batch(inputs=fresh)).findings:
                found[finding.constraint].append(finding.mean)
        for quantity, values in found.items():
            rows.append(
                {
                    "table": "demo",
                    "model": name,
                    "quantity": quantity,
                    "mean": fmean(values),
                    "std": stdev(values) if len(values) > 1 else 0.0,
                    "seeds": len(values),
                    "unit": "%" if quantity == "error" else "load",
                }
            )
    return rows


def as_table(rows: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation, a line a model."""
    quantities = list(dict.fromkeys(row["quantity"] for row in rows))
    names = {"error": "error %", "capacity": "ν capacity", "balance": "ν balance"}
    lines = [f"{'':8}" + "".join(f"{names[quantity]:>20}" for quantity in quantities)]
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = [row for row in rows if row["model"] == model]
        figures = [f"{cell['mean']:.4f}" + (f" ± {cell['std']:.4f}" if cell["seeds"] > 1 else "") for cell in cells]
        lines.append(f"{model:8}" + "".join(f"{figure:>20}" for figure in figures))
    return "\n".join(lines)


def sparklines(history: History, width: int = 48) -> str:
    """Every ν and λ over the epochs as a line of bars."""
    lines = []
    for name in history.constraints:
        for column, letter in (("nu_mean", "ν"), ("lambda", "λ")):
            values = history[f"{column}/{name}"]
            stride = max(1, math.ceil(len(values) / width))
            shown, top = values[::stride], max(values) or 1.0
            bars = "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * value / top))] for value in shown)
            lines.append(f"{letter} {name:10} {bars}  from {values[0]:.4f} to {values[-1]:.4f}")
    return "\n".join(lines)


def draw(histories: dict[str, History], path: Path) -> None:
    """Violations and multipliers over the epochs, as a picture."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    colours = {"capacity": "tab:blue", "balance": "tab:orange"}
    styles = {"M": ":", "MC": "--", "MCD": "-"}
    for model, history in histories.items():
        epochs = history["epoch"]
        for name in history.constraints:
            options = {"color": colours[name], "linestyle": styles[model], "label": f"{name}, {model}"}
            left.plot(epochs, history[f"nu_mean/{name}"], **options)
            if model != "M":
                right.plot(epochs, history[f"lambda/{name}"], **options)
    left.set(xlabel="epoch", ylabel="mean violation ν (units of load)", yscale="log", title="Violations")
    right.set(xlabel="epoch", ylabel="multiplier λ (loss per unit of load)", yscale="symlog", title="Multipliers")
    right.set_yscale("symlog", linthresh=0.01)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    pyplot.close(figure)
    write_whole(path, buffer.getvalue())
