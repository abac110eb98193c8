"""What the tabs of the real TensorBoard server show in headless Chromium."""

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.training import TensorBoardWriter, write_projector

pytestmark = [pytest.mark.slow, pytest.mark.once]
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is an optional dependency"
)
# The projector needs WebGL, which these switches compute without a GPU.
SWITCHES = (
    *("--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader"),
    *("--ignore-gpu-blocklist", "--enable-unsafe-swiftshader"),
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server that shows the logs of a training."""
    logs = tmp_path_factory.mktemp("runs") / "mine" / "logs"
    with TensorBoardWriter(logs) as writer:
        writer.write_hyperparameters({"model.d_model": 64})
        for step in (1, 2):
            writer.report(
                step, {"validation/loss": 4.0 / step, "validation/text": f"*text {step}*"}
            )
            writer.report(step, {"validation/attention": np.full((16, 16, 3), 99, "uint8")})
    write_projector(logs, {"source": (np.eye(7, 5), list("abcdefg"))})
    command = [sys.executable, "-m", "tensorboard.main", "--port", "0", "--logdir"]
    with subprocess.Popen([*command, logs.parent.parent], stderr=-1, text=True) as server:
        for line in server.stderr:
            if found := re.search(r"http://\S+/", line):
                yield found[0]
                break
        server.terminate()


@pytest.fixture(scope="module")
def page():
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=list(SWITCHES))
        yield browser.new_page()
        browser.close()


@pytest.mark.parametrize(
    ("tab", "shown"),
    [
        ("scalars", "validation/loss"),
        ("images", "validation/attention"),
        ("text", "text 2"),
        ("hparams", "model.d_model"),
        ("projector", "1 tensor found"),
    ],
)
def test_each_tab_shows_what_was_written(tab, shown, address, page):
    page.goto("about:blank")
    page.goto(f"{address}#{tab}")
    place = page
    if tab == "projector":  # It is a page within a page within the page.
        place = page.frame_locator("iframe").frame_locator("iframe")
    place.get_by_text(shown).first.wait_for(timeout=60_000)
