"""browser.py - Debian's Chromium without a window, steered over its DevTools pipe: pages, what they hold, pictures.

Nothing but the standard library. Errors of a page (exceptions, the console, what its policy refuses) and requests that leave
its own server are kept, so that a test can say there are none."""
import base64
import json
import os
import select
import subprocess
import tempfile
import time


class Browser:
    def __init__(self):
        to_read, self.to = os.pipe()
        self.from_, to_write = os.pipe()

        def descriptors():
            os.dup2(to_read, 30), os.dup2(to_write, 31)
            os.dup2(30, 3), os.dup2(31, 4)

        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}"],
            preexec_fn=descriptors, pass_fds=[3, 4], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        os.close(to_read), os.close(to_write)
        self.number, self.buffer, self.errors, self.urls, self.session = 0, b"", [], [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def close(self):
        try:
            self.session = None
            self.send("Browser.close")
            self.process.wait(10)
        except Exception:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        return self.number

    def read(self, seconds=60):
        while b"\0" not in self.buffer:
            if not select.select([self.from_], [], [], seconds)[0]:
                raise TimeoutError("chromium says nothing")
            piece = os.read(self.from_, 1 << 20)
            if not piece:
                raise EOFError("chromium has ended")
            self.buffer += piece
        line, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(line)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, method, p):
        if method == "Runtime.exceptionThrown":
            self.errors.append(p["exceptionDetails"].get("exception", {}).get("description") or p["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.errors.append(p["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and p["type"] == "error":
            self.errors.append(str(p["args"]))
        elif method == "Network.requestWillBeSent":
            self.urls.append(p["request"]["url"])

    def call(self, method, seconds=60, **params):
        number = self.send(method, **params)
        while True:
            message = self.read(seconds)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def run(self, script, seconds=60):
        """The value of a JavaScript expression; a promise is waited for."""
        got = self.call("Runtime.evaluate", seconds, expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in got:
            raise RuntimeError(got["exceptionDetails"])
        return got["result"].get("value")

    def holds(self, script):
        try:
            return self.run(script, 5)
        except (TimeoutError, RuntimeError):    # asked of a page that was just left: there is no answer
            return False

    def wait(self, script, seconds=60):
        until = time.monotonic() + seconds
        while not self.holds(script):
            if time.monotonic() > until:
                raise TimeoutError(f"{script}\n{self.errors}\n{self.run('document.body.innerText')[:2000]}")
            time.sleep(0.05)

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        """Seconds until the page is drawn."""
        begin = time.monotonic()
        self.call("Page.navigate", url=url)
        self.wait("!!document.body && document.body.dataset.drawn > 0")
        return time.monotonic() - begin

    def text(self, selector):
        return self.run(f"(document.querySelector({json.dumps(selector)}) || {{}}).innerText || ''")

    def shot(self, path, selector=None, whole=False):
        params = {"format": "png"}
        if selector:
            box = self.run(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView(); const b = e.getBoundingClientRect();"
                           "return [b.left + scrollX, b.top + scrollY, b.width, b.height]; })()")
            params["clip"] = {"x": box[0], "y": box[1], "width": box[2], "height": box[3], "scale": 1}
            params["captureBeyondViewport"] = True
        elif whole:
            height = self.run("document.documentElement.scrollHeight")
            params["clip"] = {"x": 0, "y": 0, "width": self.run("innerWidth"), "height": height, "scale": 1}
            params["captureBeyondViewport"] = True
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", **params)["data"]))
