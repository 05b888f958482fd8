"""Problems with solution and multipliers in closed form, and small data sets for other tests.

A problem min f(x) subject to σ(x) ≤ 0 or = 0 is a model that ignores its input and predicts its only parameter x.
"""

from __future__ import annotations

import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

import ldf
from ldf import examples
from ldf.core.samplers import epoch_generator, shuffled


class Point(nn.Module):
    """Predicts x for any input."""

    def __init__(self, start: tuple[float, ...]) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(len(inputs), -1)


@dataclass(frozen=True)
class Problem:
    """min f(x) s.t. σ(x) ≤ 0, or = 0; x* and λ* of each constraint; x* is None if no point is feasible."""

    name: str
    objective: Callable[[Tensor], Tensor]
    kinds: dict[str, str]
    sigmas: dict[str, Callable[[Tensor], Tensor]]
    start: tuple[float, ...]
    solution: tuple[float, ...] | None
    multipliers: dict[str, float] = field(default_factory=dict)

    def constraints(self, degree: str = "violation") -> list[ldf.Constraint]:
        make = {"inequality": ldf.inequality, "equality": ldf.equality}
        return [
            make[self.kinds[name]](name, lambda y, batch, sigma=sigma: sigma(y)[:, None], degree=degree)
            for name, sigma in self.sigmas.items()
        ]

    def loss(self, predictions: Tensor, targets: Tensor) -> Tensor:
        return self.objective(predictions).mean()

    def solve(self, dual: ldf.Dual | None, degree: str = "violation", epochs: int = 400, lr: float = 0.05) -> ldf.Fit:
        rows = torch.zeros(16, 1, dtype=torch.float64)
        return ldf.fit(
            Point(self.start),
            (rows, rows),
            loss=self.loss,
            constraints=self.constraints(degree),
            dual=dual,
            epochs=epochs,
            batch_size=4,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
            schedule="cosine",
            progress=False,
        )


PROBLEMS = [
    # min ½‖x − (2, 1)‖²: the sum is active, x₁ ≤ 3 is not.
    Problem(
        "qp",
        lambda y: 0.5 * ((y - torch.tensor([2.0, 1.0], dtype=y.dtype)) ** 2).sum(1),
        {"sum": "inequality", "loose": "inequality"},
        {"sum": lambda y: y.sum(1) - 2, "loose": lambda y: y[:, 0] - 3},
        (0.0, 0.0),
        (1.5, 0.5),
        {"sum": 0.5, "loose": 0.0},
    ),
    # min ½‖x‖² on a line: x = −λ a.
    Problem(
        "line",
        lambda y: 0.5 * (y**2).sum(1),
        {"line": "equality"},
        {"line": lambda y: y[:, 0] + 2 * y[:, 1] - 5},
        (0.0, 0.0),
        (1.0, 2.0),
        {"line": -1.0},
    ),
    # min x₁ + x₂ on a circle, a nonconvex feasible set: 1 + 2λx = 0.
    Problem(
        "circle",
        lambda y: y.sum(1),
        {"circle": "equality"},
        {"circle": lambda y: (y**2).sum(1) - 2},
        (-0.5, -1.2),
        (-1.0, -1.0),
        {"circle": 0.5},
    ),
    # x ≥ 1 and x ≤ −1.
    Problem(
        "infeasible",
        lambda y: 0.5 * (y**2).sum(1) + 1,
        {"above": "inequality", "below": "inequality"},
        {"above": lambda y: 1 - y[:, 0], "below": lambda y: y[:, 0] + 1},
        (0.3,),
        None,
    ),
]

RULES: dict[str, ldf.Dual] = {
    "ascent": ldf.Ascent(0.05),
    "literal": ldf.Ascent(0.02, normalise=False, reduce="mean"),
    "nupi": ldf.NuPI(0.05),
    "augmented": ldf.Augmented(),
    "adam": ldf.Adam(0.02),
    "balanced": ldf.Balanced(),
    "fixed": ldf.Fixed(2.0),
}


def dispatch(rows: int = 512, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Data for a load shared by four units."""
    return examples.dispatch(rows, seed=seed)


def dispatch_constraints(**options: object) -> list[ldf.Constraint]:
    return [
        ldf.inequality("capacity", lambda y, batch: y - batch.inputs[:, :4], **options),
        ldf.equality("balance", lambda y, batch: y.sum(1, keepdim=True) - batch.inputs.sum(1, keepdim=True), **options),
    ]


def every_scope(rows: int) -> list[ldf.Constraint]:
    """Constraints on samples, pairs and groups, for a data set of this many rows."""
    generator = torch.Generator().manual_seed(3)
    pairs = ldf.Pairs(torch.randint(0, rows, (2 * rows, 2), generator=generator))
    group = (torch.rand(rows, generator=generator) < 0.2).long()
    return [
        *dispatch_constraints(),
        ldf.inequality("bound", lambda y, b: y - 0.5, multiplier="column", degree="satisfiability", slack=0.05),
        ldf.equality("own", lambda y, b: y[:, :1] - y[:, 1:2], multiplier="sample"),
        ldf.inequality("monotone", lambda y, p: y[0] - y[1], scope=pairs, multiplier="sample"),
        ldf.equality("parity", lambda y, b: y[:, :1], scope=ldf.Groups(group)),
    ]


def network(inputs: int = 5, outputs: int = 4, width: int = 32) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


def algorithm_1(
    data: tuple[Tensor, Tensor], step: float, epochs: int, free: Iterator[Tensor] | None = None
) -> tuple[Tensor, float, float]:
    """The paper's loop in plain torch, on the constraints of dispatch: the weights, and λ of capacity and balance.

    `free` has the unlabelled rows of every step.
    """
    inputs, targets = data
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    capacity = balance = 0.0
    for epoch in range(epochs):
        sums = [0.0, 0.0]
        for rows in shuffled(torch.arange(len(inputs)), 32, epoch_generator(0, epoch)):
            x = inputs[rows] if free is None else torch.cat([inputs[rows], next(free)])
            y = model(x)
            g, h = (y - x[:, :4]).clamp_min(0).mean(1), (y.sum(1) - x.sum(1)).abs()
            loss = nn.functional.mse_loss(y[: len(rows)], targets[rows]) + capacity * g.mean() + balance * h.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums = [sums[0] + float(g.detach().sum()), sums[1] + float(h.detach().sum())]
        capacity, balance = capacity + step * sums[0], balance + step * sums[1]
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), capacity, balance


def kill_after_checkpoint(file: Path, delay: float, script: str, *arguments: str) -> bool:
    """Run a script of this folder, kill it shortly after a new checkpoint, and return whether the kill ended it."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    child = subprocess.Popen([sys.executable, str(Path(__file__).with_name(script)), *arguments])
    limit = time.monotonic() + 120
    while child.poll() is None and time.monotonic() < limit:
        if file.exists() and file.stat().st_mtime_ns != before:
            time.sleep(delay)
            break
        time.sleep(0.002)
    if child.poll() is None:
        child.send_signal(signal.SIGKILL)
    return child.wait() == -signal.SIGKILL


def changed(text: str, table: str, row: int, values: dict[int, object]) -> str:
    """A MATLAB file with other values in some columns, counted from 0, of a table's row, counted from 1."""
    head, body, tail = re.split(rf"(?<={re.escape(table)} = \[\n)(.*?)(?=\];)", text, maxsplit=1, flags=re.DOTALL)
    lines = body.splitlines()
    cells = lines[row - 1].partition(";")[0].split()
    for column, value in values.items():
        cells[column] = str(value)
    lines[row - 1] = "    " + "  ".join(cells) + ";"
    return head + "\n".join(lines) + "\n" + tail


def size_of(png: Path) -> tuple[int, int]:
    """Width and height of a complete PNG file."""
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def refused(done: subprocess.CompletedProcess, reason: str) -> None:
    """Check for exit code 1 and one line on standard error that contains the reason."""
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("ldf: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert reason in done.stderr
    assert not done.stdout
