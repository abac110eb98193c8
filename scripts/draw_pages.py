"""Takes the pictures of README.md that show pages: attention, and the served translator.

    python scripts/draw_pages.py

Needs the extras `server` and `ctranslate2`, and playwright with the Chromium of the machine. The
pages are those of the commands of README.md, with the trained translator of the package.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, str(ROOT / "keras_transformer_cli.py")]
RUN, PORT = "tatoeba_en_de", "5067"
SENTENCE = "My brother has never seen such a beautiful garden."
TEXT = "Where is the nearest train station?\nI would like a cup of coffee, please.\nIt will rain."
SIZE = {"width": 760, "height": 560}


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, draw in (("attention", draw_attention), ("serve", draw_server)):
            page = browser.new_page(viewport=SIZE)
            draw(page)
            page.close()
            print(ROOT / "docs" / f"page-{name}.png")
        browser.close()


def draw_attention(page: Page) -> None:
    """Shows the page of the command `attention`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "attention.html"
        subprocess.run([*COMMAND, "attention", RUN, SENTENCE, "--output", path], check=True)
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]")
        page.screenshot(path=ROOT / "docs" / "page-attention.png")


def draw_server(page: Page) -> None:
    """Shows the page of the command `serve` with a translated text."""
    server = subprocess.Popen([*COMMAND, "serve", RUN, "--port", PORT])
    try:
        address = f"http://127.0.0.1:{PORT}"
        wait_for(f"{address}/health")
        page.goto(address)
        page.locator("#pair option").first.wait_for(state="attached")
        page.fill("#text", TEXT)
        page.click("button")
        page.get_by_text("Bahnhof").wait_for()
        page.screenshot(path=ROOT / "docs" / "page-serve.png")
    finally:
        server.terminate()
        server.wait()


def wait_for(address: str) -> None:
    """Waits until a server answers, at most a minute."""
    for _ in range(120):
        try:
            urlopen(address).close()
            return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(address)


if __name__ == "__main__":
    main()
