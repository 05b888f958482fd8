"""Pages in a real browser: headless Chromium opens a copy of a page, runs a script in it and returns the results.

The copy is shown in a frame, which can be narrower than the narrowest window. Network requests are blocked and count
as errors.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
    "--virtual-time-budget=10000",
)  # fmt: skip
SECONDS = 120
"""Time limit for a browser."""

# Short: the page's <meta charset> has to stay within its first 1024 bytes.
FIRST = """<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"><script>
window.wrong = [];
addEventListener("error", e => wrong.push(e.message || "not loaded: " + e.target.outerHTML.slice(0, 99)), true);
addEventListener("unhandledrejection", e => wrong.push(String(e.reason)));
addEventListener("securitypolicyviolation", e => wrong.push("fetched: " + (e.blockedURI || e.violatedDirective)));
</script>"""
LAST = """<script>addEventListener("load", async () => {
  let found = null;
  try { found = await (async () => { %s })(); } catch (error) { wrong.push(String(error)); }
  await new Promise(done => setTimeout(done, 50));
  parent.postMessage(JSON.stringify({found, wrong}), "*");
});</script>"""
FRAME = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>frame</title><link rel="icon" href="data:,"><style>body { margin: 0 } iframe { border: 0 }</style>
<script>addEventListener("message", event => { document.getElementById("seen").textContent = event.data; });</script>
</head><body><iframe src="page.html" width="%d" height="%d"></iframe><pre id="seen"></pre></body></html>"""


@dataclass(frozen=True)
class Seen:
    """Result of opening a page in a browser."""

    found: Any
    """Return value of the script."""
    errors: list[str]
    """Exceptions, failed or blocked requests, and every line of the console."""


def chromium() -> str:
    """Path of the browser; skips the test if none is installed."""
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")


def look(page: Path, script: str, width: int = 1500, height: int = 900, dark: bool = False) -> Seen:
    """Open a page and run a script in it once it is loaded.

    Args:
        script: JavaScript, the body of an async function; its return value must be serialisable as JSON.
        width: width of the page in pixels.
        dark: whether to use dark mode.
    """
    text = page.read_text(encoding="utf-8")
    assert text.count("<head>") == text.count("</body>") == 1, f"{page} is not a complete page"
    head, body = text.split("<head>")
    body, end = body.split("</body>")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        copy, frame = Path(folder) / "page.html", Path(folder) / "frame.html"
        copy.write_text(f"{head}<head>{FIRST}{body}{LAST.replace('%s', script)}</body>{end}", encoding="utf-8")
        frame.write_text(FRAME % (width, height), encoding="utf-8")
        options = [f"--user-data-dir={folder}/profile", f"--window-size={max(width, 800)},{height + 200}"]
        options += ["--blink-settings=preferredColorScheme=0"] if dark else []
        dom, log = _run([chromium(), *FLAGS, *options, "--dump-dom", frame.as_uri()])
    console = re.findall(r"^\[[^\]]*\bCONSOLE\b[^\]]*\] (.*)$", log, re.MULTILINE)
    answer = re.search(r'<pre id="seen">(.+)</pre>', dom, re.DOTALL)
    if answer is None:
        pytest.fail(f"{page} did not answer\n{console}\n{log[-2000:]}", pytrace=False)
    seen = json.loads(unescape(answer[1]))
    return Seen(seen["found"], [*seen["wrong"], *console])


def _run(command: Sequence[str]) -> tuple[str, str]:
    """Standard output and standard error of a program that starts several processes."""
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True
    )
    try:
        return child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        _, log = child.communicate()
        pytest.fail(f"the browser did not finish within {SECONDS} s\n{log[-2000:]}", pytrace=False)


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio of two colours in the form rgb(…), from 1 to 21.

    >>> contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)"), round(contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)"), 2)
    (21.0, 4.48)
    """
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    found = re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", colour)
    assert found, f"{colour!r} is not an opaque colour"
    shares = [int(part) / 255 for part in found.groups()]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
