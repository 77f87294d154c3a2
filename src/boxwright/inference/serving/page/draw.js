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
  if (show.names || one.lit) drawName(pen, `${one.class} ${one.score.toFixed(2)}`, left, top, ratio, one.color);
}

function drawName(pen, text, left, top, ratio, color) {
  const letters = LETTERS * ratio, pad = 3 * ratio, height = letters + 2 * pad;
  pen.font = `600 ${letters}px system-ui, sans-serif`;
  const width = pen.measureText(text).width + 2 * pad;
  const x = Math.max(0, Math.min(left, pen.canvas.width - width));
  const y = top - height >= 0 ? top - height : Math.min(top, pen.canvas.height - height);
  pen.fillStyle = css(color);
  pen.fillRect(x, y, width, height);
  // Black on bright colors, white on dark ones, by their luminance.
  pen.fillStyle = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] > 120 ? "#000" : "#fff";
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
