"""Public data that `ldf` does not ship: found in a folder of yours, in the cache, or fetched once and checked.

A file is looked for in the folder that the environment variable LDF_DATA_DIR names, then in the user's cache; failing
both it is downloaded from its public source. Wherever it comes from, its SHA-256 is checked.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

MATGAS = "https://raw.githubusercontent.com/lanl-ansi/GasModels.jl/{commit}/examples/data/matgas"
GASLIB = "https://raw.githubusercontent.com/kaarthiksundar/GasLib/9fc48780/data"


class DataError(ValueError):
    """Data that is nowhere, or not what it should be: the message says where it was looked for."""


@dataclass(frozen=True)
class Source:
    """Where a file comes from.

    Args:
        url: of its public source.
        sha256: of its bytes.
        licence: under which it may be used.
    """

    url: str
    sha256: str
    licence: str


SOURCES = {
    "gas/gaslib-40-E.m": Source(
        MATGAS.format(commit="a7dd437fc339807a3539771c90e4cadef765f3e5") + "/gaslib-40-E.m",
        "84230405172c743787cdc0c17633ce3546a6d3cb8c1d9aa3ab3c12d4ce8b8ef1",
        "GasModels.jl, BSD-3; numbers of GasLib, CC-BY 3.0",
    ),
    "gas/gaslib-135-F.m": Source(
        MATGAS.format(commit="1f2ee3b3025b4030bee2fabf2b260cc03c297900") + "/gaslib-135-F.m",
        "866c4b13902db7b02dcc982300e5bd2c393c80ab26db281a9b8ee6d0a3e54d64",
        "GasModels.jl, BSD-3; numbers of GasLib, CC-BY 3.0",
    ),
    "gas/GasLib-40.zip": Source(
        f"{GASLIB}/GasLib-40.zip",
        "11fa4d6b5993c6212e945c8fa58f6fa34fbeefa0d7919adeaf5ac75c08b7cb09",
        "GasLib, CC-BY 3.0 (Pfetsch et al. 2015)",
    ),
    "gas/GasLib-135.zip": Source(
        f"{GASLIB}/GasLib-135.zip",
        "8527f03d3fd6848377562097f523889cb8d4221bb4219f44dd9b513a1aa81a44",
        "GasLib, CC-BY 3.0 (Pfetsch et al. 2015)",
    ),
}
"""All files there are, by the name that they have in LDF_DATA_DIR and in the cache."""


def locate(name: str) -> Path:
    """The path of a file of `SOURCES`, fetched if it is not here yet; its content is as it should be."""
    if name not in SOURCES:
        raise DataError(f"there is no data file {name!r}; there are: {', '.join(sorted(SOURCES))}")
    source = SOURCES[name]
    own = os.environ.get("LDF_DATA_DIR", "")
    path = Path(own).expanduser() / name
    if not own or not path.is_file():
        return _fetch(name, source, f"LDF_DATA_DIR ({own or 'not set'})")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != source.sha256:
        raise DataError(
            f"{path} is not the file it should be, {source.url}: its SHA-256 is {found}, not {source.sha256}"
        )
    return path


def _fetch(name: str, source: Source, own: str) -> Path:
    """From the cache, or from its public source into the cache."""
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise DataError(
            f"{name} is not in {own}, and pooch, which would fetch it from {source.url}, is not installed: "
            "pip install 'ldf[gas]'"
        ) from error
    cache = Path(pooch.os_cache("ldf"))
    try:
        found = pooch.retrieve(
            source.url,
            known_hash=f"sha256:{source.sha256}",
            fname=Path(name).name,
            path=cache / Path(name).parent,
            progressbar=False,
        )
    except (OSError, ValueError) as error:  # no connection or a refusal; another checksum
        raise DataError(
            f"{name} is neither in {own} nor, undamaged, in the cache ({cache}), and could not be fetched from "
            f"{source.url}: {' '.join(str(error).split())}"
        ) from error
    return Path(found)
