#!/usr/bin/env python3
"""open_snapshot.py FILE.pickle MEMORYVIZ.js [PICTURE] - PyTorch's page of memory snapshots opens a planned step, in Chromium without a window.

MEMORYVIZ.js is torch/utils/viz/MemoryViz.js of PyTorch's sources, the code of pytorch.org/memory_viz; it wants d3 5 (Debian: node-d3), which is put
in place of its address. Every view is drawn for every device, without an error; the timeline has the snapshot's peak, and each event is listed.
PICTURE-VIEW.png is what it looks like."""
import base64
import json
import os
import pickle
import re
import sys
import tempfile

from browser import Browser

D3 = "/usr/share/nodejs/d3/dist/d3.js"
VIEWS = ["Active Memory Timeline", "Allocated Memory (incl. Private Pools)", "Active Cached Segment Timeline", "Allocator State History", "Allocator Settings"]


def peaks(snapshot):
    for trace in snapshot["device_traces"]:
        now = peak = 0
        for e in trace:
            now += e["size"] if e["action"] == "alloc" else -e["size"] if e["action"] == "free_completed" else 0
            peak = max(peak, now)
        yield peak


def page(data, viz):
    code = open(viz).read()
    names = sorted(set(re.findall(r"import \{(.*?)\}", code)))
    code = re.sub(r"^import .*$", "", code, flags=re.M).replace("export function", "function")
    files = json.dumps([{"name": "step.pickle", "base64": base64.b64encode(data + b"\0" * (3 - len(data) % 3)).decode()}])
    return (f"<!DOCTYPE html><body><script>{open(D3).read()}</script><script type=module>const {{{', '.join(names)}}} = d3;\n{code}\n"
            f"add_local_files({files}, {json.dumps(VIEWS[0])}); document.body.dataset.drawn = 1;</script></body>")


def main():
    data = open(sys.argv[1], "rb").read()
    snapshot, browser, good = pickle.loads(data), Browser(), True
    devices = [i for i, trace in enumerate(snapshot["device_traces"]) if trace]
    try:
        browser.size(1280, 900)
        with tempfile.TemporaryDirectory() as work:
            with open(f"{work}/page.html", "w") as f:
                f.write(page(data, sys.argv[2]))
            browser.open(f"file://{work}/page.html")
            offered = browser.run("[...document.querySelectorAll('select')].map(s => [...s.options].map(o => o.text))")
            for view in [v for v in offered[1] if v in VIEWS]:
                for device in devices:
                    # selects in the order of the page: snapshot, view, device
                    browser.run("(([s, v, d]) => { v.value = %s; v.dispatchEvent(new Event('change')); if (d.options.length > %d) { d.value = '%d'; d.dispatchEvent(new Event('change')); } })"
                                "([...document.querySelectorAll('select')])" % (json.dumps(view), device, device))
                    browser.run("new Promise(r => setTimeout(r, 300))")
                    shapes = browser.run("[...document.querySelectorAll('svg rect, svg polygon, svg path')].filter(e => e.getBoundingClientRect().width > 0).length")
                    print(f"{view}, device {device}: {shapes} shapes")
                    if view == VIEWS[0]:
                        peak = list(peaks(snapshot))[device]
                        ticks = browser.run("[...document.querySelectorAll('svg .tick text')].map(t => t.textContent)")
                        print(f"  peak {peak} bytes, axis {ticks[:1]} to {ticks[-1:]}")
                        good &= shapes >= len({(e['addr'], e['size']) for e in snapshot['device_traces'][device]})
                if len(sys.argv) > 3:
                    browser.shot(f"{sys.argv[3]}-{re.sub('[^a-z]+', '-', view.lower()).strip('-')}.png")
            if browser.errors:
                sys.exit(f"the page has errors: {browser.errors}")
    finally:
        browser.close()
    return 0 if good and devices else 1


if __name__ == "__main__":
    sys.exit(main())
