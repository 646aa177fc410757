"""Look at the pages of a built site in a headless browser: accessibility, console, width, and what its search finds."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

HEADLESS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-sync",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-dev-shm-usage",
    ),
)
FLAGS = (*HEADLESS, "--enable-logging=stderr", "--remote-debugging-port=0")
VIEWS = (
    {"width": 1400, "theme": "light", "all": True},
    {"width": 390, "theme": "dark", "all": True},
    {"width": 1400, "theme": "dark", "all": False},
    {"width": 390, "theme": "light", "all": False},
)
MAIN = (
    *(
        "index",
        "api",
        "methods",
        "results",
        "statistics",
        "trust",
        "deploy",
        "howto/install",
        "tutorials/hospital",
    ),
    *("explanation/meritfed", "methods/scaffold", "reference/api/fit"),
)
"""Pages of each kind, which are looked at in all views; the others in two."""
VIEWER = r"""<!doctype html><title>viewer</title><body><script>
const pages = %s, views = %s, main = %s, told = [];
const shown = (frame, url) => new Promise((done) => { frame.onload = done; frame.src = url; });
const loaded = (frame, url) => new Promise((done) => {
  const script = frame.contentDocument.createElement("script");
  script.onload = done; script.src = url; frame.contentDocument.head.append(script);
});
(async () => {
  for (const view of views) {
    localStorage.setItem("theme", view.theme);
    for (const page of pages) {
      const isMain = main.includes(page);
      if (!view.all && !isMain) continue;
      if (view.width > 1000 && !isMain && /^(methods|presets|commands|reference\/api)\//.test(page)) continue;  // one template each
      const where = `${page} (${view.width}, ${view.theme})`;
      const frame = document.createElement("iframe");
      frame.style = `width: ${view.width}px; height: 900px; border: 0`;
      document.body.append(frame);
      await shown(frame, "/" + page);
      const inside = frame.contentWindow, root = frame.contentDocument.documentElement;
      if (frame.contentDocument.body.dataset.theme !== view.theme) told.push(`${where}: theme is not ${view.theme}`);
      if (root.scrollWidth > root.clientWidth) told.push(`${where}: ${root.scrollWidth} px wide`);
      await loaded(frame, "/axe.min.js");
      const found = await inside.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] });
      if (found.passes.length < 5) told.push(`${where}: axe looked at nothing`);
      for (const v of found.violations) told.push(`${where}: ${v.id}: ${v.nodes[0].html.slice(0, 200)}`);
      frame.remove();
    }
  }
  await fetch("/done", { method: "POST", body: JSON.stringify(told) });
})().catch((error) => fetch("/done", { method: "POST", body: JSON.stringify([String(error)]) }));
</script></body>"""


class Server(ThreadingHTTPServer):
    """Serves the site, the viewer and axe, and keeps what the viewer posts and what was not found."""

    def __init__(self, site: Path, axe: Path, pages: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(site)))
        self.extra = {
            "/viewer.html": (
                VIEWER
                % tuple(
                    map(json.dumps, (pages, VIEWS, [f"{page}.html" for page in MAIN]))
                )
            ).encode(),
            "/axe.min.js": axe.read_bytes(),
            "/favicon.ico": b"",
        }
        self.missing: list[str] = []
        self.told: list[str] | None = None
        self.done = threading.Event()


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path not in self.server.extra:
            return super().do_GET()
        self.send_response(200)
        self.send_header(
            "Content-Type",
            "text/html" if self.path.endswith("html") else "text/javascript",
        )
        self.end_headers()
        self.wfile.write(self.server.extra[self.path])

    def do_POST(self) -> None:
        self.server.told = json.loads(
            self.rfile.read(int(self.headers["Content-Length"]))
        )
        self.send_response(204)
        self.end_headers()
        self.server.done.set()

    def send_error(self, code: int, *_: object) -> None:
        self.server.missing.append(f"{code}: {self.path}")
        super().send_error(code)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def looked_at(
    site: Path,
    axe: Path,
    browser: str,
    profile: Path,
    pages: list[str],
    seconds: float = 1800.0,
) -> list[str]:
    """What is wrong with the pages, one sentence each."""
    with Server(site, axe, pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/viewer.html"
        with (profile / "console.txt").open("w") as console:
            process = subprocess.Popen(
                [browser, *FLAGS, f"--user-data-dir={profile}", address],
                stdout=subprocess.DEVNULL,
                stderr=console,
            )
            try:
                ended = server.done.wait(seconds)
            finally:
                process.terminate()
                process.wait(30)
                server.shutdown()
        said = [
            line
            for line in (profile / "console.txt").read_text().splitlines()
            if ":CONSOLE" in line
        ]
        return [
            *(
                server.told
                if ended and server.told is not None
                else ["the browser did not finish"]
            ),
            *server.missing,
            *said,
        ]


def searched(site: Path, browser: str, profile: Path, words: str) -> list[str]:
    """The pages that the search of the site finds, best first."""
    address = f"{(site / 'search.html').as_uri()}?q={quote(words)}"
    shown = [
        browser,
        *HEADLESS,
        f"--user-data-dir={profile}",
        "--virtual-time-budget=30000",
        "--dump-dom",
        address,
    ]
    page = subprocess.run(
        shown, capture_output=True, text=True, check=True, timeout=300
    ).stdout
    return re.findall(r'<li class="kind-\w+"><a href="([^"#]*)', page)
