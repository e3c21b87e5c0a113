"use strict";
// Markdown, the part of it that models write, as nodes: headings, nested lists with tasks, tables, quotes, rules, code,
// formulas, emphasis, strikethrough, links. Text is only ever put into text nodes and links lead to web and mail
// addresses alone, so that an answer cannot make the browser do anything. Images are shown as links: the page loads
// nothing from elsewhere.
//
//   const view = new MarkdownView(node);
//   view.update(text, growing)    shows `text` in `node`. While an answer grows, each call gets the text of the call before
//                                 and more; blocks that can no longer change are not read again. `growing` shows a table,
//                                 formula or emphasis that is only half there as what it is going to be.
const kDeepestMarkdown = 12; // lists, quotes and emphasis inside each other; what is deeper stays text

// ---- blocks: lines to {type, from, end, ...}, the lines [from, end) and what they are -------------------------------
const Blocks = (() => {
  const kFence = /^(\s*)(`{3,}|~{3,})\s*([^`]*)$/;
  const kHeading = /^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$/;
  const kRule = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
  const kItem = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
  const kDelimiters = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
  const kMathOpen = /^\s*(\$\$|\\\[)/;
  const kLongestFormula = 200; // lines
  const indent = line => line.replace(/\t/g, "    ").match(/^ */)[0].length;
  const blank = line => !line.trim();

  function fence(lines, at) {
    const [, margin, mark, info] = lines[at].match(kFence);
    const closing = line => {
      const text = line.trim();
      return text.length >= mark.length && text === mark[0].repeat(text.length);
    };
    let end = at + 1;
    while (end < lines.length && !closing(lines[end])) end++;
    const inside = new RegExp(`^\\s{0,${margin.length}}`);
    return { type: "code", language: info.trim().split(/\s+/)[0].replace(/^\{?\.?|\}$/g, ""),
             lines: lines.slice(at + 1, end).map(line => line.replace(inside, "")), from: at, end: Math.min(end + 1, lines.length) };
  }

  // A formula on lines of its own. It ends before a blank line, as in LaTeX; one that is not closed there is none.
  function formula(lines, at, growing) {
    const mark = lines[at].match(kMathOpen)[1];
    const closing = mark === "$$" ? "$$" : "\\]";
    const said = [];
    for (let end = at, line = lines[at].trimStart().slice(2); ; line = lines[end]) {
      end++;
      const place = line.indexOf(closing);
      said.push(place < 0 ? line : line.slice(0, place));
      if (place >= 0 && !blank(line.slice(place + 2))) return null;
      if (place >= 0 || (growing && end === lines.length)) return { type: "math", tex: said.join("\n").trim(), from: at, end };
      if (end === lines.length || said.length > kLongestFormula || blank(lines[end])) return null;
    }
  }

  // The cells of a table's row: split at bars, but for escaped ones and those in code.
  function cells(line) {
    const out = [""];
    for (const [piece] of line.trim().replace(/^\|/, "").matchAll(/\\\||`[^`]*`|\||[^|`\\]+|[^]/g)) {
      if (piece === "|") out.push("");
      else out[out.length - 1] += piece === "\\|" ? "|" : piece;
    }
    if (out.length > 1 && blank(out.at(-1))) out.pop();
    return out.map(cell => cell.trim());
  }

  function table(lines, at, growing) {
    if (!lines[at].includes("|")) return null;
    const rest = lines.length - at;
    const half = growing && rest <= 2 && /^\s*\|/.test(lines[at]) && /^[\s|:-]*$/.test(lines[at + 1] ?? "");
    const header = cells(lines[at]);
    const marks = rest > 1 ? cells(lines[at + 1]) : [];
    if (!half && !(rest > 1 && kDelimiters.test(lines[at + 1]) && marks.length === header.length)) return null;
    let end = at + 2;
    while (end < lines.length && lines[end].includes("|")) end++;
    const aligns = header.map((_, i) => /^:-*:$/.test(marks[i] ?? "") ? "center" : /:$/.test(marks[i] ?? "") ? "right" : "");
    return { type: "table", header, aligns, rows: lines.slice(at + 2, end).map(cells), from: at, end: Math.min(end, lines.length) };
  }

  function quote(lines, at) {
    let end = at;
    while (end < lines.length && /^\s*>/.test(lines[end])) end++;
    return { type: "quote", lines: lines.slice(at, end).map(line => line.replace(/^\s*> ?/, "")), from: at, end };
  }

  // A list and all that is indented below its items.
  function list(lines, at) {
    const margin = indent(lines[at]);
    const ordered = /\d/.test(lines[at].match(kItem)[2]);
    const items = [];
    let end = at;
    for (let i = at, gap = false; i < lines.length; i++) {
      const line = lines[i];
      if (blank(line)) { gap = true; continue; }
      const found = line.match(kItem);
      const inside = indent(line);
      if (found && inside <= margin + 1 && !kRule.test(line)) {
        if (/\d/.test(found[2]) !== ordered || inside < margin) break;
        items.push({ mark: found[2], width: inside + found[2].length + Math.min(4, found[3].length || 1), lines: [found[4]] });
      } else if (inside > margin || (!gap && !starts(lines, i))) {
        const item = items.at(-1);
        if (gap) item.lines.push("");
        item.lines.push(line.replace(/\t/g, "    ").slice(Math.min(inside, item.width)));
      } else break;
      gap = false;
      end = i + 1;
    }
    return { type: "list", ordered, start: ordered ? parseInt(items[0].mark, 10) : 1, items, from: at, end };
  }

  // Whether a line begins something other than a paragraph, or ends one.
  function starts(lines, at) {
    const line = lines[at];
    const item = line.match(kItem);
    return kFence.test(line) || kHeading.test(line) || kRule.test(line) || /^\s*>/.test(line) || kMathOpen.test(line) ||
      (item !== null && item[4] !== "" && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1));
  }

  function paragraph(lines, at, growing) {
    let end = at + 1;
    while (end < lines.length && !blank(lines[end]) && !starts(lines, end) && !table(lines, end, growing)) end++;
    return { type: "paragraph", text: lines.slice(at, end).join("\n"), from: at, end };
  }

  function blockAt(lines, at, growing) {
    const line = lines[at];
    if (kFence.test(line)) return fence(lines, at);
    if (kMathOpen.test(line)) return formula(lines, at, growing) ?? paragraph(lines, at, growing);
    const heading = line.match(kHeading);
    if (heading) return { type: "heading", level: heading[1].length, text: heading[2], from: at, end: at + 1 };
    if (kRule.test(line)) return { type: "rule", from: at, end: at + 1 };
    if (/^\s*>/.test(line)) return quote(lines, at);
    if (kItem.test(line)) return list(lines, at);
    return table(lines, at, growing) ?? paragraph(lines, at, growing);
  }

  // The blocks of the lines from `at` on.
  function read(lines, at, growing) {
    const out = [];
    while (at < lines.length) {
      if (blank(lines[at])) { at++; continue; }
      out.push(blockAt(lines, at, growing));
      at = out.at(-1).end;
    }
    return out;
  }

  return { read };
})();

// ---- the text inside a block ----------------------------------------------------------------------------------------
const Inline = (() => {
  const kSpecial = /[\\`*_~[!<$]|https?:\/\//g;
  const kLink = /!?\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(\s*<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+"[^"]*")?\s*\)/y;
  const kAngled = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
  const kAddress = /https?:\/\/[^\s<>"`]*[^\s<>"`.,;:!?'*_~\])}]/y;
  const kEscaped = /\\([!-/:-@[-`{-~])/y;
  const kFormula = /\\\(([^]+?)\\\)|\\\[([^]+?)\\\]|\$\$([^$]+)\$\$|\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/y;
  const kInLink = kDeepestMarkdown - 1; // from this depth on there are no links
  const kTags = { "**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "del" };

  const matchAt = (pattern, text, at) => { pattern.lastIndex = at; return pattern.exec(text); };

  // A link to `address`, or null: an answer may lead to the web and to mail, never to a script or a file.
  function link(address, text) {
    if (!/^(?:https?:\/\/|mailto:)/i.test(address)) return null;
    const node = make("a", "", text);
    node.href = address;
    node.target = "_blank";
    node.rel = "noopener noreferrer";
    return node;
  }

  // One block's text. `missing` remembers marks that close nowhere behind a place, so that none is looked for twice.
  class Reader {
    constructor(text, growing, depth) { Object.assign(this, { text, growing, depth, missing: new Set() }); }

    into(node) {
      let plain = 0; // where the text that is not yet in the node begins
      for (let found, at = 0; (found = matchAt(kSpecial, this.text, at)); ) {
        const made = this.markAt(found.index);
        if (!made) { at = found.index + 1; continue; }
        node.append(this.text.slice(plain, found.index), made.node);
        plain = at = made.end;
      }
      node.append(this.text.slice(plain));
    }

    // What begins at a place: {node, end} or null, where it is text after all.
    markAt(at) {
      switch (this.text[at]) {
        case "`": return this.codeAt(at);
        case "\\": return this.formulaAt(at) ?? this.escapedAt(at);
        case "$": return this.formulaAt(at);
        case "[": case "!": return this.linkAt(at);
        case "<": case "h": return this.addressAt(at);
        default: return this.emphasisAt(at);
      }
    }

    codeAt(at) {
      const mark = this.text.slice(at).match(/^`{1,40}/)[0];
      let end = this.missing.has(mark) ? -1 : this.text.indexOf(mark, at + mark.length);
      while (end >= 0 && this.text[end + mark.length] === "`") {
        while (this.text[end] === "`") end++;
        end = this.text.indexOf(mark, end);
      }
      if (end < 0) {
        this.missing.add(mark);
        if (!this.growing || at + mark.length === this.text.length) return null;
      }
      const inside = this.text.slice(at + mark.length, end < 0 ? undefined : end);
      return { node: make("code", "", inside.replace(/^ (.*) $/, "$1")), end: end < 0 ? this.text.length : end + mark.length };
    }

    formulaAt(at) {
      const found = matchAt(kFormula, this.text, at);
      if (found) return { node: TeX.render(found[1] ?? found[2] ?? found[3] ?? found[4], Boolean(found[2] ?? found[3])), end: kFormula.lastIndex };
      if (!this.growing || !/^\\[([]/.test(this.text.slice(at, at + 2))) return null;
      return { node: TeX.render(this.text.slice(at + 2), false), end: this.text.length };
    }

    escapedAt(at) {
      const found = matchAt(kEscaped, this.text, at);
      return found && { node: document.createTextNode(found[1]), end: kEscaped.lastIndex };
    }

    linkAt(at) {
      if (this.depth >= kInLink) return null;
      const found = matchAt(kLink, this.text, at);
      const end = kLink.lastIndex;
      const node = found && link(found[2]);
      if (!node) return null;
      if (found[0][0] === "!") node.textContent = found[1] || found[2];
      else write(node, found[1], false, kInLink);
      return { node, end };
    }

    addressAt(at) {
      if (this.depth >= kInLink) return null;
      const angled = matchAt(kAngled, this.text, at);
      const end = kAngled.lastIndex;
      if (angled) return { node: link(angled[1], angled[1].replace(/^mailto:/, "")), end };
      if (/\w/.test(this.text[at - 1] ?? "")) return null;
      const found = matchAt(kAddress, this.text, at);
      return found && { node: link(found[0], found[0]), end: kAddress.lastIndex };
    }

    emphasisAt(at) {
      const { text } = this;
      const mark = text[at + 1] === text[at] ? text.slice(at, at + 2) : text[at];
      const begin = at + mark.length;
      if (!kTags[mark] || this.depth >= kDeepestMarkdown || begin >= text.length || /\s/.test(text[begin])) return null;
      if (mark[0] === "_" && /\w/.test(text[at - 1] ?? "")) return null; // snake_case
      let end = this.missing.has(mark) ? -1 : this.closeOf(mark, begin);
      if (end < 0) {
        this.missing.add(mark);
        if (!this.growing || mark !== "**") return null;
        end = text.length;
      }
      const node = make(kTags[mark]);
      write(node, text.slice(begin, end), this.growing && end === text.length, this.depth + 1);
      return { node, end: Math.min(text.length, end + mark.length) };
    }

    // Where `mark` closes what began at `from`; -1: nowhere.
    closeOf(mark, from) {
      const { text } = this;
      for (let at = from; at < text.length; at++) {
        if (text[at] === "\\") { at++; continue; }
        if (text[at] === "`") { at = Math.max(at, text.indexOf("`", at + 1)); continue; }
        if (!text.startsWith(mark, at)) continue;
        if (mark.length === 1 && text[at + 1] === mark) { at++; continue; }     // a double one inside
        if (/\s/.test(text[at - 1]) || at === from) continue;
        if (mark[0] === "_" && /\w/.test(text[at + mark.length] ?? "")) continue;
        return mark.length === 2 && text[at + 2] === mark[0] ? at + 1 : at;     // "***" closes the inner one first
      }
      return -1;
    }
  }

  function write(node, text, growing, depth) { new Reader(text, growing, depth).into(node); }

  return { write };
})();

// ---- blocks as nodes ------------------------------------------------------------------------------------------------
class MarkdownView {
  constructor(node) {
    this.node = node;
    this.shown = [];   // {block, node, code}: the blocks on the page, in order
  }

  update(text, growing = false) {
    const lines = text.split("\n");
    // More text can only change the last block and, by what its first line turns out to be, the one before it.
    const n_fixed = Math.max(0, this.shown.length - 2);
    const before = this.shown.splice(n_fixed);
    const at = n_fixed ? this.shown.at(-1).block.end : 0;
    for (const block of Blocks.read(lines, at, growing)) this.shown.push(MarkdownView.show(block, growing && block.end === lines.length, before));
    const fresh = this.shown.slice(n_fixed).map(entry => entry.node);
    for (const { node } of before) if (!fresh.includes(node)) node.remove();
    let place = n_fixed ? this.shown[n_fixed - 1].node.nextSibling : this.node.firstChild;
    for (const node of fresh) {
      if (node === place) place = place.nextSibling;
      else this.node.insertBefore(node, place);
    }
  }

  // A block as an entry of `shown`. Code that was on the page before keeps its node and its coloured lines.
  static show(block, growing, before) {
    if (block.type !== "code") return { block, node: MarkdownView.nodeOf(block, growing, 0) };
    const known = before.find(other => other.code && other.block.from === block.from && other.code.language === block.language);
    const code = known?.code ?? new CodeBlock(block.language);
    code.update(block.lines);
    return { block, code, node: code.node };
  }

  static fill(node, lines, growing, depth) {
    for (const block of Blocks.read(lines, 0, growing))
      node.append(MarkdownView.nodeOf(block, growing && block.end === lines.length, depth));
  }

  static nodeOf(block, growing, depth) {
    switch (block.type) {
      case "code": return MarkdownView.show(block, growing, []).node;
      case "math": return MarkdownView.formula(block);
      case "rule": return make("hr");
      case "heading": return MarkdownView.text("h" + Math.min(6, block.level + 1), block.text, growing);
      case "table": return MarkdownView.table(block, growing);
      case "list": return MarkdownView.list(block, growing, depth);
      case "quote": {
        const node = make("blockquote");
        if (depth >= kDeepestMarkdown) node.textContent = block.lines.join("\n");
        else MarkdownView.fill(node, block.lines, growing, depth + 1);
        return node;
      }
      default: return MarkdownView.text("p", block.text, growing);
    }
  }

  static text(tag, text, growing) {
    const node = make(tag);
    Inline.write(node, text, growing, 0);
    return node;
  }

  static formula(block) {
    const node = make("div", "formula");
    node.tabIndex = 0;
    node.append(TeX.render(block.tex, true));
    return node;
  }

  static table(block, growing) {
    const node = make("div", "table");
    node.tabIndex = 0; // scrolls sideways by the keyboard
    const table = make("table");
    const row = (tag, texts) => {
      const line = make("tr");
      line.append(...block.header.map((_, i) => {
        const cell = MarkdownView.text(tag, texts[i] ?? "", growing);
        if (block.aligns[i]) cell.style.textAlign = block.aligns[i];
        return cell;
      }));
      return line;
    };
    const head = make("thead");
    const body = make("tbody");
    head.append(row("th", block.header));
    body.append(...block.rows.map(texts => row("td", texts)));
    table.append(head, body);
    node.append(table);
    return node;
  }

  static list(block, growing, depth) {
    const node = make(block.ordered ? "ol" : "ul");
    if (block.ordered && block.start !== 1) node.start = block.start;
    for (const [i, item] of block.items.entries()) {
      const entry = make("li");
      const task = item.lines[0].match(/^\[([ xX])\]\s+(.*)$/);
      if (task) entry.append(MarkdownView.taskBox(task[1] !== " "));
      const lines = task ? [task[2], ...item.lines.slice(1)] : item.lines;
      if (depth >= kDeepestMarkdown) entry.append(lines.join("\n"));
      else MarkdownView.fill(entry, lines, growing && i === block.items.length - 1, depth + 1);
      if (task) entry.className = "task";
      node.append(entry);
    }
    return node;
  }

  static taskBox(done) {
    const box = make("input");
    box.type = "checkbox";
    box.checked = done;
    box.disabled = true;
    box.setAttribute("aria-label", done ? "done" : "to do");
    return box;
  }
}
