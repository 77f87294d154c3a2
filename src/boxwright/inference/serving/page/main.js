// The page: what is shown follows from `state`, in `render`.

import { KeyNeeded, sample, served, useKey } from "./api.js";
import { coco, save } from "./coco.js";
import { colorOf, css, draw } from "./draw.js";
import { counted, element, reach, roving, swatch } from "./lists.js";
import { Live } from "./live.js";
import { Pictures, thumbnail } from "./pictures.js";

const $ = (id) => document.getElementById(id);
const MOST_LISTED = 200, FEW_CLASSES = 12, LIST_MS = 250, SAY_MS = 2000;
const state = {
  models: [], // as the server lists them
  samples: [], // names of pictures that the server offers
  numbers: new Map(), // of a class by its name, for its color
  hidden: new Set(), // names of classes
  item: null, // the picture or video on the screen
  view: null, // what is drawn: an image, its size and what was found
  lit: null, // the object that is pointed at
};
let drawing = 0, listed = 0, said = 0;

const pictures = new Pictures(changed, fail);
const live = new Live($("video"), () => ({ models: chosen(), least: Number($("score").value) }), showFrame, fail);
roving($("strip"), (option) => select(pictures.items[Number(option.dataset.number)]));
roving($("objects"), (option) => light(option.found));

function chosen() {
  return [...new Set([$("model").value, $("other").value])].filter(Boolean);
}

function numberOf(name) {
  if (!state.numbers.has(name)) state.numbers.set(name, state.numbers.size);
  return state.numbers.get(name);
}

// The objects of an answer that the settings leave, best first.
function kept(model, answer) {
  const least = Number($("score").value);
  const edges = state.models.find((one) => one.name === model)?.edges ?? [];
  return (answer?.detections ?? [])
    .filter((one) => one.score >= least && !state.hidden.has(one.class))
    .map((one) => ({ ...one, source: one, color: colorOf(numberOf(one.class)), edges, lit: one === state.lit }));
}

// ---- what is shown

function render() {
  if (!drawing) drawing = requestAnimationFrame(() => { drawing = 0; renderNow(); });
}

function renderNow() {
  $("least").value = Number($("score").value).toFixed(2);
  const empty = !pictures.items.length && !live.kind;
  $("drop").classList.toggle("empty", empty);
  $("stages").hidden = !state.view;
  $("samples").hidden = !state.samples.length;
  $("player").hidden = !live.kind;
  for (const id of ["play", "seek", "time"]) $(id).hidden = live.kind !== "video";
  $("webcam").setAttribute("aria-pressed", String(live.kind === "webcam"));
  $("webcam").textContent = live.kind === "webcam" ? "Stop the webcam" : "Webcam";
  if (state.view) renderStages();
  // A video's frames follow each other faster than lists are read.
  const now = performance.now();
  if (live.kind && now - listed < LIST_MS) return;
  listed = now;
  renderClasses();
  renderObjects();
  renderDownloads();
}

function renderStages() {
  const models = chosen(), words = [];
  [...document.querySelectorAll(".stage")].forEach((stage, number) => {
    const model = models[number];
    stage.hidden = !model;
    if (!model) return;
    const answer = state.view.found.get(model), objects = kept(model, answer);
    const count = answer ? counted(objects.length, "object") : state.view.error ? "failed" : "detecting …";
    const [title, note] = stage.querySelectorAll("b, .note");
    title.textContent = models.length > 1 ? model : state.view.name ?? model;
    note.textContent = answer ? `${count} · ${Math.round(answer.milliseconds)} ms` : count;
    const canvas = stage.querySelector("canvas");
    draw(canvas, state.view, objects, shownLayers());
    canvas.setAttribute("aria-label", `${state.view.name ?? "the video"}: ${count}${summary(objects)}`);
    if (answer) words.push(`${models.length > 1 ? `${model}: ` : ""}${count}${summary(objects)}`);
  });
  say(words.join("; "));
}

function summary(objects) {
  const names = [...counts(objects)].sort((one, other) => other[1] - one[1]).map(([name, count]) => `${count} ${name}`);
  return names.length ? ` (${names.slice(0, 6).join(", ")}${names.length > 6 ? ", …" : ""})` : "";
}

// Screen readers read each change: of a video's, few.
function say(text) {
  const now = performance.now();
  if ($("summary").textContent === text || (live.kind && !$("video").paused && now - said < SAY_MS)) return;
  said = now;
  $("summary").textContent = text;
}

function shownLayers() {
  return Object.fromEntries([...$("layers").querySelectorAll("input")].map((one) => [one.name, one.checked]));
}

function counts(objects) {
  const found = new Map();
  for (const one of objects) found.set(one.class, (found.get(one.class) ?? 0) + 1);
  return found;
}

function renderClasses() {
  const least = Number($("score").value), list = $("classes").querySelector("ul");
  const answers = state.view ? chosen().map((model) => state.view.found.get(model)?.detections ?? []) : [];
  const found = answers.map((all) => counts(all.filter((one) => one.score >= least)));
  const names = [...state.numbers.keys()].filter(
    (name) => state.numbers.size <= FEW_CLASSES || state.hidden.has(name) || found.some((one) => one.has(name)),
  );
  const line = (name) => found.map((one) => one.get(name) ?? 0).join(" · ");
  // Only what changed: a checkbox that has the focus keeps it.
  const rows = new Map([...list.children].map((row) => [row.dataset.name, row]));
  list.replaceChildren(...names.map((name) => {
    const row = rows.get(name) ?? classRow(name);
    row.querySelector("input").checked = !state.hidden.has(name);
    row.querySelector(".n").textContent = line(name);
    return row;
  }));
  $("all").disabled = !state.hidden.size;
  $("none").disabled = !names.length || names.every((name) => state.hidden.has(name));
  for (const [layer, has] of [["masks", "segmentation"], ["keypoints", "keypoints"]]) {
    const label = $("layers").querySelector(`[name=${layer}]`).parentElement;
    if (answers.some((all) => all.some((one) => one[has]))) label.hidden = false;
  }
}

function classRow(name) {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () => {
    if (box.checked) state.hidden.delete(name);
    else state.hidden.add(name);
    render();
  });
  const label = element("label", {}, box, swatch(css(colorOf(numberOf(name)))), element("span", { className: "name", textContent: name }), element("span", { className: "n note" }));
  const row = element("li", {}, label);
  row.dataset.name = name;
  return row;
}

function renderObjects() {
  const list = $("objects"), models = chosen();
  // Not under someone's fingers.
  if (list.contains(document.activeElement) && live.kind && !$("video").paused) return;
  const at = [...list.querySelectorAll("[role=option]")].indexOf(document.activeElement);
  const groups = models.map((model) => {
    const all = state.view ? kept(model, state.view.found.get(model)) : [];
    const rows = all.slice(0, MOST_LISTED).map(objectRow);
    if (models.length === 1) return rows;
    const group = element("div", { role: "group", ariaLabel: model }, element("p", { className: "note", textContent: model, ariaHidden: "true" }), ...rows);
    return rows.length ? [group] : [];
  });
  list.replaceChildren(...groups.flat());
  const options = list.querySelectorAll("[role=option]");
  reach(list, options[Math.max(at, 0)]);
  if (at >= 0) options[Math.min(at, options.length - 1)]?.focus();
  list.hidden = !options.length;
  $("no-objects").hidden = options.length > 0;
  $("no-objects").textContent = state.view ? "No objects above the threshold in the chosen classes." : "No picture yet.";
}

function objectRow(one) {
  const name = element("span", { className: "name", textContent: one.class });
  const row = element("div", { className: `object${one.lit ? " lit" : ""}`, role: "option", title: `x, y, x, y: ${one.box.join(", ")}` }, swatch(css(one.color)), name, element("span", { className: "n", textContent: one.score.toFixed(2) }));
  row.setAttribute("aria-selected", String(one.lit));
  row.found = one.source;
  row.addEventListener("pointerenter", () => light(one.source));
  row.addEventListener("pointerleave", () => light(null));
  return row;
}

function renderStrip() {
  const strip = $("strip"), focused = strip.contains(document.activeElement);
  strip.replaceChildren(...pictures.items.map((item, number) => {
    const answer = item.found.get($("model").value);
    const note = item.error ? "failed" : item.kind === "video" ? "video" : answer ? counted(kept($("model").value, answer).length, "object") : "waiting";
    const thumb = element("div", { className: "thumb", role: "option", title: item.name }, item.thumb, element("span", { textContent: item.name }), element("span", { className: "note", textContent: note }));
    if (item.kind === "video") thumb.append(element("span", { className: "play", textContent: "▶", ariaHidden: "true" }));
    thumb.dataset.number = number;
    thumb.setAttribute("aria-selected", String(item === state.item));
    thumb.addEventListener("click", () => select(item));
    return thumb;
  }));
  strip.hidden = pictures.items.length < 2 && !pictures.items.some((one) => one.kind === "video");
  const now = strip.children[Math.max(pictures.items.indexOf(state.item), 0)];
  reach(strip, now);
  if (focused) now?.focus();
}

function renderDownloads() {
  const some = (model) => pictures.items.some((item) => item.found.has(model));
  const models = chosen();
  const wanted = [
    ...models.map((model) => ({ text: models.length > 1 ? `COCO file: ${model}` : "COCO file", can: some(model), act: () => saveCoco(model) })),
    { text: "This picture", can: Boolean(state.view), act: savePicture },
  ];
  const box = $("downloads");
  // Replaced only when the buttons change, so that the focus stays.
  if ([...box.children].map((one) => one.textContent).join() !== wanted.map((one) => one.text).join()) {
    box.replaceChildren(...wanted.map((one) => element("button", { type: "button", textContent: one.text, onclick: one.act })));
  }
  [...box.children].forEach((button, number) => { button.disabled = !wanted[number].can; });
}

function light(found) {
  if (state.lit === found) return;
  state.lit = found;
  for (const row of $("objects").querySelectorAll("[role=option]")) {
    row.classList.toggle("lit", row.found === found);
    row.setAttribute("aria-selected", String(row.found === found));
  }
  if (state.view) renderStages();
}

// ---- what is done

function fail(error) {
  if (error instanceof KeyNeeded) {
    $("access").hidden = false;
    $("key").focus();
    return;
  }
  tell(error instanceof TypeError ? "the server is not responding" : error.name === "NotAllowedError" ? "the browser denied access to the webcam" : error.message);
  if (!live.kind && !state.item) state.view = null;
  render();
}

function tell(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

function changed(item) {
  if (item === state.item) {
    tell(item.error);
    render();
  }
  renderStrip();
}

async function add(files) {
  const before = pictures.items.length;
  tell("");
  for (const file of files) await pictures.add(file);
  if (pictures.items.length > before) await select(pictures.items[before]);
  pictures.work();
}

async function addSamples() {
  const names = state.samples;
  // Offered once.
  state.samples = [];
  await add(await Promise.all(names.map(async (name, number) => new File([await sample(number)], name, { type: "image/jpeg" }))));
}

async function select(item) {
  if (!item || item === state.item) return;
  live.stop();
  Object.assign(state, { item, lit: null });
  pictures.first = item;
  tell(item.error);
  renderStrip();
  if (item.kind === "video") {
    state.view = null;
    await live.play(item.blob).catch((error) => { item.error = `${item.name}: ${error.message}`; live.stop(); tell(item.error); renderStrip(); });
  } else {
    const image = item.error && !item.width ? null : await createImageBitmap(item.blob).catch(() => null);
    // Meanwhile another may have been chosen.
    if (state.item !== item) return;
    state.view = image && { image, name: item.name, width: item.width, height: item.height, found: item.found, get error() { return item.error; } };
  }
  render();
}

function showFrame(frame) {
  state.view = frame;
  if (live.kind === "video" && state.item) {
    state.view.name = state.item.name;
    if (!state.item.thumbed) thumbnail(state.item.thumb, frame.image, frame.width, frame.height);
    state.item.thumbed = true;
  }
  const video = $("video");
  $("play").textContent = video.paused ? "Play" : "Pause";
  $("seek").max = video.duration || 1;
  if (document.activeElement !== $("seek") || !video.paused) $("seek").value = video.currentTime;
  $("time").value = `${video.currentTime.toFixed(1)} s`;
  render();
}

function stopLive() {
  live.stop();
  Object.assign(state, { item: null, view: null });
  select(pictures.items.find((one) => one.kind === "picture"));
  render();
}

function again() {
  pictures.models = chosen();
  for (const item of pictures.items) item.error = item.width || item.kind === "video" ? "" : item.error;
  live.stale = true;
  pictures.work();
  renderStrip();
  render();
}

function saveCoco(model) {
  const written = pictures.items.filter((item) => item.found.has(model)).map((item) => {
    const { width, height } = item.found.get(model);
    return { name: item.name, width, height, objects: kept(model, item.found.get(model)) };
  });
  const classes = state.models.find((one) => one.name === model)?.classes ?? [];
  save(`${model}.json`, new Blob([JSON.stringify(coco(classes, written))], { type: "application/json" }));
}

function savePicture() {
  const shown = [...document.querySelectorAll(".stage:not([hidden]) canvas")];
  const both = element("canvas", { width: shown.reduce((sum, one) => sum + one.width, 0), height: Math.max(...shown.map((one) => one.height)) });
  const pen = both.getContext("2d");
  let left = 0;
  for (const one of shown) {
    pen.drawImage(one, left, 0);
    left += one.width;
  }
  const name = (state.view.name ?? "webcam").replace(/\.[^.]*$/, "");
  both.toBlob((blob) => save(`${name}-detections.png`, blob), "image/png");
}

async function begin() {
  const content = await served();
  Object.assign(state, { models: content.models, samples: content.samples });
  $("samples").title = `${counted(state.samples.length, "picture")} of the data that the detector is evaluated on`;
  for (const one of state.models.flatMap((model) => model.classes)) numberOf(one.name);
  for (const select of [$("model"), $("other")]) {
    select.append(...state.models.map((one) => element("option", { value: one.name, textContent: one.name })));
  }
  $("other-label").hidden = state.models.length < 2;
  if (state.models.length === 2) $("other").value = state.models[1].name;
  $("hint").hidden = state.models.length > 1;
  $("score").value = content.least_score;
  $("access").hidden = true;
  again();
}

// ---- what is pressed, dropped and pasted

$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { add([...$("file").files]); $("file").value = ""; });
$("samples").addEventListener("click", () => addSamples().catch(fail));
$("webcam").addEventListener("click", () => {
  if (live.kind === "webcam") return stopLive();
  tell("");
  Object.assign(state, { item: null, view: null });
  live.webcam().catch((error) => { live.stop(); fail(error); }).finally(() => { renderStrip(); render(); });
});
$("play").addEventListener("click", () => {
  if ($("video").paused) $("video").play();
  else $("video").pause();
  $("play").textContent = $("video").paused ? "Play" : "Pause";
});
$("video").addEventListener("ended", () => { $("play").textContent = "Play"; live.stale = true; });
$("seek").addEventListener("input", () => { $("video").pause(); $("video").currentTime = Number($("seek").value); });
$("snap").addEventListener("click", () => {
  const { blob } = state.view ?? {};
  if (blob) pictures.add(new File([blob], "frame.jpg", { type: "image/jpeg" })).then(() => { renderStrip(); pictures.work(); });
});
$("score").addEventListener("input", () => { live.stale = true; renderStrip(); render(); });
$("layers").addEventListener("change", render);
$("all").addEventListener("click", () => { state.hidden.clear(); renderStrip(); render(); });
$("none").addEventListener("click", () => { for (const name of state.numbers.keys()) state.hidden.add(name); renderStrip(); render(); });
$("model").addEventListener("change", again);
$("other").addEventListener("change", again);
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey($("key").value);
  begin().catch(fail);
});
$("strip").addEventListener("keydown", (event) => {
  if (event.key !== "Delete" || !state.item) return;
  const at = pictures.items.indexOf(state.item);
  pictures.remove(state.item);
  live.stop();
  Object.assign(state, { item: null, view: null });
  select(pictures.items[Math.min(at, pictures.items.length - 1)]);
  renderStrip();
  render();
});
for (const canvas of document.querySelectorAll(".stage canvas")) {
  canvas.addEventListener("pointermove", (event) => light(under(canvas, event)));
  canvas.addEventListener("pointerleave", () => light(null));
}
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") add([...event.dataTransfer.files]);
  });
}
document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.length) add(files);
});
window.addEventListener("resize", render);

// The smallest object under the pointer.
function under(canvas, event) {
  const number = [...document.querySelectorAll(".stage canvas")].indexOf(canvas);
  const scale = state.view.width / canvas.clientWidth, x = event.offsetX * scale, y = event.offsetY * scale;
  const size = ({ box }) => (box[2] - box[0]) * (box[3] - box[1]);
  const model = chosen()[number];
  const hit = kept(model, state.view.found.get(model)).filter(({ box }) => box[0] <= x && x <= box[2] && box[1] <= y && y <= box[3]);
  return hit.sort((one, other) => size(one) - size(other))[0]?.source ?? null;
}

begin().catch(fail);
