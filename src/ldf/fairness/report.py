"""Fairness report of a classifier: accuracy, rate gaps with confidence intervals, and the accuracy for each slack."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..io.text import table
from ..viewing.figures import grid, save
from .closed_form import solve
from .rates import Floats, Ints, Rates, newcombe, wilson

POINTS = 13
"""Number of points of the trade-off curve."""
Interval = tuple[float, float]


@dataclass(frozen=True)
class Group:
    """Rows, accuracy and positive rates (by event) of one group."""

    name: str
    rows: int
    accuracy: float
    rates: dict[str, float]
    intervals: dict[str, Interval]


@dataclass(frozen=True)
class Gap:
    """Rate of `second` − rate of `first`, with its interval; the intervals hold jointly at the level of the report."""

    event: str
    first: str
    second: str
    gap: float
    low: float
    high: float


@dataclass(frozen=True)
class Report:
    """Result of `report()`: print it, or use `to_json()`, `plot(path)` or `metric_frame()`."""

    constraint: str
    source: str
    slack: float
    level: float
    rows: int
    accuracy: float
    accuracy_interval: Interval
    groups: tuple[Group, ...]
    gaps: tuple[Gap, ...]
    curve: tuple[tuple[float, float, float], ...]
    """(ε, accuracy, largest gap) of the closed-form decision rule on held-out training rows."""
    rows_seen: tuple[NDArray[Any], ...] = field(repr=False, compare=False, default=())
    """Decisions, labels and group names of the evaluated rows."""

    @property
    def gap(self) -> Gap | None:
        """The gap with the largest absolute value; None if there is only one group."""
        return max(self.gaps, key=lambda gap: -1.0 if math.isnan(gap.gap) else abs(gap.gap), default=None)

    @property
    def holds(self) -> bool:
        """Whether no gap exceeds the slack significantly: every interval overlaps [−ε, ε]."""
        return all(gap.low <= self.slack and gap.high >= -self.slack for gap in self.gaps if not math.isnan(gap.gap))

    @property
    def _verdict(self) -> str:
        """The measured gaps compared with the slack: met, exceeded but not significantly, or missed."""
        level, largest = f"{100 * self.level:g} %", math.nan if self.gap is None else abs(self.gap.gap)
        if math.isnan(largest):
            return "not measured (a group has no rows)"
        if largest <= self.slack:
            return "met"
        if not self.holds:
            return f"missed (significant at {level})"
        if self.slack == 0:
            return f"not significantly different from 0 at {level}"
        return f"exceeded, but not significantly at {level}"

    def __str__(self) -> str:
        low, high = self.accuracy_interval
        lines = [
            f"{self.constraint} on {self.rows} rows ({self.source}), intervals at {100 * self.level:g} %",
            f"accuracy {self.accuracy:.4f} [{low:.4f}, {high:.4f}]",
            "",
            table(
                ["group", "rows", "accuracy", *(_heading(event) for event in self.groups[0].rates)],
                [
                    [
                        group.name, str(group.rows), f"{group.accuracy:.4f}",
                        *(f"{group.rates[e]:.4f} [{i[0]:.4f}, {i[1]:.4f}]" for e, i in group.intervals.items()),
                    ]
                    for group in self.groups
                ],
            ),
        ]  # fmt: skip
        if self.gaps:
            heads = ["gap", "second − first", "interval"]
            rows = [
                [f"{gap.second} − {gap.first}" + ("" if gap.event == "all" else f", {gap.event}"),
                 f"{gap.gap:+.4f}", f"[{gap.low:+.4f}, {gap.high:+.4f}]"]
                for gap in self.gaps
            ]  # fmt: skip
            lines += ["", table(heads, rows), f"|gap| ≤ {self.slack:g}: {self._verdict}"]
        if self.curve:
            rows = [[f"{slack:.4f}", f"{accuracy:.4f}", f"{gap:.4f}"] for slack, accuracy, gap in self.curve]
            lines += ["", "trade-off by slack ε (closed form):", table(["ε", "accuracy", "largest gap"], rows)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The report as a dictionary."""
        plain = {key: value for key, value in asdict(self).items() if key != "rows_seen"}
        return plain | {"holds": self.holds}

    def to_json(self) -> str:
        """The report as JSON; rates without rows are null."""
        return json.dumps(_finite(self.to_dict()), indent=2, ensure_ascii=False)

    def metric_frame(self) -> Any:
        """fairlearn's `MetricFrame` of accuracy and selection rate by group; needs fairlearn."""
        try:
            from fairlearn.metrics import MetricFrame, selection_rate
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("metric_frame() needs fairlearn: pip install fairlearn") from error
        from sklearn.metrics import accuracy_score

        decisions, labels, groups = self.rows_seen
        return MetricFrame(
            metrics={"accuracy": accuracy_score, "selection_rate": selection_rate},
            y_true=labels, y_pred=decisions.astype(int), sensitive_features=groups,
        )  # fmt: skip

    def plot(self, path: str | Path) -> None:
        """Plot the rates with their intervals, and the trade-off curve, to a PNG file."""
        count = 2 if self.curve else 1
        figure, panels = grid(count, 5.4, 3.8, columns=count)
        left = panels[0]
        events = list(self.groups[0].rates)
        for index, event in enumerate(events):
            heights = [group.rates[event] for group in self.groups]
            low = [group.rates[event] - group.intervals[event][0] for group in self.groups]
            high = [group.intervals[event][1] - group.rates[event] for group in self.groups]
            places = np.arange(len(heights)) + 0.16 * (index - (len(events) - 1) / 2)
            style = {"color": ("#0072B2", "#D55E00")[index % 2], "marker": "os"[index % 2], "capsize": 3}
            left.errorbar(places, heights, [low, high], linestyle="", label=_heading(event), **style)
        left.set_xticks(range(len(self.groups)), [f"{group.name}\n{group.rows} rows" for group in self.groups])
        left.set_xlim(-0.6, len(self.groups) - 0.4)
        left.set_ylim(bottom=0)
        left.set_ylabel("positive rate")
        if len(events) > 1:
            left.legend(frameon=False, fontsize=9)
        left.set_title(f"accuracy {self.accuracy:.4f}, {self.source}", fontsize=10)
        if self.curve:
            right = panels[1]
            _, accuracies, gaps = zip(*self.curve, strict=True)
            right.plot(gaps, accuracies, color="#555555", linewidth=1.3, marker=".", label="closed form, all slacks")
            if self.gap is not None:
                at = abs(self.gap.gap)
                right.plot(at, self.accuracy, "o", color="#D55E00", markersize=8, label="this classifier")
            right.set_xlabel("largest gap |σ|")
            right.set_ylabel("accuracy")
            right.legend(frameon=False, fontsize=9, loc="lower right")
            right.set_title("accuracy–fairness trade-off", fontsize=10)
        save(figure, Path(path))


def report(
    rates: Rates,
    decisions: NDArray[np.bool_],
    labels: Ints,
    groups: Ints,
    level: float,
    source: str,
    trade: Sequence[tuple[float, float, float]],
    slack: float,
) -> Report:
    """Compute rates and gaps with their confidence intervals.

    Bonferroni: with several gaps each interval has level 1 − (1 − level)/gaps, so that all hold jointly at `level`.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level!r}")
    cells = rates.cells(groups, labels)
    positive = np.bincount(cells[cells >= 0], decisions[cells >= 0], minlength=rates.count)
    counts = np.bincount(cells[cells >= 0], minlength=rates.count)
    at = {(e, g): i for i, (e, g) in enumerate((e, g) for e in rates.events for g in rates.groups)}
    right = decisions == (labels == 1)
    lines = []
    for number, name in enumerate(rates.groups):
        own = groups == number
        share = {e: _share(positive[at[e, name]], counts[at[e, name]]) for e in rates.events}
        spans = {e: wilson(positive[at[e, name]], int(counts[at[e, name]]), level) for e in rates.events}
        lines.append(Group(name, int(own.sum()), _share(right[own].sum(), own.sum()), share, spans))
    each = 1 - (1 - level) / max(1, len(rates.pairs))
    gaps = []
    for event, first, second in rates.pairs:
        a, b = ((float(positive[at[event, g]]), int(counts[at[event, g]])) for g in (first, second))
        low, high = newcombe(a, b, each)
        gaps.append(Gap(event, first, second, _share(*b) - _share(*a), low, high))
    return Report(
        constraint=rates.constraint,
        source=source,
        slack=float(slack),
        level=level,
        rows=len(labels),
        accuracy=float(right.mean()),
        accuracy_interval=wilson(float(right.sum()), len(right), level),
        groups=tuple(lines),
        gaps=tuple(gaps),
        curve=tuple(trade),
        rows_seen=(decisions, labels, np.array(rates.groups)[groups]),
    )


def curve(
    rates: Rates, positive: Floats, chances: Floats, cells: Ints, labels: Ints
) -> tuple[tuple[float, float, float], ...]:
    """(ε, accuracy, largest gap) of the closed-form rule for slacks from ε = 0 to the unconstrained gap."""
    free = float(np.nanmax(np.abs(rates.gaps(positive > 0.5, cells))))
    points = []
    for slack in np.linspace(0.0, free, POINTS):
        decisions = solve(rates, positive, chances, cells, float(slack)).decide(positive, chances)
        gap = float(np.nanmax(np.abs(rates.gaps(decisions, cells))))
        points.append((float(slack), float((decisions == (labels == 1)).mean()), gap))
    return tuple(points)


def _heading(event: str) -> str:
    return "positive rate" if event == "all" else f"positive rate, {event}"


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
