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
const PIXELS_PER_NAME = 40;
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
const yLog = element("input", { id: "y-log", type: "checkbox", onchange: draw });
y.value = columns.indexOf("ImageNet (%)");
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
  const digits = isWhole[i] ? 0 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Points have names if there is room for them.
function drawPlot(found) {
  const points = found.filter((row) => row[x.value] !== null && row[y.value] !== null);
  const mode = points.length * PIXELS_PER_NAME > plot.clientWidth ? "markers" : "markers+text";
  const traces = families.map((name) => {
    const own = points.filter((row) => row[FAMILY] === name).sort((a, b) => a[x.value] - b[x.value]);
    const [left, up, text] = [x.value, y.value, MODEL].map((i) => own.map((row) => row[i]));
    return {
      name, mode, text, x: left, y: up, type: "scatter", marker: { size: 9 }, cliponaxis: false,
      textposition: own.map((_, i) => (i % 2 ? "bottom center" : "top center")), textfont: { size: 10 },
      visible: own.length > 0,
      hovertemplate: "%{text}<br>%{x:.4~g}, %{y:.4~g}<extra></extra>",
    };
  });
  const style = getComputedStyle(document.body);
  const axis = (column, log) => ({
    title: { text: columns[column] }, type: log.checked ? "log" : "linear", zeroline: false,
    gridcolor: style.getPropertyValue("--color-background-border"),
  });
  const layout = {
    xaxis: axis(x.value, xLog), yaxis: axis(y.value, yLog), font: { color: style.color, family: style.fontFamily },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", margin: { t: 20, r: 20, l: 70 },
    showlegend: true, legend: { orientation: "h", y: -0.2 },
  };
  Plotly.react(plot, traces, layout, { responsive: true, displayModeBar: false });
}

draw();
new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
