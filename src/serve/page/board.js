"use strict";
// The dashboard: figures and plots of the last two minutes, drawn from /metrics.

// Prometheus text as {name: [{labels, value}]}.
function parseMetrics(text) {
  const out = {};
  for (const line of text.split("\n")) {
    const found = line.match(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    (out[found[1]] ??= []).push({ labels, value: Number(found[3]) });
  }
  return out;
}
const sum = (m, name) => (m[name] ?? []).reduce((total, entry) => total + entry.value, 0);
// Of a histogram's growth between two looks: linear within its bucket.
function quantile(now, before, name, share) {
  const buckets = (now[name + "_bucket"] ?? []).map((entry, i) => ({
    edge: entry.labels.le === "+Inf" ? Infinity : Number(entry.labels.le),
    n: entry.value - (before?.[name + "_bucket"]?.[i]?.value ?? 0) }));
  const total = buckets.length ? buckets[buckets.length - 1].n : 0;
  if (total <= 0) return NaN;
  let low = 0, below = 0;
  for (const { edge, n } of buckets) {
    if (n >= share * total) return edge === Infinity ? low : low + (edge - low) * (n > below ? (share * total - below) / (n - below) : 1);
    low = edge;
    below = n;
  }
  return low;
}
const kSeen = 121; // looks that are kept, one a second
const seen = [];
async function look() {
  let text;
  try {
    const response = await fetch("metrics", { headers: headers() });
    if (!response.ok) return;
    text = await response.text();
  } catch { return; }
  seen.push({ at: performance.now() / 1000, m: parseMetrics(text) });
  if (seen.length > kSeen) seen.shift();
  if (!$("board").hidden) board();
}
function rates(name) {
  const out = [];
  for (let i = 1; i < seen.length; i++)
    out.push((sum(seen[i].m, name) - sum(seen[i - 1].m, name)) / Math.max(.2, seen[i].at - seen[i - 1].at));
  return out;
}
const percent = value => isFinite(value) ? number(100 * value, value > .1 || value === 0 ? 0 : 1) + "%" : "–";
function big(id, value, unit) { $(id).replaceChildren(value, ...(unit ? [make("small", "", unit)] : [])); }
function plot(lines) {
  const top = Math.max(10, ...lines.flatMap(l => l.values)), svg = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const nodes = [25, 50, 75, 100].map(y => svg("line", { class: "rule", x1: 0, x2: 120, y1: y, y2: y }));
  for (const { values, cls } of lines) {
    const points = values.map((v, i) => `${(120 - (values.length - 1 - i)).toFixed(1)},${(100 - 96 * v / top).toFixed(2)}`);
    if (!points.length) continue;
    if (!cls) nodes.push(svg("polygon", { class: "area", points: `${121 - values.length},100 ${points.join(" ")} 120,100` }));
    nodes.push(svg("polyline", { class: "line " + cls, points: points.join(" ") }));
  }
  $("d-plot").replaceChildren(...nodes);
  $("d-scale").textContent = `last two minutes, full height ${number(top, 0)} tokens/s`;
}
function board() {
  const { m } = seen[seen.length - 1], before = seen[Math.max(0, seen.length - 61)]?.m;
  big("d-running", number(sum(m, "levin_requests_running"), 0), "requests");
  $("d-waiting").textContent = number(sum(m, "levin_requests_waiting"), 0) + " waiting, " + number(sum(m, "levin_sent_back_total"), 0) + " preempted";
  const made = rates("levin_generation_tokens_total"), read = rates("levin_prompt_tokens_total");
  const last = made.slice(-3);
  big("d-rate", number(last.reduce((a, b) => a + b, 0) / Math.max(1, last.length)), "tokens/s");
  $("d-total").textContent = number(sum(m, "levin_generation_tokens_total"), 0) + " written, " + number(sum(m, "levin_prompt_tokens_total"), 0) + " read so far";
  plot([{ values: read, cls: "other" }, { values: made, cls: "" }]);
  const passes = sum(m, "levin_verify_passes_total"), accepted = sum(m, "levin_accepted_tokens_total"), drafted = sum(m, "levin_drafted_tokens_total");
  big("d-accept", passes ? number(1 + accepted / passes, 2) : "–", passes ? "tokens per pass" : "");
  $("d-passes").textContent = drafted ? percent(accepted / drafted) + " of drafts accepted" : "no drafts yet";
  const places = (m.levin_accepted_tokens_per_position_total ?? []);
  $("d-bars").replaceChildren(...places.map(({ labels, value }) => {
    const share = passes ? value / passes : 0, column = make("div"), bar = make("i");
    bar.style.height = 78 * share + "%";
    column.append(percent(share), bar, String(Number(labels.position) + 1));
    return column;
  }));
  if (!places.length) $("d-bars").replaceChildren(make("span", "note", "Nothing drafted so far."));
  const asked = sum(m, "levin_prefix_queried_tokens_total");
  big("d-hits", asked ? percent(sum(m, "levin_prefix_found_tokens_total") / asked) : "–", asked ? "of tokens found" : "");
  const restored = sum(m, "levin_prefix_restored_tokens_total");
  $("d-restored").textContent = restored ? number(restored, 0) + " more tokens read from disk" : number(asked, 0) + " tokens looked up";
  const recent = before && sum(m, "levin_time_to_first_token_seconds_count") > sum(before, "levin_time_to_first_token_seconds_count");
  $("d-window").textContent = recent ? "of the last minute" : "since the start";
  $("d-latency").replaceChildren(...[["Time to first token", "levin_time_to_first_token_seconds"], ["Between pieces (ITL)", "levin_inter_token_latency_seconds"],
    ["Per token (TPOT)", "levin_request_time_per_output_token_seconds"], ["Whole request", "levin_e2e_request_latency_seconds"]].map(([name, metric]) => {
    const row = make("tr");
    row.append(make("td", "", name), ...[.5, .9, .99].map(q => make("td", "", duration(quantile(m, recent ? before : null, metric, q)))));
    return row;
  }));
  const pages = sum(m, "levin_cache_pages"), used = sum(m, "levin_cache_usage"), kept = sum(m, "levin_cache_kept");
  big("d-cache", percent(used), "in use" + (kept ? ", " + percent(kept) + " kept for later" : ""));
  $("d-pages").textContent = number(pages, 0) + " pages of 64 tokens";
  $("d-used").style.width = 100 * used + "%";
  $("d-kept").style.width = 100 * kept + "%";
  const disk = sum(m, "levin_disk_cache_bytes");
  $("d-disk").textContent = disk ? `${number(disk / 2 ** 20, 1)} MiB on disk, ${number(sum(m, "levin_disk_cache_pages"), 0)} pages of this model` : "nothing on disk";
  $("d-ended").textContent = (m.levin_ended_total ?? []).map(e => number(e.value, 0) + " " + e.labels.finished_reason).join(", ") + ", " + number(sum(m, "levin_refused_total"), 0) + " refused";
}

