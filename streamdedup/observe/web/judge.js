// Steps through pairs near the threshold. Labels stay in this browser's storage until downloaded.
"use strict";

const PARTS = 10;
const KEYS = { s: "same", d: "different", u: "unsure" };
let judging = null;

const similarityOf = ({ jaccard, estimate }) => jaccard ?? estimate;
const nameOf = ({ position, original_position: original }) => `${position} ${original}`;

// Labels of other sketch parameters are about other similarities, and are stored apart.
const storageKey = () => `streamdedup.labels.${judging.fingerprint}`;

function readLabels() {
  try {
    const labels = JSON.parse(localStorage.getItem(storageKey()) ?? "[]");
    return Array.isArray(labels) ? labels : [];
  } catch {
    return [];
  }
}

function storeLabels() {
  try {
    localStorage.setItem(storageKey(), JSON.stringify(judging.labels));
    judging.isStored = true;
  } catch {
    judging.isStored = false;
  }
}

const isPressed = (id) => byId(id).getAttribute("aria-pressed") === "true";

function press(id) {
  byId(id).setAttribute("aria-pressed", String(!isPressed(id)));
}

// Another tab may have added labels.
function reread() {
  if (judging.isStored) judging.labels = readLabels();
}

function showJudging(state) {
  byId("judge-without-text").hidden = state.show_text;
  byId("judge-with-text").hidden = !state.show_text;
  if (!state.show_text || judging?.fingerprint === state.fingerprint) return;
  judging = { fingerprint: state.fingerprint, threshold: state.threshold, isStored: true, pair: null };
  judging.labels = readLabels();
  byId("distance").max = state.near;
  showDistance();
  showProgress();
}

function showDistance() {
  setText("distance-is", Number(byId("distance").value).toFixed(2));
}

function showProgress(note = "") {
  const { labels, isStored } = judging;
  const counts = Object.values(KEYS).map((label) =>
    `${labels.filter((one) => one.label === label).length} ${label}`);
  const lost = isStored ? "" : " This browser does not store them: download them before you leave.";
  const total = labels.length === 1 ? "1 label" : `${numbers.format(labels.length)} labels`;
  setText("judged", `${total}: ${counts.join(", ")}. ${note}${lost}`.trim());
  for (const id of ["labels-download", "labels-clear", "undo"]) byId(id).disabled = !labels.length;
}

// Chooses a pair of the part of the range that has the fewest labels, so that the labels spread
// evenly over the similarities, whatever the stream contains most.
function choosePair(pairs, low, high) {
  const partOf = (one) =>
    Math.min(PARTS - 1, Math.floor(PARTS * (similarityOf(one) - low) / Math.max(high - low, 1e-9)));
  const labelled = new Set(judging.labels.map(nameOf));
  const counts = new Array(PARTS).fill(0);
  for (const label of judging.labels) {
    const similarity = similarityOf(label);
    if (similarity >= low && similarity <= high) counts[partOf(label)]++;
  }
  const open = pairs.filter((pair) => !labelled.has(nameOf(pair)));
  const fewest = Math.min(...open.map((pair) => counts[partOf(pair)]));
  const choice = open.filter((pair) => counts[partOf(pair)] === fewest);
  return { pair: choice[Math.floor(Math.random() * choice.length)] ?? null, open: open.length };
}

async function showNext(wanted = null) {
  const distance = Number(byId("distance").value);
  const low = Math.max(0, judging.threshold - distance);
  const high = Math.min(1, judging.threshold + distance);
  const { pairs } = await fetchJson(`page/pairs?low=${low}&high=${high}`);
  const chosen = choosePair(pairs, low, high);
  const pair = pairs.find((one) => wanted !== null && nameOf(one) === wanted) ?? chosen.pair;
  if (pair === null) {
    judging.pair = null;
    byId("pair").hidden = true;
    showProgress("No unlabelled pair is in memory: wait for more records, or allow more distance.");
    byId("judge-start").focus();
    return;
  }
  const { texts } = await fetchJson(`page/pair?number=${pair.number}&whole=${isPressed("whole")}`);
  judging.pair = pair;
  byId("pair-sides").replaceChildren(
    side("Earlier", pair.original_id, pair.original_position, texts, texts?.[1]),
    side("Later", pair.id, pair.position, texts, texts?.[0]),
  );
  byId("pair").hidden = false;
  byId("pair").focus();
  showProgress(`${numbers.format(chosen.open)} unlabelled pairs in memory.`);
}

function next(wanted = null) {
  judging.pair = null;
  return showNext(wanted).catch(() => {
    showProgress("The worker did not answer; press “Judge pairs” twice to retry.");
  });
}

async function label(name) {
  const { pair, fingerprint, threshold } = judging;
  if (pair === null) return;
  reread();
  const { id, position, original_id, original_position, estimate, jaccard } = pair;
  const time = new Date().toISOString();
  judging.labels.push({ id, position, original_id, original_position, estimate, jaccard,
    label: name, threshold, fingerprint, time });
  storeLabels();
  await next();
}

async function undo() {
  reread();
  const last = judging.labels.pop();
  if (last === undefined) return;
  storeLabels();
  await next(nameOf(last));
}

function download() {
  const lines = judging.labels.map((one) => `${JSON.stringify(one)}\n`);
  const address = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
  const link = element("a");
  link.href = address;
  link.download = `streamdedup-labels-${new Date().toISOString().slice(0, 10)}.jsonl`;
  link.click();
  URL.revokeObjectURL(address);
}

function start() {
  press("judge-start");
  byId("pair").hidden = true;
  judging.pair = null;
  if (isPressed("judge-start")) next();
  else showProgress();
}

function toggleWhole() {
  press("whole");
  if (judging.pair !== null) next(nameOf(judging.pair));
}

function toggleMarks() {
  press("plain");
  byId("pair-sides").classList.toggle("plain", isPressed("plain"));
}

function clear() {
  judging.labels = [];
  storeLabels();
  byId("clear-dialog").close();
  showProgress("Deleted.");
}

document.addEventListener("worker-state", ({ detail }) => showJudging(detail));
byId("judge-form").addEventListener("submit", (event) => event.preventDefault());
byId("distance").addEventListener("input", showDistance);
byId("distance").addEventListener("change", () => { if (!byId("pair").hidden) next(); });
byId("judge-start").addEventListener("click", start);
byId("labels-download").addEventListener("click", download);
byId("labels-clear").addEventListener("click", () => {
  setText("clear-question", `Delete ${numbers.format(judging.labels.length)} labels from this browser?`);
  byId("clear-dialog").showModal();
});
byId("clear-no").addEventListener("click", () => byId("clear-dialog").close());
byId("clear-yes").addEventListener("click", clear);
byId("undo").addEventListener("click", undo);
byId("whole").addEventListener("click", toggleWhole);
byId("plain").addEventListener("click", toggleMarks);
for (const button of document.querySelectorAll("#pair [data-label]")) {
  button.addEventListener("click", () => label(button.dataset.label));
}
// The keys work while the focus is on the pair, so that they never act by accident.
byId("pair").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  const key = event.key.toLowerCase();
  if (key in KEYS) label(KEYS[key]);
  else if (key === "z") undo();
  else if (key === "w") toggleWhole();
  else if (key === "m") toggleMarks();
});
