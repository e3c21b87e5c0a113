"use strict";
// Asking and answering: requests, streams, the field to write in, settings.

function request(t) {
  const messages = t.messages.filter(m => m.role === "user" || m.content).map(m => ({ role: m.role, content: m.content }));
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
  const body = { messages, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
                 chat_template_kwargs: { thinking: settings.think, enable_thinking: settings.think } };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (String(settings[name]).trim() !== "") body[name] = Number(settings[name]);
  }
  return body;
}
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}
function take(message, event, clock) {
  if (event.error) throw new Error(event.error.message);
  const choice = event.choices?.[0], now = performance.now() / 1000;
  const reasoning = choice?.delta?.reasoning_content ?? choice?.delta?.reasoning ?? "", content = choice?.delta?.content ?? "";
  if (reasoning || content) message.first_s ??= now - clock.begun;
  message.reasoning += reasoning;
  if (content && message.reasoning && !message.content) message.thought_s = now - clock.begun - message.first_s;
  message.content += content;
  for (const call of choice?.delta?.tool_calls ?? []) message.content += (call.function?.name ? "\n" + call.function.name + " " : "") + (call.function?.arguments ?? "");
  if (choice?.finish_reason) message.end = choice.finish_reason;
  const usage = event.usage;
  if (!usage) return;
  message.tokens = usage.completion_tokens;
  message.found = usage.prompt_tokens_details?.cached_tokens ?? 0;
  message.accepted = usage.speculation?.mean_accept_length ?? 0;
  if (message.first_s !== undefined && clock.first === undefined) { clock.first = now; clock.tokens = message.tokens; }
  else if (choice && clock.first !== undefined && now > clock.first) message.rate = (message.tokens - clock.tokens) / (now - clock.first);
}
async function answer(t) {
  const message = { role: "assistant", content: "", reasoning: "" };
  t.messages.push(message);
  running = { abort: new AbortController(), talk: t, answer: message, view: null };
  talks = [t, ...talks.filter(other => other !== t)];
  show();
  save();
  announce("Answering");
  const clock = { begun: performance.now() / 1000 };
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify({ model: model, ...request({ messages: t.messages.slice(0, -1) }) }), signal: running.abort.signal });
    if (!response.ok) {
      const said = await response.text();
      let why = said;
      try { why = JSON.parse(said).error.message; } catch { /* not from Levin */ }
      throw new Error(response.status === 401 ? "This server needs an API key; enter it in the settings." : why || "status " + response.status);
    }
    for await (const event of events(response)) {
      take(message, event, clock);
      running.view?.update();
    }
  } catch (fault) {
    if (fault.name === "AbortError") message.end = "stopped";
    else message.fault = fault instanceof TypeError ? "The server cannot be reached." : fault.message;
  }
  const view = running.view;
  running = null;
  view?.draw();
  save();
  announce(message.fault ? "No answer: " + message.fault : "The answer is complete");
  buttonState();
}
function ask(text) {
  text = text.trim();
  if (!text || running) return;
  if (!talk) talk = { id: freshId(), title: titleOf(text), messages: [] };
  talk.messages.push({ role: "user", content: text });
  $("ask").value = "";
  grow();
  answer(talk);
}

const box = $("ask"), send = $("send");
const sendIcon = send.firstElementChild, stopIcon = make("span", "stop");
function buttonState() {
  send.replaceChildren(running ? stopIcon : sendIcon);
  send.setAttribute("aria-label", running ? "Stop" : "Send");
  send.disabled = !running && !box.value.trim();
}
function grow() { box.style.height = "auto"; box.style.height = box.scrollHeight + "px"; buttonState(); }
const act = () => { if (running) running.abort.abort(); else ask(box.value); };
box.addEventListener("input", grow);
box.addEventListener("keydown", e => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (!running) act(); }
});
document.addEventListener("keydown", e => {
  if (e.key !== "Escape" || $("settings").open) return;
  if ($("side").classList.contains("open")) { drawer(false); $("open-side").focus(); }
  else running?.abort.abort();
});
send.onclick = act;
const fresh = () => { talk = null; drawer(false); show(); box.focus(); };
$("new").onclick = fresh;
$("new-narrow").onclick = fresh;
$("open-side").onclick = () => drawer(!$("side").classList.contains("open"));
$("shade").onclick = () => drawer(false);
$("export-markdown").onclick = () => { if (talk) download(fileName(talk) + ".md", "text/markdown", talkAsMarkdown(talk)); };
$("export-json").onclick = () => { if (talk) download(fileName(talk) + ".json", "application/json", talkAsJson(talk, model)); };
$("think").onclick = () => { settings.think = !settings.think; $("think").setAttribute("aria-pressed", settings.think); save(); };
$("think").setAttribute("aria-pressed", settings.think);
for (const idea of ["What is the capital of Japan?", "What is speculative decoding?", "Repeat: river stone apple tiger"]) {
  const button = make("button", "", idea);
  button.onclick = () => ask(idea);
  $("ideas").append(button);
}
const form = $("settings").querySelector("form");
$("open-settings").onclick = () => {
  for (const field of form.elements) if (field.name) field.value = settings[field.name];
  $("settings").showModal();
};
const takeSettings = () => {
  for (const field of form.elements) if (field.name && field.validity.valid) settings[field.name] = field.value;
  save();
  findModel();
};
form.addEventListener("submit", takeSettings);        // at once: "close" comes a while after the dialog is gone
$("settings").addEventListener("cancel", takeSettings);  // Escape keeps them too
