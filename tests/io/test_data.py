"""Public data: LDF_DATA_DIR, then the cache, then the source; a file with a wrong checksum is never used."""

import hashlib
import http.server
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pooch
import pytest

from ldf.io.data import SOURCES, DataError, Source, locate

NAME = "gas/small.m"
CONTENT = b"mgc.units = 'si';\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NOWHERE = "http://127.0.0.1:9/small.m"


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT at /small.m and counts the requests."""

    served = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/small.m"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.served += 1
        self.send_response(200 if self.path == "/small.m" else 404)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    """An empty cache, no LDF_DATA_DIR, and a file whose source is unreachable."""
    monkeypatch.delenv("LDF_DATA_DIR", raising=False)
    for proxy in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(proxy, "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setitem(SOURCES, NAME, Source(NOWHERE, DIGEST, "none"))
    return tmp_path / "cache" / "ldf"


def serve(monkeypatch, url: str, digest: str = DIGEST) -> None:
    monkeypatch.setitem(SOURCES, NAME, Source(url, digest, "none"))


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", SOURCES)
def test_every_file_has_a_source_a_checksum_and_a_licence(name: str) -> None:
    source = SOURCES[name]
    assert source.url.startswith("https://")
    assert re.fullmatch("[0-9a-f]{64}", source.sha256)
    assert source.licence


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("gas/")])
def test_gas_networks_come_from_a_fixed_commit(name: str) -> None:
    assert re.fullmatch(
        rf"https://raw\.githubusercontent\.com/[\w./-]+/[0-9a-f]{{8,40}}/.*/{Path(name).name}", SOURCES[name].url
    )


@pytest.mark.skipif("LDF_DATA_DIR" not in os.environ, reason="LDF_DATA_DIR is not set")
@pytest.mark.parametrize("name", SOURCES)
def test_files_in_ldf_data_dir_have_the_right_checksums(name: str) -> None:
    own = Path(os.environ["LDF_DATA_DIR"]) / name
    if not own.is_file():
        pytest.skip(f"{name} is not in LDF_DATA_DIR")
    assert locate(name) == own


def test_an_unknown_name_raises_with_all_names() -> None:
    with pytest.raises(DataError, match=r"unknown data file 'gas/other\.m'; available: .*gas/gaslib-40-E\.m"):
        locate("gas/other.m")


# ---------------------------------------------------------------- LDF_DATA_DIR


def test_ldf_data_dir_has_priority(tmp_path: Path, cache: Path, server: Server, monkeypatch) -> None:
    serve(monkeypatch, server.url)
    put(cache / NAME)
    own = put(tmp_path / "mine" / NAME)
    monkeypatch.setenv("LDF_DATA_DIR", str(tmp_path / "mine"))
    assert locate(NAME) == own
    assert server.served == 0


def test_ldf_data_dir_may_begin_with_the_home_folder(tmp_path: Path, cache: Path, monkeypatch) -> None:
    own = put(tmp_path / "mine" / NAME)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("LDF_DATA_DIR", "~/mine")
    assert locate(NAME) == own


def test_a_wrong_file_in_ldf_data_dir_is_refused_with_both_checksums(tmp_path: Path, cache: Path, monkeypatch) -> None:
    put(cache / NAME)
    own = put(tmp_path / "mine" / NAME, b"something else")
    monkeypatch.setenv("LDF_DATA_DIR", str(tmp_path / "mine"))
    with pytest.raises(DataError) as caught:
        locate(NAME)
    wrong = hashlib.sha256(b"something else").hexdigest()
    assert str(caught.value) == (f"{own} is not a copy of {NOWHERE}: its SHA-256 is {wrong}, expected {DIGEST}")
    assert own.read_bytes() == b"something else", "the user's file is not changed"


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_file_missing_in_ldf_data_dir_is_looked_up_in_the_cache(
    tmp_path: Path, cache: Path, monkeypatch, folder: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("LDF_DATA_DIR", str(tmp_path / folder))
    cached = put(cache / NAME)
    assert locate(NAME) == cached


def test_a_folder_with_the_name_of_the_file_is_ignored(tmp_path: Path, cache: Path, monkeypatch) -> None:
    (tmp_path / "mine" / NAME).mkdir(parents=True)
    monkeypatch.setenv("LDF_DATA_DIR", str(tmp_path / "mine"))
    cached = put(cache / NAME)
    assert locate(NAME) == cached


def test_an_empty_ldf_data_dir_counts_as_unset(tmp_path: Path, cache: Path, monkeypatch) -> None:
    put(tmp_path / NAME)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LDF_DATA_DIR", "")
    with pytest.raises(DataError, match=r"neither in LDF_DATA_DIR \(not set\)"):
        locate(NAME)


# ---------------------------------------------------------------- cache and source


def test_a_file_is_downloaded_once_and_then_cached(cache: Path, server: Server, monkeypatch) -> None:
    serve(monkeypatch, server.url)
    first = locate(NAME)
    assert first == cache / NAME
    assert first.read_bytes() == CONTENT
    assert locate(NAME) == first
    assert server.served == 1


def test_a_damaged_file_in_the_cache_is_downloaded_again(cache: Path, server: Server, monkeypatch) -> None:
    serve(monkeypatch, server.url)
    put(cache / NAME, b"half of it")
    assert locate(NAME).read_bytes() == CONTENT
    assert server.served == 1


def test_a_damaged_file_in_the_cache_is_not_used_without_its_source(cache: Path) -> None:
    put(cache / NAME, b"half of it")
    with pytest.raises(DataError, match=r"nor, undamaged, in the cache"):
        locate(NAME)


def test_a_wrong_download_is_refused_and_not_kept(cache: Path, server: Server, monkeypatch) -> None:
    serve(monkeypatch, server.url, "0" * 64)
    with pytest.raises(DataError) as caught:
        locate(NAME)
    message = str(caught.value)
    assert f"could not be downloaded from {server.url}: " in message
    assert "0" * 64 in message
    assert DIGEST in message, "both checksums"
    assert "\n" not in message
    assert files(cache) == []


def test_a_source_without_the_file_is_named(cache: Path, server: Server, monkeypatch) -> None:
    serve(monkeypatch, server.url + "x")
    with pytest.raises(DataError, match=rf"could not be downloaded from {server.url}x: 404 "):
        locate(NAME)
    assert files(cache) == []


@pytest.mark.parametrize("own", ["", "/nowhere"])
def test_without_a_source_all_searched_places_are_named(cache: Path, monkeypatch, own: str) -> None:
    monkeypatch.setenv("LDF_DATA_DIR", own)
    with pytest.raises(DataError) as caught:
        locate(NAME)
    assert str(caught.value).startswith(
        f"gas/small.m is neither in LDF_DATA_DIR ({own or 'not set'}) nor, undamaged, in the cache ({cache}), "
        f"and could not be downloaded from {NOWHERE}: "
    )
    assert not str(caught.value).endswith(": "), "and the reason is given"
    assert files(cache) == []


def test_the_cache_folder_is_ldf(cache: Path, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(pooch, "os_cache", lambda project: asked.append(project) or cache)
    put(cache / NAME)
    assert locate(NAME) == cache / NAME
    assert asked == ["ldf"]


@pytest.mark.parametrize("name", [NAME, "fairness/small.csv"])
def test_without_pooch_the_extra_is_named(cache: Path, monkeypatch, name: str) -> None:
    monkeypatch.setitem(SOURCES, name, SOURCES[NAME])
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setenv("LDF_DATA_DIR", "/nowhere")
    with pytest.raises(DataError) as caught:
        locate(name)
    assert str(caught.value) == (
        f"{name} is not in LDF_DATA_DIR (/nowhere), and pooch, which is needed to download it from {NOWHERE}, "
        f"is not installed: pip install 'ldf[{name.split('/')[0]}]'"
    )


def test_without_pooch_ldf_data_dir_is_enough(tmp_path: Path, cache: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setenv("LDF_DATA_DIR", str(tmp_path))
    own = put(tmp_path / NAME)
    assert locate(NAME) == own
