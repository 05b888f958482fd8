"""`report`: an HTML page about a fit, with the doctor's findings and plots of loss, violations and multipliers."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from ..core.doctor import Diagnosis
from ..core.history import History
from ..core.lagrangian import Lagrangian
from ..io.text import number, write_whole
from . import page
from .figures import losses_figure, multipliers_figure, traces_figure
from .page import Cell

HELD = frozenset({"satisfied", "never active"})
"""Verdicts that count as satisfied."""
ROWS = 25
"""Maximum number of epochs in the history table."""


class Fitted(Protocol):
    """The part of `ldf.Fit` that a report needs."""

    model: nn.Module
    lagrangian: Lagrangian
    history: History
    best_epoch: int
    stopped_early: bool
    conflicts: dict[tuple[str, str], float]
    label: dict[str, Any]

    def doctor(self) -> Diagnosis:
        """Diagnose the constraints and suggest changes."""


def report(fits: Fitted | Mapping[str, Fitted], path: str | Path, title: str = "A model under constraints") -> Path:
    """Write one self-contained HTML page about a fit, or about several by name for comparison.

    The page has the doctor's findings, a table of the epochs, and plots of loss, violations ν and multipliers over the
    epochs. It loads nothing from the network and supports light and dark mode. Plotting needs matplotlib, which is
    installed with `ldf[cli]`.

    Returns:
        Path of the page.
    """
    path = Path(path)
    named = dict(fits) if isinstance(fits, Mapping) else {"model": fits}
    if not named:
        raise ValueError("no fit to report on: pass a Fit or a mapping from names to fits")
    if path.is_dir() or path.suffix not in (".html", ".htm"):
        raise ValueError(f"a report must be an .html file such as report.html, got {str(path)!r}")
    histories = {name: one.history for name, one in named.items()}
    if not all(len(history) for history in histories.values()):
        raise ValueError("cannot report on a fit without any epochs")
    body = [f"<h1>{escape(title)}</h1>", page.facts(_facts(named))]
    body += [_findings(name if len(named) > 1 else "", one) for name, one in named.items()]
    body += ["<h2>Training curves</h2>", page.pictures(_figures(histories))]
    for name, history in histories.items():
        summary = "Table of epochs" + (f": {name}" if len(named) > 1 else "")
        body.append(page.details(summary, [_epochs(history)]))
    write_whole(path, page.document(title, body))
    return path


def _facts(fits: Mapping[str, Fitted]) -> dict[str, str]:
    facts = {}
    for name, fit in fits.items():
        prefix = f"{name}: " if len(fits) > 1 else ""
        seconds = sum(row.get("seconds", 0.0) for row in fit.history.rows)
        ended = ", stopped early" if fit.stopped_early else ""
        weights = sum(p.numel() for p in fit.model.parameters())
        facts[f"{prefix}training"] = (
            f"{len(fit.history)} epochs{ended}, weights of epoch {fit.best_epoch}, {seconds:.1f} s, {weights} weights"
        )
        facts |= {prefix + name: str(value) for name, value in fit.label.items()}
    return facts | page.machine()


def _findings(name: str, fit: Fitted) -> str:
    """Table of the doctor's findings."""
    diagnosis = fit.doctor()
    last = fit.history.rows[-1]
    rules = dict(zip(fit.lagrangian.tolerances, fit.lagrangian.rules, strict=True))
    validated = "val_loss" in last
    heads = ["constraint", "verdict", "mean ν", "largest ν", *(["held-out mean ν"] if validated else [])]
    heads += ["tolerance", "multiplier", "rule", "advice"]
    rows = []
    for advice in diagnosis.advice:
        own = advice.constraint
        held = advice.verdict in HELD
        values = [last[f"nu_mean/{own}"], last[f"nu_max/{own}"]]
        values += [last.get(f"val_nu_mean/{own}", math.nan)] if validated else []
        values += [fit.lagrangian.tolerances[own], last[f"lambda/{own}"]]
        rows.append(
            [
                Cell(own, kind="text", strong=True),
                Cell(f"{'✓' if held else '✗'} {advice.verdict}", kind=f"text {'good' if held else 'bad'}"),
                *(Cell(number(value), value if math.isfinite(value) else None) for value in values),
                Cell(repr(rules[own]), kind="text quiet"),
                Cell(f"{advice.finding} {advice.change}".rstrip(), kind="text long"),
            ]
        )
    caption = "Doctor's findings" + (f": {name}" if name else "")
    found = [page.table(caption, heads, rows)] if rows else ["<p>There are no constraints.</p>"]
    found += [f'<p class="bad">Warning: {escape(warning)}</p>' for warning in diagnosis.warnings]
    if fit.conflicts:
        pairs = [
            [Cell(one, kind="text"), Cell(other, kind="text"), Cell(f"{cosine:+.2f}", cosine)]
            for (one, other), cosine in fit.conflicts.items()
        ]
        table = page.table("Cosine between the gradients of two violations", ["one", "other", "cosine"], pairs)
        found.append(page.details("Conflicts between constraints", [table]))
    return "\n".join(found)


def _figures(histories: Mapping[str, History]) -> list[str]:
    drawings: dict[str, Callable[[Path], None]] = {
        "Loss; dashed: on held-out rows": lambda path: losses_figure(histories, path)
    }
    if any(history.constraints for history in histories.values()):
        drawings |= {
            "Mean violation ν of each constraint": lambda path: traces_figure(histories, path),
            "Multipliers": lambda path: multipliers_figure(histories, path),
        }
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for caption, draw in drawings.items():
            path = Path(folder) / "figure.png"
            draw(path)
            found.append(page.picture(path, caption))
    return found


def _epochs(history: History) -> str:
    stride = max(1, math.ceil(len(history) / ROWS))
    shown = [row for i, row in enumerate(history.rows) if i % stride == 0 or i == len(history) - 1]
    columns = history.columns
    rows = [
        [
            Cell(number(value), value) if math.isfinite(value) else Cell("")
            for value in (row.get(name, math.nan) for name in columns)
        ]
        for row in shown
    ]
    caption = "All epochs" if stride == 1 else f"Epochs in steps of {stride}, and the last"
    return page.table(caption, columns, rows)
