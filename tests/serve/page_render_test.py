#!/usr/bin/env python3
"""What the page makes of an answer's Markdown, in headless Chromium: nodes, safety, streaming, speed.

  page_render_test.py --page build/release/src/serve/page.html

Exits 77, "skipped", where there is no Chromium.
"""
import argparse
import json
import pathlib
import sys

from page_test import Browser, find_chromium

# Markdown and what it becomes. A table's wrapper, a formula's and a code block's are left out (PLAIN below).
CASES = [
    ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
    ("# A\n###### B ##\n####### C", "<h2>A</h2><h6>B</h6><p>####### C</p>"),
    ("a\n\n---\n\n* * *", "<p>a</p><hr><hr>"),
    ("**b** *i* __b__ _i_ ~~d~~ ***x***",
     "<p><strong>b</strong> <em>i</em> <strong>b</strong> <em>i</em> <del>d</del> <strong><em>x</em></strong></p>"),
    ("*a **b** c* and **a *b* c**", "<p><em>a <strong>b</strong> c</em> and <strong>a <em>b</em> c</strong></p>"),
    ("snake_case_name 2 * 3 * 4 \\*no\\* **open", "<p>snake_case_name 2 * 3 * 4 *no* **open</p>"),
    ("`a*b*` ``x`y`` `open", "<p><code>a*b*</code> <code>x`y</code> `open</p>"),
    ("- a\n  - b\n    - c\n- d", "<ul><li><p>a</p><ul><li><p>b</p><ul><li><p>c</p></li></ul></li></ul></li><li><p>d</p></li></ul>"),
    ("3. a\n   - b\n4. c", '<ol start="3"><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>'),
    ("1. a\n\n2. b\n\nend", "<ol><li><p>a</p></li><li><p>b</p></li></ol><p>end</p>"),
    ("- [x] a\n- [ ] b", '<ul><li class="task"><input type="checkbox" disabled="" aria-label="done"><p>a</p></li>'
                         '<li class="task"><input type="checkbox" disabled="" aria-label="to do"><p>b</p></li></ul>'),
    ("Years:\n1986. Great", "<p>Years:\n1986. Great</p>"),
    ("> a\n> > b\n> - c", "<blockquote><p>a</p><blockquote><p>b</p></blockquote><ul><li><p>c</p></li></ul></blockquote>"),
    ("| a | b |\n|---|:-:|\n| 1 \\| 2 | `x|y` |\n| 3 |\n\nend",
     '<table><thead><tr><th>a</th><th style="text-align: center;">b</th></tr></thead><tbody><tr><td>1 | 2</td>'
     '<td style="text-align: center;"><code>x|y</code></td></tr><tr><td>3</td><td style="text-align: center;"></td></tr></tbody></table><p>end</p>'),
    ("a | b\nno table", "<p>a | b\nno table</p>"),
    ("[a *b*](https://x.example/y_(z)) https://x.example/a_b_c.", '<p><a href="https://x.example/y_(z)" target="_blank" rel="noopener noreferrer">a <em>b</em></a> '
     '<a href="https://x.example/a_b_c" target="_blank" rel="noopener noreferrer">https://x.example/a_b_c</a>.</p>'),
    ("![cat](https://x.example/c.png)", '<p><a href="https://x.example/c.png" target="_blank" rel="noopener noreferrer">cat</a></p>'),
    ("[x](javascript:alert(1)) [y](JaVaScRiPt:alert) [z](data:text/html,x) [w](file:///etc) <javascript:alert(1)>",
     "<p>[x](javascript:alert(1)) [y](JaVaScRiPt:alert) [z](data:text/html,x) [w](file:///etc) &lt;javascript:alert(1)&gt;</p>"),
    ("<img src=x onerror=broken()> <b>x</b>", "<p>&lt;img src=x onerror=broken()&gt; &lt;b&gt;x&lt;/b&gt;</p>"),
    ("costs $5 and $10, or $5-$10", "<p>costs $5 and $10, or $5-$10</p>"),
    ("$$no\n\nformula", "<p>$$no</p><p>formula</p>"),
]

# LaTeX and the text of its MathML, with one element that must be in it.
FORMULAS = [
    (r"\frac{a}{b}", "ab", "mfrac"), (r"x_i^2", "xi2", "msubsup"), (r"\sum_{i=1}^n i", "∑i=1ni", "munderover"), (r"\sqrt[3]{x}", "x3", "mroot"),
    (r"\left( x \right]", "(x]", "mrow"), (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "(1234)", "mtable"), (r"\mathbb{R}^n", "ℝn", "msup"),
    (r"\alpha \leq \text{if } x", "α≤if x", "mtext"), (r"f'(x)", "f′(x)", "msup"), (r"\hat{x}", "x^", "mover"), (r"\unknown{x}", r"\unknownx", "mtext"),
    (r"\begin{cases} a & b \\ c & d \end{cases}", "{abcd", "mtable"), (r"\lim_{x \to 0}", "limx→0", "munder"),
    # unfinished or wrong: what is there is shown
    (r"\frac{a}{", "a", "mfrac"), (r"}x^", "x", "mi"), (r"\left(", "(", "mo"), (r"\begin{matrix} a & ", "a", "mtable"),
    ("{" * 100, "{" * 100, "code"), ("{" * 5000, "{" * 5000, "code"),
]

ANSWER = """Intro with **bold**, `code` and $x^2$.

| a | b |
|---|--:|
| 1 | 2 |

```python
def f(x):
    '''text
    of lines'''
    return "a"
```

- one
  - two

    more
- three

1. x

2. y

\\[ \\frac{1}{2} \\]

> quoted

Last ~~line~~
"""

# In the page: `plain` leaves out the wrappers, `html` is what a text becomes.
PLAIN = r"""
function html(text, growing) {
  const node = document.createElement("div");
  new MarkdownView(node).update(text, growing);
  return node.innerHTML;
}
function plain(text) {
  return html(text).replace(/<div class="(?:table|formula)" tabindex="0">(.*?)<\/div>/gs, "$1");
}
function formula(tex) { const node = TeX.render(tex, false); return [node.textContent.replace(/−/g, "-"), [node.localName, ...[...node.querySelectorAll("*")].map(n => n.localName)]]; }
"""

# An answer in pieces: whatever the cuts, the nodes at the end are those of the whole text.
STREAMED = r"""(text, step) => {
  const node = document.createElement("div"), view = new MarkdownView(node);
  for (let end = 1; end < text.length; end += step) view.update(text.slice(0, end), true);
  view.update(text, false);
  // a line of code keeps its own line feed; the last one may have kept one too
  const same = html => html.replace(/\n<\/span><\/code>/g, "</span></code>");
  return same(node.innerHTML) === same(html(text));
}"""

HALF = [("| a | b", "table"), ("| a | b |\n|--", "table"), ("```py\nx = 1", ".code code"), ("\\[ \\frac{1}{", "math"), ("$$\nx", "math"),
        ("so \\( x^2", "math"), ("**bo", "strong"), ("`co", "code"), ("- a\n  - b **c", "li li strong")]


def check(condition, what):
    if not condition:
        sys.exit(what)


def renders(page):
    for text, expected in CASES:
        found = page.eval(f"plain({json.dumps(text)})")
        check(found == expected, f"{text!r}\nexpected {expected}\nfound    {found}")
    for tex, expected, element in FORMULAS:
        text, elements = page.eval(f"formula({json.dumps(tex)})")
        check(text == expected and element in elements, f"{tex[:80]!r}: expected {expected[:80]!r} with {element}, found {text[:80]!r} of {elements[:20]}")
    for mark in ("$x$", "\\(x\\)", "$$x$$", "\\[x\\]", "a\n$$\nx\n$$\nb"):
        check(page.eval(f"html({json.dumps(mark)})").count("<math") == 1, f"{mark!r} is a formula")


def colours(page):
    code = page.eval(f"html({json.dumps(ANSWER)})")
    for part in ('<span>python</span>', 'aria-label="Copy this code"', '<span class="hl-keyword">def</span>',
                 '<span class="hl-call">f</span>', '<span class="hl-string">    of lines\'\'\'</span>'):
        check(part in code, f"code: {part} is missing in {code}")
    # Whatever the language makes of it, the pieces of a line are that line.
    lost = page.eval(r"""(() => {
      const source = ["x = \"a\\\"b\" + 'c' # d /* e", "f(`g ${h}`) // i */ -- j", "''' k \"\"\" 0x1F 1e-9 <a b=\"c\">", "@l #m $n {o: p} é 日本 👍", "\\"];
      const names = "c cpp java csharp go rust kotlin swift js php python ruby lua haskell r bash sql json yaml toml css html diff latex make docker cmake none";
      return names.split(" ").filter(name => {
        let open = null;
        return !source.every(line => {
          const read = Highlight.line(Highlight.lexer(name), line, open);
          open = read.open;
          return read.pieces.map(([, text]) => text).join("") === line;
        });
      }); })()""")
    check(lost == [], f"text lost by the colours of {lost}")


def streams(page):
    for step in (1, 2, 3, 7, 50):
        check(page.eval(f"({STREAMED})({json.dumps(ANSWER)}, {step})"), f"an answer in pieces of {step} differs from the whole")
    for text, selector in HALF:
        found = page.eval(f"(() => {{ const n = document.createElement('div'); new MarkdownView(n).update({json.dumps(text)}, true);"
                          f" return n.querySelector({json.dumps(selector)}) !== null; }})()")
        check(found, f"half-written {text!r} shows no {selector}")
    kept = page.eval("""(() => {
      const n = document.createElement("div"), view = new MarkdownView(n);
      view.update("a\\n\\nb\\n\\nc\\n\\n```js\\nlet x;\\n", true);
      const before = [n.firstChild, n.querySelector("pre"), n.querySelector("code").firstChild];
      view.update("a\\n\\nb\\n\\nc\\n\\n```js\\nlet x;\\nlet y;", true);
      return before.every(node => n.contains(node)); })()""")
    check(kept, "an answer that grows keeps the nodes that do not change")


def quick(page):
    """Long answers and texts made to be slow. The bounds are some ten times what a slow core takes."""
    hostile = ["*a " * 20000, "[" * 20000, "`" * 20001, "_a" * 20000, "> " * 5000, "- " * 5000, "$" * 20001, "\\[\n" * 20000, "|" * 20000,
               "~~a" * 20000, "[a](" * 10000, "<http" * 10000, "```" + "a\n" * 20000, "((" * 10000 + "https://a" * 5000, "**a `" * 10000]
    for text in hostile:
        took = page.eval(f"(() => {{ const t = performance.now(); html({json.dumps(text)}, true); return performance.now() - t; }})()")
        check(took < 5000, f"{text[:12]!r}... took {took:.0f} ms")
    took = page.eval(f"""(() => {{
      const text = ({json.dumps(ANSWER)}).repeat(100), n = document.createElement("div"), view = new MarkdownView(n);
      const t = performance.now();
      for (let end = 0; end < text.length; end += 40) view.update(text.slice(0, end), true);
      return performance.now() - t; }})()""")
    print(f"an answer of {100 * len(ANSWER)} characters in {100 * len(ANSWER) // 40} pieces: {took:.0f} ms")
    check(took < 10000, f"a long answer took {took:.0f} ms")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", required=True)
    options = parser.parse_args()
    page = Browser(find_chromium())
    try:
        page.call("Page.navigate", url=pathlib.Path(options.page).resolve().as_uri())
        page.until("document.readyState === 'complete' && typeof MarkdownView === 'function'", "the page")
        page.eval(PLAIN)
        for test in (renders, colours, streams, quick):
            test(page)
    finally:
        page.end()


if __name__ == "__main__":
    main()
