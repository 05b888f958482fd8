"""`ldf transprecision …`. What is slow to import is imported by the command that needs it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    name="transprecision",
    help="Predict what reduced precision costs, monotonically, and find the cheapest precision that is good enough.",
    no_args_is_help=True,
)

KernelName = Annotated[str, typer.Argument(help="A name that `ldf transprecision kernels` lists, or FILE.py:NAME.")]
File = Annotated[Path, typer.Argument(help="What `ldf transprecision train` wrote.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes for slow kernels; all cores by default.")]
Low = Annotated[int, typer.Option(min=1, max=52, help="The smallest width, in mantissa bits.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(help="A column with widths; may be given several times. All but the target by default."),
]
TARGET = "The column to learn; by default target or, where there is none, error, from which y follows."


@app.command()
def kernels() -> None:
    """List the kernels and their variables."""
    from ..io.text import table
    from ..transprecision.kernels import KERNELS

    rows = [[name, len(one.variables), one.summary, ", ".join(one.variables)] for name, one in KERNELS.items()]
    short = [[*row[:3], row[3] if len(str(row[3])) < 70 else f"{str(row[3])[:67]}..."] for row in rows]
    typer.echo(table(["kernel", "variables", "computes", "named"], short))


@app.command()
def label(
    kernel: KernelName,
    out: Annotated[Path, typer.Option(help="The file to write, .parquet or .csv.")],
    n: Annotated[int, typer.Option("-n", "--rows", min=1, help="Different configurations to run.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    low: Low = 4,
    high: Annotated[int, typer.Option(min=1, max=52, help="The largest width.")] = 52,
    workers: Workers = None,
) -> None:
    """Draw configurations, run the kernel under each, and write widths, error and target, which is y."""
    from ..transprecision.kernels import open_kernel
    from ..transprecision.tables import label as run

    chosen = open_kernel(kernel)
    begun = time.monotonic()
    table = run(chosen, n, out, seed=seed, low=low, high=high, workers=workers, progress=None)
    seconds = time.monotonic() - begun
    fewer = f" (there are no more than {len(table)})" if len(table) < n else ""
    typer.echo(f"{len(table)} configurations{fewer} of {chosen.name} in {out}, {len(table) / seconds:.0f} a second")


@app.command()
def train(
    table: Annotated[Path, typer.Argument(help="CSV or Parquet: a column of whole numbers for each variable.")],
    out: Annotated[Path, typer.Option(help="The file to write the predictor to.")],
    target: Annotated[str | None, typer.Option(help=TARGET)] = None,
    variable: Columns = None,
    model: Annotated[Literal["M", "MC", "MCD"], typer.Option(help="No constraint, λ = 1, or dual ascent.")] = "MCD",
    recipe: Annotated[Literal["paper", "tuned"], typer.Option(help="The paper's network, or ours.")] = "tuned",
    decreasing: Annotated[bool, typer.Option("--decreasing", help="The target falls with more bits.")] = False,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data; the recipe's own by default.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, batches and pairs.")] = 0,
) -> None:
    """Fit a monotone predictor to a table of configurations; goes on where it was stopped."""
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
    typer.echo(predictor.facts["doctor"])


@app.command()
def predict(
    predictor: File,
    configurations: Annotated[Path, typer.Option(help="CSV or Parquet with the predictor's columns.")],
    out: Annotated[Path, typer.Option(help="The file to write, .csv or .parquet.")],
    repair: Annotated[bool, typer.Option("--repair/--no-repair", help="Make predictions monotone.")] = True,
) -> None:
    """Predict targets; repaired, they are monotone among themselves without exception."""
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
        typer.echo(f"Warning: {int(outside.sum())} of them outside of what was trained on", err=True)


@app.command()
def evaluate(
    predictor: File,
    table: Annotated[Path, typer.Argument(help="CSV or Parquet with widths and targets that were not trained on.")],
    target: Annotated[str | None, typer.Option(help=TARGET)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """MAE, violated pairs and their size, before and after repair."""
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
    """Say whether the constraint holds, and what to change."""
    from ..transprecision.predictor import Predictor

    facts = Predictor.load(predictor).facts
    typer.echo(f"{facts['model']}, {facts['recipe']} recipe, {facts['rows']} rows")
    typer.echo(facts["doctor"])


@app.command()
def tune(
    kernel: KernelName,
    max_error: Annotated[float, typer.Option(help="On the largest (out − ref)²/ref² over the outputs.")],
    low: Low = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the first configurations.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy/--no-greedy", help="Search greedily too, to compare.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the widths with the fewest bits that keep the error within a bound, each error measured by a run."""
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
        f"\n{found['tuned'].bits} of {full} mantissa bits keep the error at {found['tuned'].error:.3g} ≤ "
        f"{max_error:.3g}, measured; with a bit less in any one width it does not stay there. {seconds:.1f} s"
    )
