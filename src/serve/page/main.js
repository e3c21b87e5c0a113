"use strict";
// Starts the page: the model's name, the server's health, the two tabs.

let model = undefined;
async function findModel() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) return;
    const found = (await response.json()).data[0];
    model = found.id;
    $("model").textContent = `${found.id}, ${number(found.max_model_len, 0)} tokens`;
    $("hello-model").textContent = found.id + " answers";
    document.title = "Levin: " + found.id;
  } catch { /* the next look says so */ }
}
async function health() {
  let state = "bad", said = "cannot be reached";
  try {
    const response = await fetch("health");
    state = response.ok ? "good" : "bad";
    said = response.ok ? "well" : "in trouble: status " + response.status;
  } catch { /* as it stands */ }
  $("state").className = state;
  $("state").title = "The server is " + said;
  if (state === "good" && model === undefined) findModel();
}
function tab(name) {
  $("main").hidden = name !== "chat";
  $("board").hidden = name !== "board";
  for (const other of ["chat", "board"]) {
    $("tab-" + other).setAttribute("aria-selected", other === name);
    $("tab-" + other).tabIndex = other === name ? 0 : -1;
  }
  $("open-side").disabled = $("new-narrow").disabled = name !== "chat";
  drawer(false);
  if (name === "board" && seen.length) board();
  if (name === "chat") box.focus();
}
$("tab-chat").onclick = () => tab("chat");
$("tab-board").onclick = () => tab("board");
document.querySelector("nav").addEventListener("keydown", e => {
  if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
  const other = $("main").hidden ? "chat" : "board";
  tab(other);
  $("tab-" + other).focus();
});
// A reload in the middle of an answer keeps what is there of it; Back goes to the conversation before.
addEventListener("pagehide", () => { if (running) save(); });
addEventListener("storage", e => { if (e.key === "levin.talks") { takeOverTalks(); list(); } });
addEventListener("popstate", () => { talk = talkOfAddress(); show(); });
setInterval(() => { if (!document.hidden) look(); }, 1000);
setInterval(() => { if (!document.hidden) health(); }, 5000);
look();
health();
talk = talkOfAddress();
show();
tab("chat");
