"""What is asked for on the command line, and what each table takes where nothing is asked for."""

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
"""All of them, by their name on the command line."""

BOTH = ("paper", "tuned")
PANELS = ("adult-sex", "default-sex", "bank-balanced-age")
"""One variant of each of the paper's data sets, those that its own figures are of."""

USUAL: Mapping[str, Mapping[str, Any]] = {
    **{name: {"samplings": ("shared", "independent"), "repairs": 100} for name in NETWORKS},
    "transprecision": {
        "cases": tuple(FIGURES["transprecision"]), "kernels": ("correlation",), "recipes": BOTH, "seeds": 10,
    },
    **{name: {"cases": PANELS, "recipes": BOTH, "seeds": 5} for name in FAIR},
    "fairness": {"cases": tuple(FIGURES["fairness"]), "recipes": BOTH, "seeds": 5},
}  # fmt: skip
"""By table, what is taken where nothing is asked for."""
QUICK: Mapping[str, Mapping[str, Any]] = {
    **{name: {"samplings": ("shared",), "samples": 100, "seeds": 2, "epochs": 6, "repairs": 5} for name in NETWORKS},
    "transprecision": {"seeds": 2, "epochs": 20},
    **{name: {"cases": PANELS, "seeds": 2, "epochs": 2} for name in FAIR},
}
"""The same with --quick, where it differs."""

LABELS, SEEDS = 4000, 5
"""Of a network; fewer below."""
FEWER_LABELS: dict[tuple[str, str], int] = {("case300_ieee", "independent"): 1000}
"""By case and sampling, where 4000 would take hours."""
FEWER_SEEDS: dict[tuple[str, str], int] = {("case300_ieee", "paper"): 3}
"""By case and recipe, where five would take hours."""


@dataclass(frozen=True)
class Options:
    """What to run and where; what is empty, 0 or None takes what is usual.

    Args:
        table: its name, or "all".
        out: the folder of the report.
        work: the folder of labels, networks and cells, which tables may share.
        cases: networks, sizes of training sets (transprecision) or variants (fairness).
        kernels: of transprecision.
        samplings: of the demands of networks.
        samples: labels of a network.
        epochs: by default the recipe's own.
        seeds: networks of each kind, training sets (transprecision) or folds (fairness).
        repairs: test rows to repair.
        quick: a look only.
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
        """The options of one table, with what is usual for it and was not asked for."""
        own = replace(self, table=table, cases=cases)
        usual = {**USUAL[table], **(QUICK[table] if self.quick else {})}
        return replace(own, **{name: value for name, value in usual.items() if not getattr(own, name)})

    def recipes_of(self, mode: Mode) -> Sequence[str]:
        """Of networks, by default both; of independent demands, which the paper does not have, ours alone."""
        return self.recipes or (BOTH if mode == "shared" else ("tuned",))

    def labels_of(self, case: str, mode: Mode) -> int:
        """How many labels a network has; by default as many as can be had in reasonable time."""
        return self.samples or FEWER_LABELS.get((case, mode), LABELS)

    def seeds_of(self, case: str, recipe: str) -> int:
        """How many networks of each kind there are; by default five, fewer where one takes very long."""
        return self.seeds or FEWER_SEEDS.get((case, recipe), SEEDS)
