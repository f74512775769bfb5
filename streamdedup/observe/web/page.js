// Polls the worker and shows its state. Everything is set as text, never as HTML.
"use strict";

const PERIOD_MS = 2000;
const WIDE = 600, HIGH = 220, LEFT = 44, RIGHT = 10, TOP = 18, BOTTOM = 24;
const OUTCOMES = ["kept", "duplicate", "rejected"];
const numbers = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const rough = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const shown = new Map();
let answeredAt = null;
let rangeIsSet = false;
let requests = 0;

const byId = (id) => document.getElementById(id);
const sum = (values) => values.reduce((total, value) => total + value, 0);

function setText(id, text) {
  // Setting an equal text again would make screen readers read it again.
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function element(name, text = "", kind = "") {
  const node = document.createElement(name);
  node.textContent = text;
  if (kind) node.className = kind;
  return node;
}

function shape(name, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

async function fetchJson(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(10 * PERIOD_MS) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

function showState(state) {
  byId("phase").className = state.ready ? "ready" : "";
  const phase = state.phase.replaceAll("_", " ");
  setText("phase", state.ready && state.active ? "ready" : phase);
  const detail = state.explanation.startsWith(phase) ? state.explanation.slice(phase.length)
    : state.explanation;
  setText("explanation", state.ready && state.active ? "" : detail.replace(/^: /, ""));
  const replay = byId("replay");
  replay.hidden = state.phase !== "replaying";
  replay.max = Math.max(1, state.replay.total);
  replay.value = state.replay.done;
  const lags = Object.values(state.lag);
  setText("lag", lags.length ? numbers.format(sum(lags)) : "–");
  setText("partitions", numbers.format(state.partitions));
  setText("version", state.version);
  byId("by-partition").replaceChildren(...Object.keys(state.positions).map((partition) => {
    const row = element("tr");
    const lag = state.lag[partition];
    row.append(
      element("td", partition),
      element("td", numbers.format(state.positions[partition])),
      element("td", lag === undefined ? "–" : numbers.format(lag)),
    );
    return row;
  }));
}

// Returns a duration in its two largest units.
function duration(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = Math.max(0, units.findIndex(([size]) => seconds >= size));
  const index = seconds < 1 ? units.length - 1 : first;
  return units.slice(index, index + 2).map(([size, name], row) =>
    `${Math.floor((row ? seconds % units[index][0] : seconds) / size)} ${name}`).join(" ");
}

function showPipeline({ pipeline, threshold, judged, documents, uptime_s: uptime }) {
  byId("pipeline").hidden = false;
  setText("source", pipeline.source);
  setText("clean", pipeline.clean);
  setText("duplicates-topic", pipeline.duplicates);
  setText("profile", pipeline.profile);
  setText("threshold", String(threshold));
  setText("judged-total", numbers.format(sum(Object.values(judged))));
  const most = pipeline.window_documents;
  const limits = `${numbers.format(most)} documents${pipeline.window ? `, ${pipeline.window}` : ""}`;
  setText("window", documents === null ? limits
    : `${numbers.format(documents)} of ${limits} (${rough.format(100 * documents / most)}%)`);
  setText("uptime", duration(uptime));
}

function drawChart(svg, label, parts) {
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(...parts);
}

function horizontalLine(share, label) {
  const y = TOP + (HIGH - TOP - BOTTOM) * (1 - share);
  return [
    shape("line", { class: "axis", x1: LEFT, x2: WIDE - RIGHT, y1: y, y2: y }),
    shape("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, label),
  ];
}

function horizontalLabel(share, label, anchor = "middle") {
  const x = LEFT + (WIDE - LEFT - RIGHT) * share;
  return shape("text", { x, y: HIGH - 6, "text-anchor": anchor }, label);
}

function bar(kind, from, to, low, high) {
  const width = WIDE - LEFT - RIGHT, height = HIGH - TOP - BOTTOM;
  return shape("rect", {
    class: kind,
    x: LEFT + width * from + 0.5,
    width: Math.max(0.5, width * (to - from) - 1),
    y: TOP + height * (1 - high),
    height: height * (high - low),
  });
}

// Returns the next of 1, 2, 5, 10, 20, ..., so that the scale does not change with every record.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= value);
}

function showMinutes(minutes, slotSeconds) {
  const count = minutes.kept.length;
  const totals = minutes.kept.map((_, slot) => sum(OUTCOMES.map((name) => minutes[name][slot])));
  const top = roundUp(Math.max(...totals) / slotSeconds);
  const parts = [0, 0.5, 1].flatMap((share) => horizontalLine(share, short.format(top * share)));
  for (let slot = 0; slot < count; slot++) {
    let low = 0;
    for (const name of OUTCOMES) {
      const high = low + minutes[name][slot] / slotSeconds / top;
      if (high > low) parts.push(bar(name, slot / count, (slot + 1) / count, low, high));
      low = high;
    }
  }
  parts.push(horizontalLabel(0, "10 minutes ago", "start"), horizontalLabel(1, "now", "end"));
  // The last slot is incomplete, so the rate leaves it out.
  const last = Math.round(60 / slotSeconds);
  const rate = sum(totals.slice(-last - 1, -1)) / (last * slotSeconds);
  const [kept, duplicates, rejected] = OUTCOMES.map((name) => sum(minutes[name]));
  const total = kept + duplicates + rejected;
  setText("rate", rate < 10 ? rate.toFixed(1) : numbers.format(Math.round(rate)));
  setText("share", total ? `${(100 * duplicates / total).toFixed(1)}%` : "–");
  drawChart(byId("verdicts"), `In ten minutes ${numbers.format(kept)} records were kept, ` +
    `${numbers.format(duplicates)} were duplicates and ${numbers.format(rejected)} rejected.`, parts);
}

function showSimilarities(counts, threshold) {
  const bins = counts.length;
  const powers = Math.max(1, Math.ceil(Math.log10(Math.max(1, ...counts))));
  const top = Math.log10(10 ** powers + 1);
  const scale = (count) => Math.log10(count + 1) / top;
  const ticks = [0];
  for (let power = 0; power <= powers; power += Math.ceil(powers / 5)) ticks.push(10 ** power);
  const parts = ticks.flatMap((tick) => horizontalLine(scale(tick), short.format(tick)));
  counts.forEach((count, bin) => {
    if (!count) return;
    const kind = (bin + 0.5) / bins < threshold ? "below" : "duplicate";
    const column = bar(kind, bin / bins, (bin + 1) / bins, 0, scale(count));
    const range = `${(bin / bins).toFixed(2)} to ${((bin + 1) / bins).toFixed(2)}`;
    column.append(shape("title", {}, `${range}: ${numbers.format(count)}`));
    parts.push(column);
  });
  const x = LEFT + (WIDE - LEFT - RIGHT) * threshold;
  parts.push(
    shape("line", { class: "threshold", x1: x, x2: x, y1: TOP, y2: HIGH - BOTTOM }),
    shape("text", { x, y: 12, "text-anchor": threshold > 0.8 ? "end" : "middle" },
      `threshold ${threshold}`),
    ...[0, 0.2, 0.4, 0.6, 0.8, 1].map((share) =>
      horizontalLabel(share, String(share), share === 1 ? "end" : "middle")),
  );
  const above = sum(counts.filter((_, bin) => (bin + 0.5) / bins >= threshold));
  drawChart(byId("similarities"), `${numbers.format(above)} of ${numbers.format(sum(counts))} ` +
    `candidate pairs have an estimated similarity of ${threshold} or more.`, parts);
}

function age(seconds) {
  if (seconds === null) return "age unknown";
  const size = Math.abs(seconds);
  const [unit, name] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]
    .find(([unit]) => size >= unit) ?? [0.001, "ms"];
  const text = `${numbers.format(Math.round(size / unit))} ${name}`;
  return seconds < 0 ? `original ${text} newer` : `original ${text} older`;
}

function side(title, id, position, texts, parts) {
  const column = element("div");
  const name = element("p", `${title} `, "soft");
  name.append(element("bdi", id, "name"), element("span", " at "), element("bdi", position));
  column.append(name);
  if (texts && parts) {
    const text = element("p", "", "text");
    text.dir = "auto";
    for (const [words, differs] of parts) {
      text.append(differs ? element("mark", words) : document.createTextNode(words));
    }
    column.append(text);
  } else if (texts) {
    column.append(element("p", "The text is too large, or no longer in memory.", "soft"));
  }
  return column;
}

function facts(duplicate) {
  const { jaccard, texts } = duplicate;
  const estimate = duplicate.estimate.toFixed(3);
  const line = element("p", "Similarity ", "soft");
  line.append(element("strong", jaccard === null ? estimate : jaccard.toFixed(3)));
  line.append(jaccard === null ? " (estimate)" : ` (computed from the texts; estimate ${estimate})`);
  line.append(` · ${age(duplicate.age_s)}`);
  const both = texts && texts[0] && texts[1];
  if (both && !texts.flat().some(([, differs]) => differs)) line.append(" · the same words");
  return line;
}

function item(duplicate) {
  const entry = element("li");
  const sides = element("div", "", "sides");
  const texts = duplicate.texts;
  sides.append(
    side("Original", duplicate.original_id, duplicate.original_position, texts, texts?.[1]),
    side("Duplicate", duplicate.id, duplicate.position, texts, texts?.[0]),
  );
  entry.append(facts(duplicate), sides);
  return entry;
}

const percent = (share) => `${(100 * share).toFixed(2)}%`;

function figureRow(name, value, low, high, from) {
  const row = element("tr");
  const known = value !== null;
  row.append(
    element("td", name),
    element("td", known ? percent(value) : "–"),
    element("td", known ? `${percent(low)} to ${percent(high)}` : "–"),
    element("td", from),
  );
  return row;
}

function estimateRow(name, figure, from) {
  const { value, standard_error: error } = figure;
  const [low, high] = [Math.max(0, value - 1.96 * error), Math.min(1, value + 1.96 * error)];
  return figureRow(name, value, low, high, from);
}

// Says what the sample waits for; an empty text if it has figures.
function waitsFor({ one_in: oneIn, documents, recall, precision }) {
  if (recall.documents && precision.documents) return "";
  const { skipped, ...results } = documents;
  const compared = sum(Object.values(results));
  const count = compared === 1 ? "1 document" : `${numbers.format(compared)} documents`;
  const left = skipped ? ` ${numbers.format(skipped)} more were skipped to save processor time.` : "";
  if (!compared) {
    return `The sample waits for its first document: it takes one in ${numbers.format(oneIn)}.${left}`;
  }
  const missing = recall.documents ? "duplicate whose original is recent"
    : "document that repeats a recent kept one";
  return `The sample has compared ${count}, and waits for a ${missing}.${left}`;
}

function showQuality({ estimate, shadow }) {
  const rows = [];
  if (estimate) {
    const documents = `${numbers.format(estimate.documents)} documents`;
    rows.push(
      estimateRow("Recall, estimate", estimate.recall, documents),
      estimateRow("Precision, estimate", estimate.precision, documents),
      estimateRow("Similar pairs in a common bucket", estimate.pairs,
        `${numbers.format(estimate.pairs.pairs)} pairs`),
      ...estimate.levels.filter(({ pairs }) => pairs).map((level) => estimateRow(
        `· similarity ${level.low.toFixed(2)} to ${level.high.toFixed(2)}`, level,
        `${numbers.format(level.pairs)} pairs`)),
    );
  }
  if (shadow) {
    for (const [name, share, of] of [
      ["Recall, sample", shadow.recall, "repeat"],
      ["Precision, sample", shadow.precision, "duplicate"],
    ]) {
      rows.push(figureRow(name, share.value, share.low, share.high,
        `${numbers.format(share.documents)} ${of}${share.documents === 1 ? "" : "s"}`));
    }
  }
  setText("sample", shadow ? waitsFor(shadow) : "");
  byId("sample").hidden = !byId("sample").textContent;
  byId("quality").hidden = !rows.length;
  byId("figures").replaceChildren(...rows);
}

function showDuplicates({ remembered, duplicates }) {
  const some = duplicates.length < remembered ? `; showing the latest ${duplicates.length}` : "";
  setText("found", remembered ? `${numbers.format(remembered)} in memory${some}.` : "None in memory.");
  const current = new Set(duplicates.map(({ number }) => number));
  for (const number of shown.keys()) if (!current.has(number)) shown.delete(number);
  const items = duplicates.map((duplicate) => {
    if (!shown.has(duplicate.number)) shown.set(duplicate.number, item(duplicate));
    return shown.get(duplicate.number);
  });
  const list = byId("duplicates");
  // Replacing equal items would clear a selection of text.
  if (items.length !== list.children.length || items.some((node, row) => node !== list.children[row])) {
    list.replaceChildren(...items);
  }
}

function showRange() {
  setText("low-is", Number(byId("low").value).toFixed(2));
  setText("high-is", Number(byId("high").value).toFixed(2));
}

// No duplicate is below the threshold, so the sliders start there.
function fitRange(threshold) {
  if (rangeIsSet) return;
  rangeIsSet = true;
  for (const id of ["low", "high"]) byId(id).min = Math.floor(threshold * 100) / 100;
  byId("low").value = byId("low").min;
  showRange();
}

async function refreshDuplicates() {
  const request = ++requests;
  const [low, high] = [byId("low").value, byId("high").value];
  const answer = await fetchJson(`page/duplicates?low=${low}&high=${high}`);
  // A later request of a moved slider makes this answer obsolete.
  if (request === requests) showDuplicates(answer);
}

async function refresh() {
  const state = await fetchJson("page/state");
  answeredAt = new Date();
  showState(state);
  if (state.quality) showQuality(state.quality);
  if (state.minutes) {
    showPipeline(state);
    showMinutes(state.minutes, state.slot_seconds);
    showSimilarities(state.similarities, state.threshold);
    fitRange(state.threshold);
    byId("with-text").hidden = !state.show_text;
    byId("no-text").hidden = state.show_text;
    document.dispatchEvent(new CustomEvent("worker-state", { detail: state }));
    if (byId("hold").getAttribute("aria-pressed") === "false") await refreshDuplicates();
  }
}

function showNoAnswer() {
  byId("phase").className = "";
  setText("phase", "no answer");
  setText("explanation", answeredAt ? `since ${answeredAt.toLocaleTimeString()}` : "");
}

async function poll() {
  for (;;) {
    if (!document.hidden) await refresh().catch(showNoAnswer);
    await new Promise((resume) => { setTimeout(resume, PERIOD_MS); });
  }
}

byId("filter").addEventListener("submit", (event) => event.preventDefault());
for (const [moved, other, limit] of [["low", "high", Math.max], ["high", "low", Math.min]]) {
  byId(moved).addEventListener("input", () => {
    byId(other).value = limit(byId(other).value, byId(moved).value);
    showRange();
    refreshDuplicates().catch(showNoAnswer);
  });
}
byId("hold").addEventListener("click", () => {
  const held = byId("hold").getAttribute("aria-pressed") === "true";
  byId("hold").setAttribute("aria-pressed", String(!held));
  if (held) refreshDuplicates().catch(showNoAnswer);
});
showRange();
poll();
