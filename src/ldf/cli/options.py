"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

Workers = Annotated[int | None, typer.Option(min=1, help="Number of processes; all cores by default.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Number of epochs; the recipe's by default.")]


def advice(facts: Mapping[str, Any]) -> str:
    """The doctor's report of a trained model, with remedies as options of the command that trained it."""
    from ..core.doctor import Diagnosis

    longer = f"raise --epochs (here {facts['epochs']})"
    dual = "use --model MCD"
    tuned = ("use --recipe tuned",) if facts["recipe"] != "tuned" else ()
    repaired = ("rely on the repaired answers of `predict`",)
    words = {
        "longer": (longer,),
        "enforce": (dual,),
        "drop": ("use --model M, because the labels alone nearly satisfy the constraint",),
        "stronger": (dual,) if facts["model"] != "MCD" else tuned or (longer,),
        "calmer": tuned or repaired,
        "capacity": tuned,
        "decay": tuned,
        "repair": repaired,
        "relax": repaired,
        "relax one": repaired,
    }
    return str(Diagnosis.from_dict(facts["doctor"]).worded(words))
