"use strict";
// What the browser keeps: settings and conversations. The address ends in #<id of the conversation>, so that a reload and
// the browser's Back stay in it.

const keep = {
  read(name, otherwise) {
    try { return JSON.parse(localStorage.getItem("levin." + name)) ?? otherwise; } catch { return otherwise; }
  },
  write(name, value) {
    try { localStorage.setItem("levin." + name, JSON.stringify(value)); } catch { /* full, or not allowed: not kept */ }
  },
};
const kMostTalks = 60;
const settings = Object.assign({ system: "", temperature: "", top_p: "", max_tokens: "", seed: "", key: "", think: false },
                               keep.read("settings", {}));
const freshId = () => [...crypto.getRandomValues(new Uint8Array(6))].map(byte => byte.toString(16).padStart(2, "0")).join("");

function keptTalks() {
  const kept = keep.read("talks", []);
  return Array.isArray(kept) ? kept.map(one => ({ ...one, id: one.id ?? freshId() })) : [];
}
let talks = keptTalks(); // {id, title, messages: [{role, content, ...}]}, the latest first
keep.write("talks", talks); // with the ids that older ones lacked
let talk = null;    // the conversation on screen; null: a new one
let running = null; // {abort, talk, answer, view}: the answer that is being written

function save() {
  keep.write("talks", talks.slice(0, kMostTalks));
  keep.write("settings", settings);
}
const headers = () => settings.key ? { Authorization: "Bearer " + settings.key } : {};

// Takes over what another tab has saved; the conversations that this one shows or writes stay as they are here.
function takeOverTalks() {
  talks = keptTalks();
  for (const own of new Set([talk, running?.talk].filter(Boolean))) {
    const place = talks.findIndex(kept => kept.id === own.id);
    if (place < 0) talks.unshift(own);
    else talks[place] = own;
  }
}

function talkOfAddress() { return talks.find(kept => "#" + kept.id === location.hash) ?? null; }
function showInAddress(shown) {
  const address = shown ? "#" + shown.id : location.pathname + location.search;
  if (location.hash === (shown ? address : "")) return;
  history.pushState(null, "", address);
}

// ---- export ---------------------------------------------------------------------------------------------------------
function talkAsMarkdown(shown) {
  const parts = ["# " + shown.title];
  for (const message of shown.messages) {
    parts.push(message.role === "user" ? "## You" : "## Answer");
    if (message.reasoning) parts.push(message.reasoning.trim().split("\n").map(line => "> " + line).join("\n"));
    if (message.content) parts.push(message.content);
  }
  return parts.join("\n\n") + "\n";
}
// The messages as the API takes them.
function talkAsJson(shown, model) {
  const messages = shown.messages.map(({ role, content, reasoning }) =>
    ({ role, content, ...(reasoning ? { reasoning_content: reasoning } : {}) }));
  return JSON.stringify({ title: shown.title, model, messages }, null, 2) + "\n";
}
function download(name, type, text) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
const fileName = shown => shown.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 40) || "conversation";
