"""Public data that is not shipped with `ldf`: read from a local folder or the cache, or downloaded once.

A file is looked up in the folder given by the environment variable LDF_DATA_DIR, then in the user's cache; if it is in
neither, it is downloaded from its public source. Its SHA-256 is checked in every case.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from .text import write_whole

MATGAS = "https://raw.githubusercontent.com/lanl-ansi/GasModels.jl/{commit}/examples/data/matgas"
GASLIB = "https://raw.githubusercontent.com/kaarthiksundar/GasLib/9fc48780/data"
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
CREDIT = (
    "https://raw.githubusercontent.com/kevin-shu/NTNU-107-2_ML_final_assignment/"
    "0bac25bf8237f0fbf8cf0aac21b9b626cc3582e1/data/UCI_Credit_Card.csv"
)
BALANCED = "https://raw.githubusercontent.com/Lexie88rus/bank-marketing-analysis/master/bank.csv"


class DataError(ValueError):
    """Data is missing or has the wrong checksum; the message names the places searched."""


@dataclass(frozen=True)
class Source:
    """Source of a data file.

    Args:
        url: public address of the file, or of a zip archive that contains it.
        sha256: checksum of the file as stored locally.
        licence: licence of the data.
        member: name of the file inside the zip archive at `url`; empty if `url` is the file itself.
        newlines: whether lines end with CR or CRLF in the copy at `url`; they are stored with LF.
    """

    url: str
    sha256: str
    licence: str
    member: str = ""
    newlines: bool = False


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
    "fairness/adult.data": Source(
        f"{UCI}/adult/adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "UCI 2, CC BY 4.0 (Becker and Kohavi 1996)",
    ),
    "fairness/adult.test": Source(
        f"{UCI}/adult/adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        "UCI 2, CC BY 4.0 (Becker and Kohavi 1996)",
    ),
    "fairness/default-of-credit-card-clients.csv": Source(
        CREDIT,
        "8db18e47be05d9289a92dcb6583e320576d35d18364b5a46673444ce7524d861",
        "UCI 350, CC BY 4.0 (Yeh 2009)",
        newlines=True,
    ),
    "fairness/bank-additional-full.csv": Source(
        f"{UCI}/00222/bank-additional.zip",
        "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
        "UCI 222, CC BY 4.0 (Moro et al. 2014)",
        member="bank-additional/bank-additional-full.csv",
    ),
    "fairness/bank-balanced.csv": Source(
        BALANCED,
        "c25bf6ac8ef9e37119427fce9a32923baf57cb466ca27b34b2c930e88035d2fe",
        "a selection of UCI 222, CC BY 4.0 (Moro et al. 2014)",
        newlines=True,
    ),
}
"""All data files, by their name in LDF_DATA_DIR and in the cache."""


def locate(name: str) -> Path:
    """Path of a file in `SOURCES`, downloaded if necessary; its checksum is verified."""
    if name not in SOURCES:
        raise DataError(f"unknown data file {name!r}; available: {', '.join(sorted(SOURCES))}")
    source = SOURCES[name]
    own = os.environ.get("LDF_DATA_DIR", "")
    path = Path(own).expanduser() / name
    if not own or not path.is_file():
        return _fetch(name, source, f"LDF_DATA_DIR ({own or 'not set'})")
    found = _sha256(path.read_bytes())
    if found != source.sha256:
        raise DataError(f"{path} is not a copy of {source.url}: its SHA-256 is {found}, expected {source.sha256}")
    return path


def _fetch(name: str, source: Source, own: str) -> Path:
    """Read from the cache, or download from the public source into the cache."""
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise DataError(
            f"{name} is not in {own}, and pooch, which is needed to download it from {source.url}, is not installed: "
            f"pip install 'ldf[{name.partition('/')[0]}]'"
        ) from error
    cache = Path(pooch.os_cache("ldf"))
    try:
        if source.member or source.newlines:
            return _fetch_part(cache / name, source)
        found = pooch.retrieve(
            source.url,
            known_hash=f"sha256:{source.sha256}",
            fname=Path(name).name,
            path=cache / Path(name).parent,
            progressbar=False,
        )
    except (OSError, ValueError) as error:  # no connection, request refused, or wrong checksum
        raise DataError(
            f"{name} is neither in {own} nor, undamaged, in the cache ({cache}), and could not be downloaded from "
            f"{source.url}: {' '.join(str(error).split())}"
        ) from error
    return Path(found)


def _fetch_part(path: Path, source: Source) -> Path:
    """Download a file that is stored in another form, and check the stored form."""
    import pooch

    if path.is_file() and _sha256(path.read_bytes()) == source.sha256:
        return path
    download = io.BytesIO()
    pooch.HTTPDownloader()(source.url, download, None)
    content = _part(download.getvalue(), source)
    found = _sha256(content)
    if found != source.sha256:
        raise ValueError(f"the SHA-256 of {source.member or path.name} is {found}, expected {source.sha256}")
    write_whole(path, content)
    return path


def _part(content: bytes, source: Source) -> bytes:
    """Extract the file from the download and normalise its newlines."""
    if source.member:
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read(source.member)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:  # damaged, not a zip, or member missing
            raise ValueError(f"{source.member} cannot be extracted: {error.args[0]}") from error
    if source.newlines:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
