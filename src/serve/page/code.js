"use strict";
// A block of code on the page: its language, a copy button, and lines in colours.
class CodeBlock {
  constructor(language) {
    this.language = language;
    this.lexer = Highlight.lexer(language);
    this.node = make("div", "code");
    this.code = make("code");
    this.lines = [];        // of the text that is shown
    this.n_fixed = 0;       // lines before the last one: they are coloured once and never again
    this.open = null;       // what the fixed lines leave open
    const head = make("div", "code-head");
    head.append(make("span", "", language || "text"),
                makeCopyButton("", () => this.lines.join("\n"), "Copy this code"));
    const body = make("pre");
    body.tabIndex = 0; // scrolls sideways by the keyboard
    body.append(this.code);
    this.node.append(head, body);
  }

  // Shows `lines`. They begin with the lines shown so far, but for the last of those, which may have grown.
  update(lines) {
    this.lines = lines;
    while (this.code.childNodes.length > this.n_fixed) this.code.lastChild.remove();
    const fresh = document.createDocumentFragment();
    for (; this.n_fixed < lines.length - 1; this.n_fixed++) {
      const read = Highlight.line(this.lexer, lines[this.n_fixed], this.open);
      this.open = read.open;
      fresh.append(CodeBlock.lineNode(read.pieces, "\n"));
    }
    if (this.n_fixed < lines.length) fresh.append(CodeBlock.lineNode(Highlight.line(this.lexer, lines.at(-1), this.open).pieces, ""));
    this.code.append(fresh);
  }

  static lineNode(pieces, ending) {
    const line = make("span");
    for (const [kind, text] of pieces) line.append(kind ? make("span", "hl-" + kind, text) : text);
    line.append(ending);
    return line;
  }
}
