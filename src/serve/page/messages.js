"use strict";
// The conversation on screen and the list of conversations.

const scroll = $("scroll");
let follow = true; // the end is in view and stays there
scroll.addEventListener("scroll", () => {
  follow = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
  $("down").hidden = follow;
});
const toEnd = () => { if (follow) scroll.scrollTop = scroll.scrollHeight; };
$("down").onclick = () => { follow = true; toEnd(); };

function answerView(message, again) {
  const node = make("article", "answer"), thought = make("details", "thought"), summary = make("summary"), why = make("div");
  thought.append(summary, why);
  thought.hidden = true;
  const wait = make("div", "wait");
  wait.append(make("i"), make("i"), make("i"));
  const text = make("div", "text"), fault = make("div", "fault"), foot = make("div", "foot");
  const markdown = new MarkdownView(text);
  node.setAttribute("aria-label", "Answer");
  node.append(thought, wait, text, fault, foot);
  let pending = false, folded = false;
  const draw = () => {
    pending = false;
    const growing = running?.answer === message;
    node.classList.toggle("growing", growing && !!message.content);
    wait.hidden = !growing || !!message.content || !!message.reasoning;
    if (message.reasoning) {
      thought.hidden = false;
      why.textContent = message.reasoning;
      const thinking = growing && !message.content;
      if (thinking && !folded) thought.open = true;
      if (!thinking && !folded) { thought.open = false; folded = true; }
      summary.textContent = thinking ? "Thinking…" : message.thought_s ? "Thought for " + duration(message.thought_s) : "Reasoning";
    }
    text.hidden = !message.content;
    if (message.content) markdown.update(message.content, growing);
    fault.hidden = !message.fault;
    fault.textContent = message.fault ?? "";
    foot.replaceChildren(...(growing ? live(message) : [...figures(message), ...buttons()]));
    toEnd();
  };
  const buttons = () => {
    const retry = makeButton("", message.fault ? "Try again" : "Again", again, message.fault ? "" : "Answer again");
    return message.content ? [makeCopyButton("", () => message.content, "Copy the answer"), retry] : [retry];
  };
  return { node, update() { if (!pending) { pending = true; requestAnimationFrame(draw); } }, draw };
}
const figure = (value, unit) => {
  const node = make("span");
  node.append(make("b", "", value), " " + unit);
  return node;
};
const live = m => m.tokens ? [figure(number(m.tokens, 0), "tokens"), ...(m.rate ? [figure(number(m.rate), "tokens/s")] : [])] : [];
function figures(m) {
  if (!m.tokens) return [];
  const out = live(m);
  if (m.accepted) out.push(figure(number(m.accepted, 2), "accepted length"));
  if (m.first_s) out.push(figure(duration(m.first_s), "to first token"));
  if (m.found) out.push(figure(number(m.found, 0), "prompt tokens cached"));
  if (m.end && m.end !== "stop") out.push(make("span", "", m.end === "length" ? "cut at the limit" : m.end));
  return out;
}

// A question, with a button that makes it a field: what is sent from there takes the question's place, and what came after
// it goes.
function questionView(message, resend) {
  const node = make("article", "question");
  node.setAttribute("aria-label", "You");
  const draw = () => {
    const foot = make("div", "foot");
    foot.append(makeCopyButton("", () => message.content, "Copy the message"), makeButton("", "Edit", edit, "Edit the message"));
    node.replaceChildren(make("div", "user", message.content), foot);
  };
  const edit = () => {
    if (running) return;
    const field = make("textarea", "user");
    const foot = make("div", "foot");
    const leave = () => { draw(); node.querySelector(".foot button:last-child").focus(); };
    const send = () => { if (field.value.trim()) resend(field.value.trim()); };
    field.value = message.content;
    field.setAttribute("aria-label", "The message");
    field.addEventListener("keydown", e => {
      if (e.key === "Escape") leave();
      else if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
    });
    foot.append(makeButton("", "Cancel", leave), makeButton("chosen", "Send", send, "Send the edited message"));
    node.replaceChildren(field, foot);
    field.rows = Math.min(12, message.content.split("\n").length + 1);
    field.focus();
  };
  draw();
  return node;
}

function titleOf(text) { return text.replace(/\s+/g, " ").slice(0, 60); }

function messageNodes(shown) {
  return shown.messages.map((message, place) => {
    if (message.role === "user") {
      return questionView(message, text => {
        if (running) return;
        shown.messages.length = place;
        if (place === 0) shown.title = titleOf(text);
        shown.messages.push({ role: "user", content: text });
        answer(shown);
      });
    }
    const view = answerView(message, () => {
      if (running) return;
      shown.messages.length = place;
      answer(shown);
    });
    if (running?.answer === message) running.view = view;
    view.draw();
    return view.node;
  });
}

function show() {
  $("messages").replaceChildren(...(talk ? messageNodes(talk) : []));
  $("hello").hidden = Boolean(talk?.messages.length);
  $("export").hidden = !talk;
  showInAddress(talk);
  follow = true;
  toEnd();
  list();
  buttonState();
}

// The conversations. On a narrow window they are a drawer, which choosing one closes.
function drawer(open) {
  $("side").classList.toggle("open", open);
  $("shade").hidden = !open;
  $("chat").inert = open;
  $("open-side").setAttribute("aria-expanded", open);
  if (open) $("new").focus();
}
function list() {
  $("list").replaceChildren(...talks.map(t => {
    const entry = make("li", t === talk ? "here" : "");
    const open = makeButton("open", t.title, () => { talk = t; drawer(false); show(); });
    const drop = makeButton("drop", "×", () => {
      if (running?.talk === t) running.abort.abort();
      talks = talks.filter(other => other !== t);
      if (talk === t) talk = null;
      save();
      show();
    }, "Delete " + t.title);
    if (t === talk) open.setAttribute("aria-current", "true");
    entry.append(open, drop);
    return entry;
  }));
}
