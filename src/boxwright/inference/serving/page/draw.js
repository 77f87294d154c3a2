// Drawing what was found on a picture.

import { tint } from "./masks.js";

const MASK_SHARE = 0.45;
export const LEAST_POINT = 0.3;
const LETTERS = 13;
// Red, green and blue of a class; neighboring numbers are far apart, as in `boxwright predict`'s pictures.
export function colorOf(number) {
  const hue = ((0.11 + number * 0.618034) % 1) * 6;
  const channel = (offset) => {
    const place = (offset + hue) % 6;
    return Math.round(255 * (1 - 0.85 * Math.max(0, Math.min(place, 4 - place, 1))));
  };
  return [channel(5), channel(3), channel(1)];
}

export const css = (color) => `rgb(${color.join(" ")})`;

// Draw a picture and objects, the best on top, so that it fills the canvas's place on the page sharply.
export function draw(canvas, picture, objects, show) {
  const ratio = window.devicePixelRatio || 1;
  const room = Math.min(canvas.parentElement.clientWidth / picture.width, (0.62 * window.innerHeight) / picture.height);
  canvas.style.width = `${Math.round(picture.width * room)}px`;
  canvas.width = Math.max(1, Math.round(picture.width * room * ratio));
  canvas.height = Math.max(1, Math.round(picture.height * room * ratio));
  const pen = canvas.getContext("2d", { willReadFrequently: show.masks });
  const scale = canvas.width / picture.width;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(picture.image, 0, 0, canvas.width, canvas.height);
  if (show.masks && objects.some((one) => one.segmentation)) drawMasks(pen, objects, scale);
  pen.lineJoin = "round";
  for (const one of [...objects].reverse()) drawObject(pen, one, scale, ratio, show);
  // After all else, the best first: a name that would cover another's is left out.
  const taken = [];
  const named = objects.filter((one) => show.names || one.lit).sort((a, b) => Boolean(b.lit) - Boolean(a.lit));
  for (const one of named) drawName(pen, one, scale, ratio, taken);
}

function drawMasks(pen, objects, scale) {
  const pixels = pen.getImageData(0, 0, pen.canvas.width, pen.canvas.height);
  for (const one of [...objects].reverse()) {
    if (one.segmentation) tint(pixels.data, pixels.width, one.segmentation, scale, one.color, one.lit ? 0.7 : MASK_SHARE);
  }
  pen.putImageData(pixels, 0, 0);
}

function drawObject(pen, one, scale, ratio, show) {
  const [left, top, right, bottom] = one.box.map((side) => side * scale);
  if (show.boxes || one.lit) {
    for (const [width, color] of [[one.lit ? 6 : 3.5, "rgb(0 0 0 / 0.55)"], [one.lit ? 4 : 2, css(one.color)]]) {
      pen.lineWidth = width * ratio;
      pen.strokeStyle = color;
      pen.strokeRect(left, top, right - left, bottom - top);
    }
  }
  if (show.keypoints && one.keypoints) drawPoints(pen, one, scale, ratio);
}

// Black or white, whichever has the higher contrast on a color: at least 4.5 to 1, by WCAG's relative luminance.
export function inkOn(color) {
  const [red, green, blue] = color.map((value) => (value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) ** 2 > 1.05 * 0.05 ? "#000" : "#fff";
}

// Write an object's name above or below an edge of its box, at its left or right, where none of `taken` is covered.
function drawName(pen, one, scale, ratio, taken) {
  const [left, top, right, bottom] = one.box.map((side) => side * scale);
  const text = `${one.class} ${one.score.toFixed(2)}`, letters = LETTERS * ratio, pad = 3 * ratio, height = letters + 2 * pad;
  pen.font = `600 ${letters}px system-ui, sans-serif`;
  const width = pen.measureText(text).width + 2 * pad;
  const within = (x) => Math.max(0, Math.min(x, pen.canvas.width - width));
  const places = [left, right - width].flatMap((x) => [top - height, top, bottom, bottom - height].map((y) => [within(x), y]));
  const inside = places.filter(([, y]) => y >= 0 && y + height <= pen.canvas.height);
  const free = ([x, y]) => !taken.some(([a, b, c, d]) => x < c && x + width > a && y < d && y + height > b);
  const place = (inside.length ? inside : [[within(left), 0]]).find(free);
  if (!place) return;
  const [x, y] = place;
  taken.push([x, y, x + width, y + height]);
  pen.fillStyle = css(one.color);
  pen.fillRect(x, y, width, height);
  pen.fillStyle = inkOn(one.color);
  pen.textBaseline = "middle";
  pen.fillText(text, x + pad, y + height / 2);
}

function drawPoints(pen, one, scale, ratio) {
  const seen = one.keypoints.map(([x, y, score]) => (score === undefined || score >= LEAST_POINT ? [x * scale, y * scale] : null));
  pen.strokeStyle = pen.fillStyle = css(one.color);
  pen.lineWidth = 2.5 * ratio;
  for (const [from, to] of one.edges) {
    if (!seen[from] || !seen[to]) continue;
    pen.beginPath();
    pen.moveTo(...seen[from]);
    pen.lineTo(...seen[to]);
    pen.stroke();
  }
  for (const point of seen.filter(Boolean)) {
    pen.beginPath();
    pen.arc(...point, 4 * ratio, 0, 2 * Math.PI);
    pen.fill();
    pen.lineWidth = 1.5 * ratio;
    pen.strokeStyle = "#fff";
    pen.stroke();
  }
}
