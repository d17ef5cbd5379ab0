"""A headless Chromium, controlled by its DevTools protocol."""

import asyncio
import base64
import itertools
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager

import aiohttp
from yarl import URL

from tests.support.paths import TESTS
from tests.support.servers.servers import needs

AXE = TESTS / "vendored" / "axe-core" / "axe.min.js"

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip

WITHIN = 60.0
"""Time limit in seconds for a page to reach the expected state on a loaded machine."""


@contextmanager
def chromium_server(folder):
    """Where to tell it."""
    needs("chromium")
    told = folder / "DevToolsActivePort"
    command = ["chromium", *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + WITHIN
        while not told.exists() or "\n" not in told.read_text():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "it does not begin"
            time.sleep(0.02)
        port, path = told.read_text().split("\n")[:2]
        yield f"ws://127.0.0.1:{port}{path}"
    finally:
        process.terminate()
        process.wait(20)


@asynccontextmanager
async def chromium(address):
    """A connection to it: `page()` opens pages that share cookies with each other alone."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0, heartbeat=None) as socket,
    ):
        browser = Browser(socket)
        reading = asyncio.create_task(browser.read())
        try:
            made = await browser.do("Target.createBrowserContext")
            browser.context = made["browserContextId"]
            yield browser
            await browser.do("Target.disposeBrowserContext", browserContextId=browser.context)
        finally:
            reading.cancel()


class Browser:
    def __init__(self, socket):
        self.socket, self.context = socket, None
        self.numbers, self.asked, self.pages = itertools.count(1), {}, {}

    async def read(self):
        async for message in self.socket:
            said = message.json()
            if "id" in said:
                self.asked.pop(said["id"]).set_result(said)
            elif said.get("sessionId") in self.pages:
                self.pages[said["sessionId"]].hear(said["method"], said["params"])

    async def do(self, method, session=None, **params):
        number = next(self.numbers)
        self.asked[number] = answer = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        await self.socket.send_json(
            message if session is None else {**message, "sessionId": session}
        )
        said = await asyncio.wait_for(answer, WITHIN)
        assert "error" not in said, f"{method}: {said}"
        return said["result"]

    async def page(self, *, width=1280, height=900, dark=False, scripts=True, zone="Asia/Tokyo"):
        """Open a page with its own size, colour scheme and time zone."""
        made = await self.do(
            "Target.createTarget", url="about:blank", browserContextId=self.context
        )
        target = made["targetId"]
        attached = await self.do("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, attached["sessionId"])
        self.pages[page.session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.do(f"{domain}.enable")
        await page.do("Page.setLifecycleEventsEnabled", enabled=True)
        await page.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.do("Emulation.setEmulatedMedia", features=[scheme])
        await page.do("Emulation.setTimezoneOverride", timezoneId=zone)
        await page.do("Emulation.setFocusEmulationEnabled", enabled=True)
        if not scripts:
            await page.do("Emulation.setScriptExecutionDisabled", value=True)
        return page


class Page:
    """One page.

    Attributes:
        wrong: Console messages about errors.
        asked: Hosts of the page's requests, without those blocked by its content security policy.
    """

    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.wrong, self.asked, self.loaded = [], {}, set()
        self.heard = asyncio.Event()

    async def do(self, method, **params):
        return await self.browser.do(method, self.session, **params)

    def hear(self, method, params):
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.wrong.append(params["args"])
        elif method == "Runtime.exceptionThrown":
            self.wrong.append(params["exceptionDetails"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.wrong.append(params["entry"])
        elif method == "Network.requestWillBeSent":
            if host := URL(params["request"]["url"]).authority:  # data: URLs have none
                self.asked[params["requestId"]] = host
        elif method == "Network.loadingFailed" and params.get("blockedReason") == "csp":
            self.asked.pop(params["requestId"], None)
        elif method == "Page.lifecycleEvent" and params["name"] == "load":
            self.loaded.add(params["loaderId"])
            self.heard.set()

    async def goto(self, address):
        """Wait until the page is loaded."""
        said = await self.do("Page.navigate", url=str(address))
        assert "errorText" not in said, said
        while said["loaderId"] not in self.loaded:
            self.heard.clear()
            await asyncio.wait_for(self.heard.wait(), WITHIN)

    async def js(self, expression):
        """Return the value of an expression; wait if the value is a promise."""
        said = await self.do(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True,
            allowUnsafeEvalBlockedByCSP=True,
        )  # fmt: skip
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def text(self, selector="body"):
        return await self.js(f"document.querySelector({selector!r})?.innerText")

    async def until(self, expression):
        """Wait until an expression is true."""
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                if await self.js(f"Boolean({expression})"):
                    return
            except AssertionError:  # the page is being left
                pass
            assert time.monotonic() < deadline, (expression, await self.text())
            await asyncio.sleep(0.02)

    async def click(self, selector):
        """Click as a mouse would; use `until` to wait for the result."""
        await self.js(f"document.querySelector({selector!r}).click()")

    async def type(self, selector, text):
        await self.js(f"document.querySelector({selector!r}).focus()")
        await self.do("Input.insertText", text=text)

    async def key(self, key, code):
        for kind in ("keyDown", "keyUp"):
            await self.do(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    async def shot(self, path, *, whole=True, quality=None):
        """Write a picture of the whole page, or of what the screen shows, as PNG or WebP."""
        kind = {"format": "webp", "quality": quality} if path.suffix == ".webp" else {}
        said = await self.do("Page.captureScreenshot", captureBeyondViewport=whole, **kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(said["data"]))

    async def faults(self):
        """Return axe-core's serious and critical findings."""
        if not await self.js("typeof axe === 'object'"):
            await self.js(AXE.read_text("utf-8") + ";true")
        return await self.js(
            "axe.run({resultTypes: ['violations']}).then(found => found.violations"
            ".filter(each => ['serious', 'critical'].includes(each.impact))"
            ".map(each => [each.id, ...each.nodes.map(node => node.html + node.failureSummary)]))"
        )
