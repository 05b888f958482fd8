"""Built-in gas networks, and the reader for each file format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..io.data import locate
from ..proxies.source import NetworkError, read_text
from . import document, gaslib, matgas
from .network import GASLIB, PSI, Network

PIPES = """
1-2:100C 2-3:30s 3-4:5sC 4-5:15s 5-6:10s 5-7:5s 7-8:10s 2-9:5C 9-10:60 10-11:5s 11-12:8s 11-13:6s 10-14:80 14-15:10C
15-16:20 16-17:3s 17-18:6s 16-19:5s 15-20:40 20-21:5C 21-22:20 22-23:5 23-24:16 22-25:8s
"""
"""The 24-pipe network, arcs as from-to:km; s: diameter 0.635 m instead of 0.9144 m; C: a compressor at the inlet.

Data of the 24-pipe benchmark (Zlotnik et al.; Mak et al., Dynamic Compressor Optimization in Natural Gas Pipeline
Systems), as in GasModels.jl.
"""

DEMANDS = {6: 25.153, 8: 16.469, 12: 23.956, 13: 13.475, 18: 20.362, 19: 17.967, 24: 23.955, 25: 22.458}
"""Demand in kg/s by junction of the 24-pipe network."""


def _pipes24() -> Network:
    arcs = []
    for k, word in enumerate(PIPES.split(), 1):
        ends, _, rest = word.partition(":")
        first, last = ends.split("-")
        diameter = 0.635 if "s" in rest else 0.9144
        row = {"id": str(k), "from": first, "to": last, "length": 1000 * float(rest.rstrip("sC"))}
        row |= {"diameter": diameter, "friction": 0.01}
        arcs.append(row | ({"compressor": [1.0, 2.0]} if "C" in rest else {}))
    limits = {"p_min": 500 * PSI, "p_max": 800 * PSI}
    return document.parse(
        {
            "format": document.FORMAT,
            "name": "24-pipe",
            "sound_speed": 377.968,
            "gamma": 1.4,
            "slack": {"junction": "1", "pressure": 500 * PSI},
            "junctions": [{"id": str(i), **limits, "demand": DEMANDS.get(i, 0.0)} for i in range(1, 26)],
            "arcs": arcs,
            "assumptions": [
                "junction 1 is held at 500 psi, its lower limit, and is the only supply",
                "compressors raise the pressure by a factor of up to 2 (with a limit of 1.4, a quarter of the demands "
                "within ±20 % cannot be met); pressure at a compressor outlet, inside its pipe, is limited only by R",
                "compressor efficiency μ = 1; it only scales the objective",
            ],
        },
        "24-pipe",
    )


def _matgas_of_gaslib(file: str, name: str) -> Network:
    assumed = replace(GASLIB, density=0.785)
    return matgas.parse(read_text(locate(f"gas/{file}")), name, file, assumed)


NETWORKS: dict[str, Callable[[], Network]] = {
    "24-pipe": _pipes24,
    "gaslib-40": lambda: _matgas_of_gaslib("gaslib-40-E.m", "gaslib-40"),
    "gaslib-135": lambda: _matgas_of_gaslib("gaslib-135-F.m", "gaslib-135"),
}
"""Built-in networks by name."""


def load(network: str | Path) -> Network:
    """Load a network by name or from a file: MATGAS (.m), GasLib (.net or .zip, with its .scn) or ldf's own (.json).

    >>> load("24-pipe")
    Network(24-pipe: 25 junctions, 24 arcs, 5 compressors)
    """
    if network in NETWORKS:
        return NETWORKS[str(network)]()
    path = Path(network)
    readers = {".m": matgas.read, ".net": gaslib.read, ".zip": gaslib.read, ".json": document.read}
    if path.suffix.lower() in readers:
        return readers[path.suffix.lower()](path)
    raise NetworkError(
        f"{str(network)!r} is neither a network ({', '.join(NETWORKS)}) nor a file (.m, .net, .zip or .json)"
    )
