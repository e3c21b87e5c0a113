"use strict";
// Making nodes and writing figures. What people and models write only ever goes into text nodes: no part of the page
// parses HTML, and the policy it is served under (trusted types) would refuse that.

const $ = id => document.getElementById(id);

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// A button: its text, what it does, and a label where the text alone does not say enough.
function makeButton(className, text, action, label) {
  const button = make("button", className, text);
  button.type = "button";
  button.addEventListener("click", action);
  if (label) button.setAttribute("aria-label", label);
  return button;
}

const number = (value, digits = 1) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const duration = seconds =>
  !isFinite(seconds) ? "–" : seconds < 1 ? Math.round(seconds * 1000) + " ms" : number(seconds, seconds < 10 ? 2 : 1) + " s";

// Says something to screen readers, through the page's one live region.
function announce(text) { $("announcement").textContent = text; }

// Copies text. Browsers offer the clipboard's own interface to secure origins alone, so a page served to a network falls
// back on the selection of a hidden field.
async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { /* not allowed: the other way may be */ }
  }
  const field = make("textarea", "unseen");
  const focused = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}

// A button that copies what `text()` returns and says for a moment whether that worked.
function makeCopyButton(className, text, label) {
  const button = makeButton(className, "Copy", async () => {
    const said = await copyText(text()) ? "Copied" : "Not allowed";
    button.textContent = said;
    announce(said);
    setTimeout(() => { button.textContent = "Copy"; }, 1200);
  }, label);
  return button;
}
