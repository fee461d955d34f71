"""The pages in a real browser: no error in its console, no request, sorting and a slider that work, narrow screens."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.scripts import load

from kbtrain.config import build
from kbtrain.rag.seakr_traces import Candidate, Spent, Step, Trace
from kbtrain.report.page import render_traces

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs headless Chromium (Debian: apt-get install chromium)")

# A trace of words that nothing breaks, as web addresses are.
ADDRESS = "https://example.org/" + "a" * 90
LONG = Trace(
    "q", ADDRESS, ("gold",), "seakr", 0.0,
    (Step(ADDRESS, 1.0, ADDRESS, (Candidate("p", ADDRESS, ADDRESS, "aided", 0.5, True),), "aided"),),
    (), "final answer", ADDRESS, False, 0.0, 0.0, Spent(),
)  # fmt: skip

# What a person would do, said into the page's title: sort and slide.
CLICKS = """
<script>
const said = {};
const head = [...document.querySelectorAll("table.sortable th")].find((th) => th.textContent === "right answers, %");
const column = head.cellIndex, table = head.closest("table");
const read = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
head.querySelector("button").click(); said.down = read(); said.aria = head.getAttribute("aria-sort");
head.querySelector("button").click(); said.up = read();
const ranged = [...document.querySelectorAll("table.sortable th")].find((th) => th.textContent === "95 % interval");
ranged.querySelector("button").click();
said.lows = [...ranged.closest("table").tBodies[0].rows].map((row) => row.cells[ranged.cellIndex].textContent);
said.is_short = table.className.split(" ").includes("short");
said.short = [table.scrollWidth, table.parentElement.clientWidth];
const slide = document.getElementById("slide");
slide.value = 100; slide.dispatchEvent(new Event("input"));
said.slid = ["searches", "right", "money"].map((name) => document.getElementById(`slide-${name}`).textContent);
said.mark = document.getElementById("slide-mark").style.left;
document.querySelectorAll("details").forEach((one) => (one.open = true));
said.width = [document.documentElement.scrollWidth, window.innerWidth];
said.requests = performance.getEntriesByType("resource").length;
said.focus = (head.querySelector("button").focus(), document.activeElement.textContent);
document.title = JSON.stringify(said);
</script>
"""


@pytest.fixture(scope="module")
def report(evaluated, tmp_path_factory):
    """A run folder with its report."""
    run = Path(shutil.copytree(evaluated, tmp_path_factory.mktemp("browser") / "run"))
    module = load("eval/write_report.py")
    module.main(build(module.ReportConfig, None, {"run": run}))
    return run


def browse(page, *flags):
    """Open a page without a network, to its load event, which a budget of virtual time may miss; console: stderr."""
    profile = page.parent / "profile"
    command = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-sync", "--disable-component-update", "--hide-scrollbars",
        "--disable-features=NetworkTimeServiceQuerying,OptimizationHints,MediaRouter",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0",
        *flags, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def console(stderr):
    """What the page wrote to the console: errors, warnings and refused loads."""
    return [line for line in stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("name", ["report.html", "gates/kbm_mastery.html"])
def test_a_page_opens_without_an_error_and_asks_for_nothing(report, name):
    done = browse(report / name, "--dump-dom")
    assert console(done.stderr) == []  # the policy default-src 'none' would name every request here, as below
    assert "</html>" in done.stdout
    if name == "report.html":
        assert re.search(r"<th[^>]*><button", done.stdout)  # written by the script


def test_sorting_and_the_slider_do_what_they_say(report):
    html = (report / "report.html").read_text()
    # the page's policy refuses scripts that are not its own, so the test's copy has none
    open_page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    page = report / "clicked.html"
    page.write_text(open_page.replace("</body>", CLICKS + "</body>"))
    done = browse(page, "--dump-dom", "--window-size=390,844")
    assert console(done.stderr) == []
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None and title[1].startswith("{"), (len(done.stdout), done.stdout[-300:], done.stderr[-2000:])
    said = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert [float(x) for x in said["down"]] == sorted((float(x) for x in said["down"]), reverse=True)
    assert said["up"] == said["down"][::-1] or [float(x) for x in said["up"]] == sorted(float(x) for x in said["up"])
    lows = [float(text[1:].split(",")[0]) for text in said["lows"]]
    assert lows == sorted(lows, reverse=True) and lows[0] > 0 > lows[-1]
    assert said["aria"] == "descending" and said["focus"] == "right answers, %"
    assert said["requests"] == 0
    assert said["is_short"] and said["short"][0] <= said["short"][1]  # no table cut off
    gates = {gate["gate"]: gate for gate in json.loads((report / "results.json").read_text())["gates"]}
    always = f"{100 * gates['all_rag']['accuracy']:.1f}"
    assert said["slid"] == ["200", always, "1.01"] and said["mark"] == "100%"
    assert said["width"][0] <= said["width"][1]  # nothing sticks out of a phone's screen


def test_nothing_sticks_out_of_a_phone_a_tablet_or_a_desk(report):
    """In frames: a headless window is never narrower than 500 pixels."""
    pages = [re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", (report / name).read_text())
             .replace("<details>", "<details open>").replace("made-up", "made" * 30)
             for name in ("report.html", "gates/kbm_mastery.html")] + [render_traces([LONG], "Traces")]  # fmt: skip
    page = report / "framed.html"
    source = json.dumps(pages).replace("</", "<\\/")
    page.write_text(f"""<body><script>
const found = [], pages = {source}, sizes = [390, 800, 1280];
for (const [i, text] of pages.entries()) for (const size of sizes) {{
  const frame = document.createElement("iframe");
  frame.style.cssText = `border:0;width:${{size}}px;height:900px`;
  frame.srcdoc = text;
  frame.onload = () => {{
    const inner = frame.contentDocument, all = [...inner.querySelectorAll("main *")];
    const out = (one) => one.getBoundingClientRect().right > size + 1 && !one.closest(".scroll") && !one.closest("svg");
    const lines = (one) => {{
      const style = frame.contentWindow.getComputedStyle(one), px = (name) => parseFloat(style[name]);
      return (one.clientHeight - px("paddingTop") - px("paddingBottom")) / px("lineHeight");
    }};
    const sticky = [...inner.querySelectorAll("td:first-child")].filter((one) => one.closest(".sortable"));
    found.push([i, inner.documentElement.scrollWidth - size, all.filter(out).length,
      sticky.every((one) => frame.contentWindow.getComputedStyle(one).position === "sticky"),
      Math.max(0, ...[...inner.querySelectorAll("table.five :is(td, th), table.four :is(td, th)")].map(lines)),
      Math.max(0, ...sticky.map((one) => one.getBoundingClientRect().width / size))]);
    if (found.length === pages.length * sizes.length) document.title = JSON.stringify(found);
  }};
  document.body.append(frame);
}}</script></body>""")
    done = browse(page, "--dump-dom", "--virtual-time-budget=10000")
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None, done.stderr[-2000:]
    measured = json.loads(title[1])
    assert len(measured) == 9
    for _, wider, out, sticky, lines, first in measured:
        assert wider <= 0 and out == 0 and sticky and lines < 2.95 and first < 0.4, measured  # no cell of three lines


def test_an_injected_script_is_refused_by_the_page_itself(report):
    page = report / "injected.html"
    html = (report / "report.html").read_text()
    evil = "<script>document.title = 'broken'</script><img src='http://127.0.0.1:9/x.png'>"
    page.write_text(html.replace("</body>", evil + "</body>"))
    done = browse(page, "--dump-dom")
    assert "<title>broken" not in done.stdout
    refused = [line for line in console(done.stderr) if "Content Security Policy" in line]
    assert any("script" in line for line in refused) and any("127.0.0.1:9/x.png" in line for line in refused)
