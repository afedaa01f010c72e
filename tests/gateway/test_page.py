"""The page to try a text in, in a real browser; and that no page of a gateway loads or reaches anything else."""

from __future__ import annotations

import os
import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `gateway` is not installed")

from gateways import bring, listening

from secformer.gateway.guard import Token

TOKEN = "a-token-of-more-than-32-letters-0123456789"
TEXT = "the cat sat on a mat"
SCREENSHOT = os.environ.get("GATEWAY_SCREENSHOT", "")
"""A file to keep a picture of the page in; docs/images/gateway.png was made so."""


@pytest.mark.parametrize("name", ["try.html", "interface.html"])
def test_a_page_is_one_file_that_names_no_other_place(name):
    text = files("secformer.gateway").joinpath(name).read_text(encoding="utf-8")
    assert not re.search(r"https?://|//[a-z]|<link|<img|<iframe|\bsrc=|@import|url\(|eval\(|innerHTML", text)


def test_a_page_tells_the_browser_to_load_nothing(http):
    for path in ("/", "/docs"):
        reply = http.get(path)
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff" and reply.headers["X-Frame-Options"] == "DENY"


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is not installed")
    chromium, driver = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no browser here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1100,1800",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(driver))
    found.set_script_timeout(30)
    yield found
    found.quit()


def wait(browser, condition, seconds: float = 60.0):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, seconds).until(lambda _: condition())


def part(browser, name: str):
    return browser.find_element("id", name)


def choose(browser, model: str) -> None:
    from selenium.webdriver.support.ui import Select

    wait(browser, lambda: part(browser, "model").find_elements("tag name", "option"))
    Select(part(browser, "model")).select_by_value(model)


def ask(browser, text: str) -> None:
    part(browser, "text").clear()
    part(browser, "text").send_keys(text)
    part(browser, "ask").click()


def answered(browser) -> None:
    """Wait for the answer; an error instead of it is this test's message."""
    wait(browser, lambda: part(browser, "answer").is_displayed() or part(browser, "trouble").is_displayed())
    assert part(browser, "answer").is_displayed(), part(browser, "trouble").text


def complaints(browser) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_the_page_answers_a_text(served, browser):
    with listening(served.app("mood", "vectors")) as url:
        browser.get(url)
        choose(browser, "mood")
        ask(browser, TEXT)
        answered(browser)
        assert part(browser, "label").text == served.models["mood"].predict([TEXT], mode="plain").labels[0]
        assert "Not marked" in part(browser, "marked").text
        cost = part(browser, "cost").text
        assert "rounds" in cost and "bytes from T" in cost
        seen = part(browser, "seen").text
        assert "1 × 16 tokens" in seen and "received no byte that depends on the text" in seen
        if SCREENSHOT:
            Path(SCREENSHOT).parent.mkdir(parents=True, exist_ok=True)
            browser.save_screenshot(SCREENSHOT)
        ask(browser, "cat " * 200)
        wait(browser, lambda: part(browser, "trouble").is_displayed())
        assert "64 are allowed" in part(browser, "trouble").text
        only_refusals = [line for line in complaints(browser) if "422" not in line]
        assert only_refusals == []


def test_a_marked_answer_says_where(served, browser, tmp_path):
    bring(served.servers, tmp_path / "wild", "wild", "embedding", wild=True)
    with listening(served.app("wild")) as url:
        browser.get(url)
        choose(browser, "wild")
        ask(browser, TEXT)
        answered(browser)
        assert "Marked" in part(browser, "marked").text and "layer 0" in part(browser, "evidence").text


def test_the_page_asks_for_a_token_where_one_is_needed(served, browser):
    with listening(served.app("mood", token=Token(TOKEN))) as url:
        browser.get(url)
        wait(browser, lambda: part(browser, "token").is_displayed())
        part(browser, "token").send_keys(TOKEN)
        part(browser, "text").click()
        choose(browser, "mood")
        ask(browser, TEXT)
        answered(browser)


def test_the_interface_is_shown(served, browser):
    complaints(browser)  # those of the pages before
    with listening(served.app("mood")) as url:
        browser.get(f"{url}/docs")
        wait(browser, lambda: "POST /v1/embeddings" in part(browser, "paths").text)
        assert "encoding_format" in part(browser, "paths").text and complaints(browser) == []
