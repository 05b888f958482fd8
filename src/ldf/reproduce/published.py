"""All values that the paper prints for its models."""

from __future__ import annotations

from collections.abc import Mapping

MODELS = ("M", "MC", "MCD", "Zafar")
"""The columns of its tables; only the tables on fair classifiers have the last one."""
SLACKS = (0.05, 0.2, 0.5)
"""The columns of Table 8, which has M_C^D only: ε as a fraction of the labels' own gap."""

_ADULT = {"accuracy": (0.8423, 0.8333, 0.8335, 0.7328), "DT": (0.1853, 0.0627, 0.0545, 0.1037)}
_DEFAULT = {"accuracy": (0.8160, 0.8182, 0.8166, 0.6304), "DT": (0.0162, 0.0216, 0.0101, 0.0109)}
_BANK = {"accuracy": (0.8257, 0.7744, 0.8135, 0.7860), "DT": (0.4465, 0.4515, 0.1216, 0.0363)}
_FAIRNESS = {
    "adult-sex": _ADULT,
    "adult-race": _ADULT,
    "default-sex": _DEFAULT,
    "bank-balanced-age": _BANK,
    "bank-full-age": _BANK,
}
_ADULT_RELAXED = {"accuracy": (0.8336, 0.8339, 0.8358), "DT": (0.0567, 0.0586, 0.0812)}
_DEFAULT_RELAXED = {"accuracy": (0.8164, 0.8162, 0.8159), "DT": (0.0073, 0.0087, 0.0092)}
_BANK_RELAXED = {"accuracy": (0.8161, 0.8215, 0.8251), "DT": (0.1556, 0.2437, 0.3372)}

FIGURES: Mapping[str, Mapping[str, Mapping[str, tuple[float, ...]]]] = {
    # Table 1, %
    "power-errors": {
        "case30_ieee": {
            "p": (3.3465, 0.3052, 0.0055),
            "v": (14.699, 0.3130, 0.0070),
            "theta": (4.3130, 0.0580, 0.0041),
            "pf": (27.213, 0.2030, 0.0620),
        },
        "case118_ieee": {
            "p": (0.2150, 0.0380, 0.0340),
            "v": (7.1520, 0.1170, 0.0290),
            "theta": (4.2600, 1.2750, 0.2070),
            "pf": (38.863, 0.6640, 0.4550),
        },
        "case300_ieee": {
            "p": (0.0838, 0.0174, 0.0126),
            "v": (28.025, 3.1130, 0.0610),
            "theta": (12.137, 7.2330, 2.5670),
            "pf": (125.47, 26.905, 1.1360),
        },
    },
    # Table 2, %
    "gas-errors": {
        "24-pipe": {"R": (0.0052, 0.0079, 0.0025), "p": (0.0057, 0.0068, 0.0057), "q": (0.0029, 0.0592, 0.0007)},
        "gaslib-40": {"R": (0.0009, 0.0103, 0.0006), "p": (0.0011, 0.0025, 0.0006), "q": (0.0006, 0.0329, 0.0004)},
        "gaslib-135": {"R": (0.0206, 0.0317, 0.0199), "p": (0.0260, 0.0209, 0.0225), "q": (0.0223, 0.0572, 0.0222)},
    },
    # Table 3, %
    "violations": {
        "case30_ieee": {"pg": (2.0793, 0.1815, 0.0007), "v": (83.138, 0.0944, 0.0037)},
        "case118_ieee": {"pg": (0.1071, 0.0043, 0.0038), "v": (3.4391, 0.0956, 0.0866)},
        "case300_ieee": {"pg": (0.0447, 0.0091, 0.0084), "v": (31.698, 0.2383, 0.1994)},
        "24-pipe": {"R": (0.1012, 0.1033, 0.0897)},
        "gaslib-40": {"R": (0.0303, 0.0277, 0.0207)},
        "gaslib-135": {"R": (0.0322, 0.0264, 0.0005)},
    },
    # Table 4, by size of the training sets; MAE and SMVC on the scale 10^(−y), VC in pairs
    "transprecision": {
        "200": {"MAE": (0.1902, 0.1919, 0.1883), "VC": (9.6, 35.8, 7.4), "SMVC": (0.2229, 0.4748, 0.1872)},
        "400": {"MAE": (0.1765, 0.1999, 0.1763), "VC": (4.5, 19.4, 2.6), "SMVC": (0.0804, 0.2149, 0.0369)},
        "600": {"MAE": (0.1687, 0.2022, 0.1723), "VC": (2.5, 9.1, 1.7), "SMVC": (0.0397, 0.0683, 0.0224)},
        "800": {"MAE": (0.1672, 0.2007, 0.1704), "VC": (3.0, 8.5, 0.6), "SMVC": (0.0600, 0.0746, 0.0131)},
        "1000": {"MAE": (0.1640, 0.2012, 0.1642), "VC": (0.4, 5.7, 0.5), "SMVC": (0.0048, 0.0511, 0.0043)},
    },
    # Table 5
    "fairness": _FAIRNESS,
    # Figure 1, whose lines end at the values of Table 5
    "fairness-traces": _FAIRNESS,
    # Table 8
    "relaxed-fairness": {
        "adult-sex": _ADULT_RELAXED,
        "adult-race": _ADULT_RELAXED,
        "default-sex": _DEFAULT_RELAXED,
        "bank-balanced-age": _BANK_RELAXED,
        "bank-full-age": _BANK_RELAXED,
    },
}
"""By table, case and quantity, one value for each of `MODELS`, or for each of `SLACKS`. GasLib's networks take the
place of the paper's 40-pipe and 135-pipe; all variants of a data set are compared with the same values."""


def figure(table: str, case: str, model: str, quantity: str, slack: float | None = None) -> float | None:
    """The paper's value, or None.

    >>> figure("power-errors", "case30_ieee", "MCD", "p"), figure("relaxed-fairness", "adult-sex", "MCD", "DT", 0.5)
    (0.0055, 0.0812)
    """
    values = FIGURES.get(table, {}).get(case, {}).get(quantity, ())
    if slack is None:
        return dict(zip(MODELS, values, strict=False)).get(model)
    return dict(zip(SLACKS, values, strict=True)).get(slack) if values and model == "MCD" else None
