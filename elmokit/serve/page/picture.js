// Pictures for slides: self-contained SVG, and PNG made from it.

import { spaced } from "./dom.js";
import { placed } from "./geometry.js";

const WIDTH = 960;
const SENTENCE_SIZE = 16;
const FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif";
const SERIF = "Georgia, 'Times New Roman', serif";
const INK = "#1b1e24";
const FAINT = "#5a6270";
const LINE = "#c9ced6";
const SENSES = ["#1a66de", "#b65a00", "#0b7a67", "#8a3fc7"]; // as in style.css, in light
const SURPRISE = [240, 140, 58];

const MARKS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
// XML cannot contain control characters, not even escaped.
const escaped = (text) => String(text).replace(/[&<>"]|(?![\t\n\r])[\0-\x1f\ufffe\uffff]/g, (one) => MARKS[one] ?? "\ufffd");

const pen = document.createElement("canvas").getContext("2d");
function widthOf(text, size, family = FONT, weight = 400) {
  pen.font = `${weight} ${size}px ${family}`;
  return pen.measureText(text).width;
}

/** Cut a word that is wider than the room for it, and end it with an ellipsis. */
function shortened(word, room, size, family = FONT, weight = 400) {
  if (widthOf(word, size, family, weight) <= room) return word;
  let shown = "";
  for (const character of word) {
    if (widthOf(`${shown}${character}…`, size, family, weight) > room) break;
    shown += character;
  }
  return `${shown}…`;
}

function text(x, y, content, { size = 15, anchor = "start", fill = INK, weight = 400, family = FONT } = {}) {
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" font-family="${escaped(family)}" font-size="${size}" font-weight="${weight}" text-anchor="${anchor}" fill="${fill}">${content}</text>`;
}

function drawing(height, parts) {
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}">
<rect width="100%" height="100%" fill="#ffffff"/>
${parts.join("\n")}
</svg>
`;
}

/** Return a sentence as lines of SVG of a maximum width, with its word marked. */
function sentenceLines({ tokens, position, color }, room) {
  const lines = [];
  let used = 0;
  for (const [index, whole] of spaced(tokens).entries()) {
    const isMarked = index === position;
    const weight = isMarked ? 700 : 400;
    const token = shortened(whole, room, SENTENCE_SIZE, FONT, weight);
    const width = widthOf(token, SENTENCE_SIZE, FONT, weight);
    const startsLine = !lines.length || (token.startsWith(" ") && used + width > room);
    const shown = escaped(startsLine ? token.trimStart() : token);
    if (startsLine) {
      lines.push("");
      used = 0;
    }
    used += width;
    lines[lines.length - 1] += isMarked ? `<tspan font-weight="700" fill="${SENSES[color]}">${shown}</tspan>` : shown;
  }
  return lines;
}

/** Draw the occurrences of a word: its sentences, and a map of each layer. */
export function sensesPicture(word, items, maps, notes) {
  const [margin, gap, radius] = [32, 20, 12];
  const room = WIDTH - 2 * margin - widthOf(`“” in ${items.length} sentences`, 26, FONT, 700);
  const name = escaped(shortened(word, room, 26, FONT, 700));
  const parts = [text(margin, 50, `“${name}” in ${items.length} sentences`, { size: 26, weight: 700 })];
  const nSenses = Math.max(...items.map(({ sense }) => sense)) + 1;
  const columns = Math.min(2, nSenses);
  const columnWidth = (WIDTH - 2 * margin) / columns;
  const heights = Array(columns).fill(86); // the position of the next sentence in each column
  const dot = (x, y, number) =>
    `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${radius}" fill="${SENSES[items[number].color]}"/>` +
    text(x, y + 4.5, number + 1, { size: 13, anchor: "middle", fill: "#ffffff", weight: 700 });
  items.forEach((item, number) => {
    const column = item.sense % columns;
    const x = margin + column * columnWidth;
    parts.push(dot(x + radius, heights[column] - 5, number));
    for (const line of sentenceLines(item, columnWidth - 2 * radius - 24)) {
      parts.push(text(x + 2 * radius + 10, heights[column], line, { size: SENTENCE_SIZE }));
      heights[column] += 20;
    }
    heights[column] += 10;
  });
  const perRow = Math.min(3, maps.length);
  const width = (WIDTH - 2 * margin - (perRow - 1) * gap) / perRow;
  const height = 240;
  const top = Math.max(...heights) + 10;
  const places = placed(maps, [width, height], radius);
  places.forEach((points, layer) => {
    const left = margin + (layer % perRow) * (width + gap);
    const upper = top + Math.floor(layer / perRow) * (height + 84);
    parts.push(text(left + width / 2, upper, `Layer ${layer}`, { anchor: "middle", weight: 700, size: 17 }));
    parts.push(`<rect x="${left}" y="${upper + 12}" width="${width}" height="${height}" rx="10" fill="none" stroke="${LINE}"/>`);
    points.forEach(([x, y], number) => parts.push(dot(left + width / 2 + x, upper + 12 + height / 2 - y, number)));
    const lines = wrapped(notes[layer], width, 13);
    lines.forEach((line, row) =>
      parts.push(text(left + width / 2, upper + height + 34 + 17 * row, escaped(line), { anchor: "middle", size: 13, fill: FAINT })),
    );
  });
  return drawing(top + Math.ceil(maps.length / perRow) * (height + 84), parts);
}

/**
 * Draw a text: its words, colored by surprisal, and the words that were expected in place of one of its tokens.
 * @param {Object[]} words `word`, `sentence_index`, `nats` (null where there is no number), `unknown`, `isChosen`.
 * @param {string} title What the colors mean.
 * @param {{token: string, words: Object[]}|null} gap The chosen token and the expected words.
 */
export function textPicture(words, mostNats, title, gap) {
  const [margin, size, padding, height] = [32, 28, 12, 66];
  const room = WIDTH - 2 * margin;
  const parts = [
    '<pattern id="unknown" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="8" height="8" fill="#ffffff"/><rect width="3" height="8" fill="#d4d8de"/></pattern>',
  ];
  const rows = [];
  let used = 0;
  for (const [index, { word: whole, sentence_index: sentence }] of words.entries()) {
    const word = shortened(whole, room - 2 * padding, size, SERIF);
    const width = Math.max(44, widthOf(word, size, SERIF) + 2 * padding);
    if (sentence !== words[index - 1]?.sentence_index || used + width > room) {
      rows.push([]);
      used = 0;
    }
    rows.at(-1).push({ ...words[index], word, width, x: used });
    used += width + 6;
  }
  let y = 32;
  for (const row of rows) {
    const indent = (WIDTH - row.at(-1).x - row.at(-1).width) / 2;
    for (const { word, nats, unknown: isUnknown, isChosen, width, x } of row) {
      const share = Math.min(1, (nats ?? 0) / mostNats);
      const mixed = SURPRISE.map((value) => Math.round(255 + share * (value - 255)));
      const fill = isUnknown ? "url(#unknown)" : `rgb(${mixed})`;
      const line = isChosen ? `stroke="${SENSES[0]}" stroke-width="3"` : `stroke="${LINE}"`;
      const center = indent + x + width / 2;
      parts.push(
        `<rect x="${(indent + x).toFixed(1)}" y="${y}" width="${width.toFixed(1)}" height="${height}" rx="8" fill="${fill}" ${line}/>`,
        text(center, y + 36, escaped(word), { size, anchor: "middle", family: SERIF }),
        text(center, y + 57, isUnknown ? "unknown" : (nats?.toFixed(1) ?? ""), { size: isUnknown ? 11 : 14, anchor: "middle", fill: "#3c424d" }),
      );
    }
    y += height + 12;
  }
  parts.push(text(WIDTH / 2, y + 16, escaped(title), { size: 14, anchor: "middle", fill: FAINT }));
  y += 34;
  if (gap) {
    const token = shortened(gap.token, room - widthOf("In place of “”, the model expects", 19, FONT, 700), 19, FONT, 700);
    parts.push(text(WIDTH / 2, y + 28, `In place of “${escaped(token)}”, the model expects`, { size: 19, anchor: "middle", weight: 700 }));
    y += 46;
    const most = gap.words[0].probability;
    for (const { word, probability } of gap.words) {
      const width = Math.max(2, (360 * probability) / most);
      parts.push(
        text(360, y + 19, escaped(shortened(word, 360 - margin, 18, SERIF)), { size: 18, anchor: "end", family: SERIF }),
        `<rect x="374" y="${y + 3}" width="${width.toFixed(1)}" height="21" rx="4" fill="${SENSES[0]}"/>`,
        text(384 + width, y + 19, percent(probability), { fill: FAINT }),
      );
      y += 30;
    }
  }
  return drawing(y + 24, parts);
}

/** Format a probability as a percentage. */
export function percent(probability) {
  return `${(100 * probability).toFixed(probability >= 0.0995 ? 0 : 1)}\u00a0%`;
}

function wrapped(content, width, size) {
  const lines = [""];
  for (const word of content.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (widthOf(longer, size) > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

/** Save a picture as a file, as "svg" or "png". */
export async function savePicture(svg, name, kind) {
  const content = kind === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await pngOf(svg);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = `${name}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function pngOf(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * image.width, 2 * image.height]; // sharp on large screens
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
