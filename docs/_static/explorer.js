// SPDX-License-Identifier: Apache-2.0
// The model explorer: a table to sort and filter, and a plot of two of its columns.
// The data is in explorer_data.js: {columns: [...], rows: [[...], ...]}, null for a missing value.

const explorer = document.getElementById("explorer");
const { columns, rows } = explorerData;
const isNumeric = columns.map((_, i) => rows.every((row) => row[i] === null || typeof row[i] === "number"));
const shown = columns.map((_, i) => i).filter((i) => rows.some((row) => row[i] !== null));
const numeric = shown.filter((i) => isNumeric[i]);
const MODEL = 0;
const FAMILY = 1;
const TINY = "lambda_resnet_tiny"; // is for tests; far away from all others in a plot
const PUBLISHED = columns.indexOf("ImageNet (%)"); // of models with pretrained weights
const NAME = { height: 13, letter: 5.7, gap: 8 }; // pixels, of a font of 10
const SIDES = { "top center": [0, -1], "bottom center": [0, 1], "middle right": [1, 0], "middle left": [-1, 0] };
const isWhole = columns.map((_, i) => rows.every((row) => row[i] === null || Number.isInteger(row[i])));
const state = { sort: null, descending: false };

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function choice(id, label, options) {
  const select = element("select", { id, onchange: draw });
  select.append(...options.map(([value, text]) => element("option", { value, textContent: text })));
  return [select, element("label", {}, label, select)];
}

const names = numeric.map((i) => [i, columns[i]]);
const families = [...new Set(rows.map((row) => row[FAMILY]))];
const filter = element("input", { id: "filter", type: "search", placeholder: "lambda", oninput: draw });
const [family, familyLabel] = choice("family", "Family", [["", "all"], ...families.map((name) => [name, name])]);
const [x, xLabel] = choice("x", "Horizontal", names);
const [y, yLabel] = choice("y", "Vertical", names);
const xLog = element("input", { id: "x-log", type: "checkbox", checked: true, onchange: draw });
const yLog = element("input", { id: "y-log", type: "checkbox", checked: true, onchange: draw });
x.value = columns.indexOf("FLOPs (G)");
y.value = columns.indexOf("parameters (M)");
const plot = element("div", { className: "plot" });
const head = element("tr");
const body = element("tbody");
const count = element("p", { id: "count" });

for (const i of shown) {
  const button = element("button", { type: "button", textContent: columns[i], onclick: () => sortBy(i) });
  head.append(element("th", { scope: "col" }, button));
}
explorer.append(
  element("div", { className: "controls" }, element("label", {}, "Name", filter), familyLabel),
  element("div", { className: "controls" }, xLabel, element("label", {}, xLog, "logarithmic")),
  element("div", { className: "controls" }, yLabel, element("label", {}, yLog, "logarithmic")),
  plot,
  count,
  element("div", { className: "table" }, element("table", {}, element("thead", {}, head), body)),
);

function sortBy(column) {
  state.descending = state.sort === column ? !state.descending : isNumeric[column];
  state.sort = column;
  draw();
}

// Missing values come last in both orders.
function compare(a, b) {
  const [left, right] = [a[state.sort], b[state.sort]];
  if (left === null || right === null) return (left === null) - (right === null);
  const order = isNumeric[state.sort] ? left - right : left.localeCompare(right);
  return state.descending ? -order : order;
}

function draw() {
  const wanted = filter.value.trim().toLowerCase();
  const found = rows.filter((row) => row[MODEL].includes(wanted) && (!family.value || row[FAMILY] === family.value));
  if (state.sort !== null) found.sort(compare);
  drawTable(found);
  drawPlot(found);
}

function drawTable(found) {
  shown.forEach((i, place) => {
    const order = state.descending ? "descending" : "ascending";
    head.children[place].setAttribute("aria-sort", state.sort === i ? order : "none");
  });
  body.replaceChildren(...found.map((row) => element("tr", {}, ...shown.map((i) => cell(row, i)))));
  count.textContent = `${found.length} of ${rows.length} models`;
}

function cell(row, i) {
  if (i === MODEL) return element("td", {}, element("a", { href: `families/${row[FAMILY]}.html`, textContent: row[i] }));
  return element("td", { textContent: row[i] === null ? "" : format(row[i], i) });
}

function format(value, i) {
  if (!isNumeric[i]) return value;
  if (isWhole[i]) return value.toLocaleString("en");
  const digits = columns[i].endsWith("(%)")
    ? { minimumFractionDigits: 2, maximumFractionDigits: 2 }
    : { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };
  return value.toLocaleString("en", digits);
}

// Returns the side of each point where its name overlaps no other point or name; none for a point without room.
function freeSides(points) {
  const { xaxis, yaxis, width } = plot._fullLayout;
  const centers = points.map((row) => [xaxis._offset + xaxis.d2p(row[x.value]), yaxis._offset + yaxis.d2p(row[y.value])]);
  const taken = centers.map(([left, up]) => [left - 5, up - 5, left + 5, up + 5]);
  const isFree = (box) => box[0] >= 0 && box[2] <= width
    && !taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
  return new Map(points.map((row, i) => {
    const half = (row[MODEL].length * NAME.letter) / 2;
    const boxes = Object.entries(SIDES).map(([side, [right, down]]) => {
      const [left, up] = [centers[i][0] + right * (half + NAME.gap), centers[i][1] + down * (NAME.height / 2 + NAME.gap)];
      return [side, [left - half, up - NAME.height / 2, left + half, up + NAME.height / 2]];
    });
    const [side, box] = boxes.find(([, candidate]) => isFree(candidate)) ?? [];
    if (box) taken.push(box);
    return [row, side];
  }));
}

// Draws the points, then again with the names for which there is room.
async function drawPlot(found) {
  const isPlotted = (row) => row[MODEL] !== TINY && row[x.value] !== null && row[y.value] !== null;
  const points = found.filter(isPlotted);
  points.sort((a, b) => (a[PUBLISHED] === null) - (b[PUBLISHED] === null)); // their names and stars first
  await drawTraces(points, new Map());
  await drawTraces(points, freeSides(points));
}

// Returns a promise of the drawing.
function drawTraces(points, sides) {
  const style = getComputedStyle(document.body);
  const traces = families.map((name) => {
    const own = points.filter((row) => row[FAMILY] === name);
    const [left, up, hovertext] = [x.value, y.value, MODEL].map((i) => own.map((row) => row[i]));
    return {
      name, hovertext, x: left, y: up, type: "scatter", cliponaxis: false,
      marker: {
        symbol: own.map((row) => (row[PUBLISHED] === null ? "circle" : "star")),
        opacity: 0.85, line: { width: 1, color: style.backgroundColor },
        size: own.map((row) => (row[PUBLISHED] === null ? 8 : 13)),
      },
      mode: sides.size ? "markers+text" : "markers", // plotly adds no names to points that had empty ones
      text: own.map((row) => (sides.get(row) ? row[MODEL] : "")),
      textposition: own.map((row) => sides.get(row) ?? "top center"), textfont: { size: 10 },
      visible: own.length > 0,
      hovertemplate: "%{hovertext}<br>%{x:.4~g}, %{y:.4~g}<extra></extra>",
    };
  });
  traces.push({
    name: "pretrained weights", x: [null], y: [null], type: "scatter", mode: "markers",
    marker: { symbol: "star", size: 13, color: style.color },
  });
  const axis = (column, log) => ({
    title: { text: columns[column] }, type: log.checked ? "log" : "linear", zeroline: false,
    gridcolor: style.getPropertyValue("--color-background-border"),
  });
  const layout = {
    xaxis: axis(x.value, xLog), yaxis: axis(y.value, yLog), font: { color: style.color, family: style.fontFamily },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", margin: { t: 20, r: 20, l: 70 },
    showlegend: true, legend: { orientation: "h", y: -0.2 },
  };
  return Plotly.react(plot, traces, layout, { responsive: true, displayModeBar: false });
}

draw();
new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("resize", draw);
