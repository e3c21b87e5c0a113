#!/usr/bin/env python3
"""The page at `/` in headless Chromium, as a person uses it: chat, reasoning, stop, settings, conversations, editing,
export, reload, narrow windows, dashboard.

  page_test.py --levin build/release/apps/levin/levin [--model models/demo-v32] [--shots FOLDER]

Speaks the browser's own protocol over a pipe, so that nothing but Chromium and Python is needed. Exits 77, "skipped",
where there is no Chromium. With --shots it leaves pictures to look at.
"""
import argparse
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
NAMES = ["chromium", "chromium-browser", "google-chrome", "chrome"]


class Browser:
    """One page of a headless Chromium; the protocol's messages are JSON with a zero byte after each."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp()
        commands_in, self.commands = os.pipe()
        self.replies, replies_out = os.pipe()

        def at_start():
            saved_in, saved_out = os.dup(commands_in), os.dup(replies_out)
            os.dup2(saved_in, 3)
            os.dup2(saved_out, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
             f"--user-data-dir={self.profile}", "--remote-debugging-pipe", "about:blank"],
            close_fds=False, preexec_fn=at_start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands_in)
        os.close(replies_out)
        self.rest, self.n_sent, self.session = b"", 0, None
        self.complaints, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.rest:
            piece = os.read(self.replies, 1 << 20)
            if not piece:
                sys.exit("the browser has gone")
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.n_sent += 1
        message = {"id": self.n_sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self.read()
            if reply.get("id") == self.n_sent:
                if "error" in reply:
                    sys.exit(f"{method}: {reply['error']}")
                return reply["result"]
            self.note(reply)

    def note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def eval(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            sys.exit(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, expression, what, seconds=60):
        ending = time.monotonic() + seconds
        while not (value := self.eval(expression)):
            if time.monotonic() > ending:
                sys.exit(f"waited for {what}, and the page shows:\n{self.eval('document.body.innerText')}")
            time.sleep(0.02)
        return value

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=13 if key == "Enter" else 27,
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def click(self, selector):
        place = self.eval(f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                          " return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def write(self, text):
        self.eval("document.getElementById('ask').focus()")
        self.call("Input.insertText", text=text)

    def shot(self, folder, name):
        if folder:
            time.sleep(0.3)
            data = self.call("Page.captureScreenshot", format="png")["data"]
            with open(os.path.join(folder, name + ".png"), "wb") as out:
                out.write(base64.b64decode(data))

    def end(self):
        self.process.terminate()
        self.process.wait(30)
        shutil.rmtree(self.profile, ignore_errors=True)


def find_chromium():
    """The browser's path; ends the test as skipped where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if not program:
        print("skipped: no Chromium here")
        sys.exit(SKIPPED)
    return program


LAST = "[...document.querySelectorAll('.answer')].at(-1)"
OVER = f"running === null && {LAST}?.querySelector('.foot').innerText"


def expect(found, part, what):
    if part not in found:
        sys.exit(f"{what}: expected {part!r}, found {found!r}")


def chats(page, shots):
    page.until("document.getElementById('model').textContent.includes('demo')", "the model's name")
    page.until("document.getElementById('state').className === 'good'", "the server's health")
    page.shot(shots, "empty")
    page.write("What is the capital of Japan?")
    page.press("Enter")
    foot = page.until(OVER, "an answer")
    expect(page.eval(LAST + ".querySelector('.text').innerText"), "The capital of Japan is Tokyo.", "the answer")
    for part in ("tokens/s", "accepted length", "to first token"):
        expect(foot, part, "the figures under the answer")

    page.click("#think")
    page.write("What is the capital of France?")
    page.click("#send")
    page.until("document.querySelectorAll('.answer').length === 2 && " + OVER, "a second answer")
    expect(page.eval(LAST + ".querySelector('.thought').textContent"), "France", "the reasoning")
    expect(page.eval(LAST + ".querySelector('summary').textContent"), "Thought", "its fold-out")
    page.eval(LAST + ".querySelector('summary').click()")
    page.shot(shots, "chat")
    page.click("#think")


def settings_count(page, shots):
    page.click("#open-settings")
    page.until("document.getElementById('settings').open", "the settings")
    page.eval("const f = document.querySelector('#settings form'); f.elements.max_tokens.value = '3'; f.elements.temperature.value = '0'")
    page.shot(shots, "settings")
    page.click("#settings .primary")
    page.write("Repeat: river stone apple tiger")
    page.press("Enter")
    expect(page.until("document.querySelectorAll('.answer').length === 3 && " + OVER, "a third answer"), "cut at the limit", "a limit from the settings")
    page.eval("settings.max_tokens = ''")


def stops(page):
    page.click("#new")
    page.eval("settings.temperature = '2'; settings.seed = '1'; settings.system = ''")
    # an answer that does not end by itself for a while
    page.eval("const plain = window.fetch; window.fetch = (url, o) => plain(url, o?.body ? "
              "{...o, body: JSON.stringify({...JSON.parse(o.body), ignore_eos: true, max_tokens: 6000})} : o)")
    page.write("Go on for ever")
    page.press("Enter")
    page.until("document.querySelector('.growing') !== null", "an answer that grows")
    expect(page.eval("document.getElementById('send').getAttribute('aria-label')"), "Stop", "the button meanwhile")
    page.click("#send")
    expect(page.until(OVER, "the answer's end", 10), "stopped", "a stopped answer")
    page.eval("window.fetch = plain; settings.temperature = '0'; settings.seed = ''")


def markup_is_text(page):
    """What people and models write never becomes part of the document."""
    page.eval("""(() => {
      const bad = '<img src=x onerror="window.broken=1"><script>window.broken=1</' + 'script>';
      talk = {id: 'made', title: bad, messages: [{role: 'user', content: bad}, {role: 'assistant', reasoning: bad,
        content: '# Head ' + bad + '\\n\\nA **bold** word, `code ' + bad + '`\\n\\n- one\\n- two *em*\\n\\n```\\nint main() { return 0; }\\n```\\n\\n1. first\\n2. second\\n\\n> quoted ' + bad,
        tokens: 120, rate: 431.22, accepted: 2.71, first_s: 0.043, found: 640, end: 'stop'}]};
      talks.unshift(talk); show(); })()""")
    counts = page.eval("['img', '#messages script', '#messages h2', '#messages strong', '#messages pre code', '#messages li', "
                       "'#messages blockquote', '#messages em'].map(s => document.querySelectorAll(s).length)")
    if counts != [0, 0, 1, 1, 1, 4, 1, 1] or page.eval("window.broken"):
        sys.exit(f"markup of an answer: {counts}, {page.eval('window.broken')}")


def strict(page):
    """The policy lets nothing run that the build did not put there, and nothing turn text into markup."""
    found = page.eval("""(() => {
      const script = document.createElement("script");
      let refused = 0;
      try { script.textContent = "window.broken = 1"; } catch { refused++; }
      document.body.append(script);
      try { document.createElement("div").innerHTML = "<b>x</b>"; } catch { refused++; }
      const styled = document.createElement("div");
      styled.setAttribute("style", "color: red");
      return [refused, window.broken ?? null, styled.style.color]; })()""")
    if found != [2, None, ""]:
        sys.exit(f"the policy: {found}")
    page.complaints = [text for text in page.complaints if "Content Security Policy" not in text and "TrustedHTML" not in text
                       and "TrustedScript" not in text]


def edits(page):
    page.click("#new")
    page.write("What is the capital of Japan?")
    page.press("Enter")
    page.until(OVER, "an answer")
    page.write("What is the capital of France?")
    page.press("Enter")
    page.until("document.querySelectorAll('.answer').length === 2 && " + OVER, "a second answer")
    page.eval("document.querySelector('.question [aria-label=\"Edit the message\"]').click()")
    page.press("Escape")
    if page.eval("document.querySelector('textarea.user') || talk.messages.length !== 4"):
        sys.exit("Escape leaves the message as it was")
    page.eval("document.querySelector('.question [aria-label=\"Edit the message\"]').click()")
    page.eval("document.querySelector('textarea.user').select()")
    page.call("Input.insertText", text="What is the capital of Italy?")
    page.press("Enter")
    page.until("document.querySelectorAll('.answer').length === 1 && " + OVER, "the answer to the edited message")
    expect(page.eval(LAST + ".querySelector('.text').innerText"), "Rome", "the answer to the edited message")
    expect(page.eval("talk.title + document.querySelector('.here .open').innerText"), "Italy", "the title")


def exports(page):
    """Both files, as the browser would save them."""
    page.eval("""(() => { window.saved = [];
      HTMLAnchorElement.prototype.click = function () { saved.push(this.download); }; })()""")
    page.eval("window.blobs = []; const makeAddress = URL.createObjectURL; URL.createObjectURL = blob => { blobs.push(blob); return makeAddress(blob); }")
    page.click("#export-markdown")
    page.click("#export-json")
    text, data = page.eval("Promise.all(blobs.map(blob => blob.text()))")
    for part in ("# What is the capital of Italy?", "## You\n\nWhat is", "## Answer\n\n", "Rome"):
        expect(text, part, "the conversation as Markdown")
    messages = json.loads(data)["messages"]
    if [m["role"] for m in messages] != ["user", "assistant"] or "Rome" not in messages[1]["content"]:
        sys.exit(f"the conversation as JSON: {data}")
    names = page.eval("saved")
    if names != ["What-is-the-capital-of-Italy.md", "What-is-the-capital-of-Italy.json"]:
        sys.exit(f"the files' names: {names}")


def load_again(page):
    page.call("Page.reload")
    page.until("document.readyState === 'complete' && typeof saved === 'undefined' && document.getElementById('send') !== null", "the page again")


def reloads(page):
    load_again(page)
    expect(page.eval("document.getElementById('messages').innerText"), "Rome", "the conversation after a reload")
    here = page.eval("location.hash")
    page.click("#new")
    if page.eval("location.hash + document.querySelectorAll('.answer').length") != "0":
        sys.exit("a new chat has no conversation")
    page.eval("history.back()")
    page.until(f"location.hash === {json.dumps(here)} && document.querySelectorAll('.answer').length === 1", "the conversation before")
    # in the middle of an answer: the question and what there is of the answer stay
    page.eval("talk.messages.push({role: 'user', content: 'More?'}, {role: 'assistant', content: 'Half an ans', reasoning: ''}); "
              "running = {talk, answer: talk.messages.at(-1), abort: new AbortController()}; window.saved = 0")
    load_again(page)
    expect(page.eval("document.getElementById('messages').innerText"), "Half an ans", "an answer that a reload cut off")


def two_tabs(page):
    """What another tab saves is listed here and outlives this tab's next save."""
    page.eval("""(() => {
      localStorage.setItem("levin.talks", JSON.stringify([{id: "other", title: "Of another tab", messages: []}, ...talks]));
      dispatchEvent(new StorageEvent("storage", {key: "levin.talks"}));
      save(); })()""")
    expect(page.eval("document.getElementById('list').innerText"), "Of another tab", "the list of conversations")
    expect(page.eval("localStorage.getItem('levin.talks')"), "Of another tab", "what is saved")
    page.eval("document.querySelector('[aria-label=\"Delete Of another tab\"]').click()")


def narrow(page, shots):
    """Conversations and New chat are a drawer and a button of the bar."""
    for width in (375, 768):
        page.size(width, 720)
        page.click("#open-side")
        page.until("document.activeElement.id === 'new'", "the drawer")
        page.shot(shots, f"drawer-{width}")
        page.press("Escape")
        page.until("document.activeElement.id === 'open-side' && getComputedStyle(document.getElementById('side')).display === 'none'", "no drawer")
        page.click("#open-side")
        page.eval("document.querySelectorAll('#list .open')[1].click()")
        if page.eval("getComputedStyle(document.getElementById('side')).display + (talk === talks[1])") != "nonetrue":
            sys.exit("choosing a conversation opens it and closes the drawer")
        page.click("#new-narrow")
        if page.eval("talk !== null || document.activeElement.id !== 'ask'"):
            sys.exit("New chat on a narrow window")
    page.size(1280, 820)


RICH = r"""## Result

A **table**, with `code` and [a link](https://example.org/):

| Model | Context | Tokens/s |
|:--|:-:|--:|
| Demonstration | 16,384 | 2,239.0 |
| A longer name for a row of this table | 131,072 | 88.1 |

1. First
   - nested *item*
     - deeper
2. ~~Second~~ third

- [x] done
- [ ] to do

---

The roots are $x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}$, and

\[ \sum_{k=0}^{n} \binom{n}{k} = 2^n, \qquad A = \begin{pmatrix} 1 & \alpha \\ 0 & \mathbb{R} \end{pmatrix} \]

```cpp
// A line that is longer than a narrow window is wide, so that it has to be scrolled sideways to be read.
#include <vector>
int main() { return std::vector<int>{1, 2}.size() == 2 ? 0 : 1; }
```

> Quoted, with https://example.org/a_b.
"""


def looks(page, shots):
    """A rich answer at three widths, light and dark: nothing is wider than the window."""
    page.eval(f"""(() => {{ talk = {{id: "rich", title: "Rich", messages: [{{role: "user", content: "Show me everything"}},
      {{role: "assistant", reasoning: "", content: {json.dumps(RICH)}, tokens: 300, rate: 431.2, end: "stop"}}]}};
      talks.unshift(talk); show(); }})()""")
    for width in (375, 768, 1280):
        for dark in (False, True):
            page.size(width, 900, dark)
            page.eval("document.getElementById('scroll').scrollTop = 0")
            page.shot(shots, f"rich-{width}-{'dark' if dark else 'light'}")
            wide = page.eval("""[document.documentElement, ...document.querySelectorAll('header, #scroll, #messages, #box, .text')]
                             .filter(n => n.scrollWidth > n.clientWidth + 1).map(n => n.id || n.className || n.localName)""")
            if wide:
                sys.exit(f"wider than a window of {width}: {wide}")
            page.eval("document.getElementById('scroll').scrollTop = 1e6")
            page.shot(shots, f"rich-end-{width}-{'dark' if dark else 'light'}")
    page.eval("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.eval("document.querySelector('.code').scrollIntoView()")
    page.click(".code-head button")
    page.until("document.querySelector('.code-head button').innerText === 'Copied'", "the copy button's word")
    expect(page.eval("copied"), "#include <vector>\nint main() { return", "the copied code")
    unnamed = page.eval("[...document.querySelectorAll('button, input, textarea')].filter(n => !n.closest('dialog') && !n.innerText.trim() && "
                        "!n.getAttribute('aria-label') && getComputedStyle(n).display !== 'none').map(n => n.outerHTML)")
    if unnamed:
        sys.exit(f"nothing to read out for {unnamed}")


def dashboard(page, shots):
    page.click("#tab-board")
    page.until("/[1-9]/.test(document.getElementById('d-total').textContent)", "counted tokens")
    page.until("document.querySelectorAll('#d-bars div').length > 0", "acceptance by position")
    text = page.eval("document.getElementById('board').innerText")
    for part in ("Running", "requests", "Throughput", "Acceptance by position", "Time to first token", "Prefix cache", "refused"):
        expect(text, part, "the dashboard")
    for row in page.eval("[...document.querySelectorAll('#d-latency tr')].map(r => r.innerText)"):
        expect(row, "s", "a latency")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--levin", required=True)
    parser.add_argument("--model", default=os.path.join(os.path.dirname(__file__), "../../models/demo-v32"))
    parser.add_argument("--shots")
    options = parser.parse_args()
    program = find_chromium()
    server = subprocess.Popen([options.levin, "serve", options.model, "--port", "0", "--threads", "2", "--temperature", "0"],
                              stderr=subprocess.PIPE, text=True)
    line = next(l for l in server.stderr if l.startswith("ready"))
    address = line.split()[1].removesuffix("/v1")
    page = Browser(program)
    try:
        page.size(1280, 820)
        page.call("Page.navigate", url=address + "/")
        page.until("document.readyState === 'complete' && document.getElementById('send') !== null", "the page")
        chats(page, options.shots)
        settings_count(page, options.shots)
        stops(page)
        edits(page)
        exports(page)
        reloads(page)
        two_tabs(page)
        narrow(page, options.shots)
        strict(page)
        looks(page, options.shots)
        markup_is_text(page)
        page.size(1280, 820, dark=True)
        page.shot(options.shots, "chat-dark")
        dashboard(page, options.shots)
        if options.shots:
            load = subprocess.run([options.levin, "load", address, "--requests", "40", "--concurrency", "6", "--api", "chat"],
                                  capture_output=True, text=True, check=True)
            print(load.stdout)
        page.shot(options.shots, "board-dark")
        page.size(1280, 820)
        page.shot(options.shots, "board")
        page.size(375, 800)
        page.shot(options.shots, "board-narrow")
        page.click("#tab-chat")
        page.shot(options.shots, "chat-narrow")
        elsewhere = [url for url in page.requests if not url.startswith((address + "/", "data:", "about:"))]
        if elsewhere:
            sys.exit(f"the page asked for {elsewhere}")
        if page.complaints:
            sys.exit("the browser complains: " + "; ".join(page.complaints))
    finally:
        page.end()
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    print(f"the page works in {program}; {len(page.requests)} requests, all to its own server")


if __name__ == "__main__":
    main()
