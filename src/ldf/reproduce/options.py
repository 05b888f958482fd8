"""Options of the command line, and the defaults of each table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .published import FIGURES

if TYPE_CHECKING:  # fairness and transprecision run without the packages of networks
    from ..proxies.data.sampling import Mode

NETWORKS = ("power-errors", "gas-errors", "violations")
"""The tables on power and gas networks."""
FAIR = ("fairness", "relaxed-fairness", "fairness-traces")
"""The tables on fair classifiers."""
TABLES = (*NETWORKS, "transprecision", *FAIR)
"""All tables, by their name on the command line."""

BOTH = ("paper", "tuned")
PANELS = ("adult-sex", "default-sex", "bank-balanced-age")
"""One variant of each of the paper's data sets: the one that its results agree with."""

USUAL: Mapping[str, Mapping[str, Any]] = {
    **{name: {"samplings": ("shared", "independent"), "repairs": 100} for name in NETWORKS},
    "transprecision": {
        "cases": tuple(FIGURES["transprecision"]), "kernels": ("correlation",), "recipes": BOTH, "seeds": 10,
    },
    **{name: {"cases": PANELS, "recipes": BOTH, "seeds": 5} for name in FAIR},
    "fairness": {"cases": tuple(FIGURES["fairness"]), "recipes": BOTH, "seeds": 5},
}  # fmt: skip
"""Defaults by table."""
QUICK: Mapping[str, Mapping[str, Any]] = {
    **{name: {"samplings": ("shared",), "samples": 100, "seeds": 2, "epochs": 6, "repairs": 5} for name in NETWORKS},
    "transprecision": {"seeds": 2, "epochs": 20},
    **{name: {"cases": PANELS, "seeds": 2, "epochs": 2} for name in FAIR},
}
"""Defaults with --quick, where they differ."""

LABELS, SEEDS = 4000, 5
"""Labels per network and networks per model, with the exceptions below."""
FEWER_LABELS: dict[tuple[str, str], int] = {("case300_ieee", "independent"): 1000}
"""By case and sampling: 4000 labels would take hours."""
FEWER_SEEDS: dict[tuple[str, str], int] = {("case300_ieee", "paper"): 3}
"""By case and recipe: five seeds would take hours."""


@dataclass(frozen=True)
class Options:
    """What to run and where; an empty value, 0 or None means the default.

    Args:
        table: name of a table, or "all".
        out: folder of the report.
        work: folder of labels, networks and cells, which tables may share.
        cases: networks, sizes of training sets (transprecision) or variants (fairness).
        kernels: kernels of transprecision.
        samplings: how demands of networks are sampled.
        samples: labels per network.
        epochs: number of epochs; by default the recipe's.
        seeds: networks per model, training sets (transprecision) or folds (fairness).
        repairs: number of test rows to repair.
        quick: whether to use few labels, epochs and seeds; not for comparison.
    """

    table: str
    out: Path
    work: Path
    cases: Sequence[str] = ()
    kernels: Sequence[str] = ()
    samplings: Sequence[Mode] = ()
    recipes: Sequence[str] = ()
    samples: int | None = None
    epochs: int | None = None
    seeds: int = 0
    repairs: int = 0
    quick: bool = False
    workers: int | None = None
    progress: bool | None = None

    def of(self, table: str, cases: Sequence[str]) -> Options:
        """The options of one table, with its defaults filled in."""
        own = replace(self, table=table, cases=cases)
        usual = {**USUAL[table], **(QUICK[table] if self.quick else {})}
        return replace(own, **{name: value for name, value in usual.items() if not getattr(own, name)})

    def recipes_of(self, mode: Mode) -> Sequence[str]:
        """Recipes for networks: by default both; for independent demands, which the paper does not have, tuned only."""
        return self.recipes or (BOTH if mode == "shared" else ("tuned",))

    def labels_of(self, case: str, mode: Mode) -> int:
        """Number of labels of a network."""
        return self.samples or FEWER_LABELS.get((case, mode), LABELS)

    def seeds_of(self, case: str, recipe: str) -> int:
        """Number of networks per model."""
        return self.seeds or FEWER_SEEDS.get((case, recipe), SEEDS)
