"""`ldf transprecision …`. Slow imports are inside the commands that need them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import advice

app = typer.Typer(
    name="transprecision",
    help="Predict the error of reduced precision with monotone models, and find the cheapest widths within a bound.",
    no_args_is_help=True,
)

KernelName = Annotated[str, typer.Argument(help="Kernel name (see `ldf transprecision kernels`) or FILE.py:NAME.")]
File = Annotated[Path, typer.Argument(help="Predictor file written by `ldf transprecision train`.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of processes for slow kernels; all cores by default.")]
Low = Annotated[int, typer.Option(min=1, max=52, help="Smallest width, in mantissa bits.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(help="Column of widths; repeat for several. By default all columns except the target."),
]
TARGET = "Target column; by default target or, if there is none, error, which is converted to y."


@app.command()
def kernels() -> None:
    """List the built-in kernels and their variables."""
    from ..io.text import table
    from ..transprecision.kernels import KERNELS

    rows = [[name, len(one.variables), one.summary, ", ".join(one.variables)] for name, one in KERNELS.items()]
    short = [[*row[:3], row[3] if len(str(row[3])) < 70 else f"{str(row[3])[:67]}..."] for row in rows]
    typer.echo(table(["kernel", "variables", "computes", "names"], short))


@app.command()
def label(
    kernel: KernelName,
    out: Annotated[Path, typer.Option(help="Output file, .parquet or .csv.")],
    n: Annotated[int, typer.Option("-n", "--rows", min=1, help="Number of distinct configurations to run.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for sampling configurations.")] = 0,
    low: Low = 4,
    high: Annotated[int, typer.Option(min=1, max=52, help="Largest width, in mantissa bits.")] = 52,
    workers: Workers = None,
) -> None:
    """Sample configurations, run the kernel with each, and write the widths, the error and the target y."""
    from ..transprecision.kernels import open_kernel
    from ..transprecision.tables import label as run

    chosen = open_kernel(kernel)
    begun = time.monotonic()
    table = run(chosen, n, out, seed=seed, low=low, high=high, workers=workers, progress=None)
    seconds = time.monotonic() - begun
    fewer = " (all that exist)" if len(table) < n else ""
    typer.echo(f"{len(table)} configurations{fewer} of {chosen.name} in {out}, {len(table) / seconds:.0f} per second")


@app.command()
def train(
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file with columns of widths and a target.")],
    out: Annotated[Path, typer.Option(help="Output file for the predictor.")],
    target: Annotated[str | None, typer.Option(help=TARGET)] = None,
    variable: Columns = None,
    model: Annotated[Literal["M", "MC", "MCD"], typer.Option(help="No constraint, λ = 1, or dual ascent.")] = "MCD",
    recipe: Annotated[
        Literal["paper", "tuned"], typer.Option(help="The paper's network and settings, or the tuned ones.")
    ] = "tuned",
    decreasing: Annotated[bool, typer.Option("--decreasing", help="The target falls with more bits.")] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs; by default set by the recipe.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for weights, batches and pairs.")] = 0,
) -> None:
    """Fit a monotone predictor to a table of configurations. An interrupted run resumes."""
    import shutil

    from ..transprecision.dominance import Dominance
    from ..transprecision.predictor import Predictor
    from ..transprecision.tables import read_table

    data = read_table(table, target, variable)
    pairs = Dominance(data.configurations).count()
    typer.echo(f"{len(data)} rows of {', '.join(data.variables)}; {pairs} dominated pairs")
    place = out.with_name(f".{out.name}.checkpoint")
    predictor = Predictor.fit(
        data.configurations,
        data.targets,
        variables=data.variables,
        model=model,
        recipe=recipe,
        increasing=not decreasing,
        seed=seed,
        epochs=epochs,
        progress=True,
        checkpoint=place,
    )
    predictor.save(out)
    shutil.rmtree(place, ignore_errors=True)
    typer.echo(f"{model} in {out}")
    typer.echo(advice(predictor.facts))


@app.command()
def predict(
    predictor: File,
    configurations: Annotated[Path, typer.Option(help="CSV or Parquet file with the predictor's columns.")],
    out: Annotated[Path, typer.Option(help="Output file, .csv or .parquet.")],
    repair: Annotated[bool, typer.Option("--repair/--no-repair", help="Make predictions monotone.")] = True,
) -> None:
    """Predict targets. With repair, no pair of predictions violates monotonicity."""
    from ..io.files import check_writable, write_columns
    from ..transprecision.dominance import Dominance
    from ..transprecision.predictor import Predictor
    from ..transprecision.tables import read_configurations

    check_writable(out, "predictions")
    loaded = Predictor.load(predictor)
    asked = read_configurations(configurations, loaded.variables)
    values = loaded.predict(asked, repair)
    outside = loaded.outside(asked)
    found = Dominance(asked).violations(values if loaded.span > 0 else -values)
    columns = dict(zip(loaded.variables, asked.T.tolist(), strict=True))
    write_columns(out, columns | {"predicted": values.tolist(), "outside": outside.tolist()})
    typer.echo(f"{len(asked)} predictions in {out}; {found.violated} of {found.pairs} dominated pairs violated")
    if outside.any():
        typer.echo(f"Warning: {int(outside.sum())} of {len(asked)} configurations outside the training range", err=True)


@app.command()
def evaluate(
    predictor: File,
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file with held-out widths and targets.")],
    target: Annotated[str | None, typer.Option(help=TARGET)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Print MAE, the number of violated pairs and the sum of violations, before and after repair."""
    import numpy as np

    from ..io.text import table as text
    from ..transprecision.predictor import Predictor
    from ..transprecision.tables import read_table

    loaded = Predictor.load(predictor)
    data = read_table(table, target, loaded.variables)
    scores = {}
    for name, repair in (("predicted", False), ("repaired", True)):
        found = loaded.violations(data.configurations, repair)
        error = float(np.abs(loaded.predict(data.configurations, repair) - data.targets).mean())
        scores[name] = {"MAE": error, "VC": found.violated, "SMVC": found.total, "pairs": found.pairs}
    if as_json:
        typer.echo(json.dumps(scores, indent=1))
        return
    typer.echo(
        text([f"{len(data)} rows", *scores], [[q, *[s[q] for s in scores.values()]] for q in scores["predicted"]])
    )


@app.command()
def doctor(predictor: File) -> None:
    """Report whether the constraint was satisfied in training, and what to change."""
    from ..transprecision.predictor import Predictor

    facts = Predictor.load(predictor).facts
    typer.echo(f"{facts['model']}, {facts['recipe']} recipe, {facts['rows']} rows")
    typer.echo(advice(facts))


@app.command()
def tune(
    kernel: KernelName,
    max_error: Annotated[float, typer.Option(help="Upper bound on the largest (out − ref)²/ref² over the outputs.")],
    low: Low = 4,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for sampling and training.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy/--no-greedy", help="Also run a greedy search.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the widths with the fewest bits within an error bound. Errors are measured by running the kernel."""
    from ..io.text import table
    from ..transprecision import tuner
    from ..transprecision.kernels import open_kernel

    chosen = open_kernel(kernel)
    begun = time.monotonic()
    found = {"tuned": tuner.tune(chosen, max_error, low=low, seed=seed, progress=not as_json)}
    seconds = time.monotonic() - begun
    if greedy:
        found["greedy"] = tuner.greedy(chosen, max_error, low)
    if as_json:
        plain = {
            name: {
                "bits": one.bits,
                "error": one.error,
                "runs": one.runs,
                "configuration": dict(zip(chosen.variables, one.configuration, strict=True)),
            }
            for name, one in found.items()
        }
        typer.echo(json.dumps({"kernel": chosen.name, "max_error": max_error, "seconds": seconds, **plain}, indent=1))
        return
    rows: list[list[object]] = [
        [name, *[one.configuration[i] for one in found.values()]] for i, name in enumerate(chosen.variables)
    ]
    rows += [["bits", *[one.bits for one in found.values()]], ["error", *[one.error for one in found.values()]]]
    rows += [["kernel runs", *[one.runs for one in found.values()]]]
    typer.echo(table(["", *found], rows))
    full = 52 * len(chosen.variables)
    typer.echo(
        f"\n{found['tuned'].bits} of {full} mantissa bits: measured error {found['tuned'].error:.3g} ≤ "
        f"{max_error:.3g}; no single width can be lowered. {seconds:.1f} s"
    )
