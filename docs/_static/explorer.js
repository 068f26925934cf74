// SPDX-License-Identifier: Apache-2.0
// The model explorer: a table to sort and filter, and a plot of two of its columns.
// The data is in #explorer-data: {columns: [...], rows: [[...], ...]}, null for a missing value.

const explorer = document.getElementById("explorer");
const { columns, rows } = JSON.parse(document.getElementById("explorer-data").textContent);
const isNumeric = columns.map((_, i) => rows.every((row) => row[i] === null || typeof row[i] === "number"));
const shown = columns.map((_, i) => i).filter((i) => rows.some((row) => row[i] !== null));
const numeric = shown.filter((i) => isNumeric[i]);
const MODEL = 0;
const FAMILY = 1;
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
const log = element("input", { id: "log", type: "checkbox", checked: true, onchange: draw });
y.value = columns.indexOf("top-1 (%)");
const plot = element("div", { className: "plot" });
const head = element("tr");
const body = element("tbody");
const count = element("p", { id: "count" });

for (const i of shown) {
  const button = element("button", { type: "button", textContent: columns[i], onclick: () => sortBy(i) });
  head.append(element("th", { scope: "col" }, button));
}
explorer.append(
  element("div", { className: "controls" }, element("label", {}, "Name", filter), familyLabel, xLabel, yLabel,
    element("label", {}, log, "logarithmic")),
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
  const text = row[i] === null ? "" : isNumeric[i] ? row[i].toLocaleString("en", { maximumFractionDigits: 2 }) : row[i];
  return element("td", { textContent: text });
}

function drawPlot(found) {
  const points = found.filter((row) => row[x.value] !== null && row[y.value] !== null);
  const traces = families.map((name) => {
    const own = points.filter((row) => row[FAMILY] === name);
    return {
      name, type: "scatter", mode: "markers", marker: { size: 9 },
      x: own.map((row) => row[x.value]), y: own.map((row) => row[y.value]), text: own.map((row) => row[MODEL]),
      hovertemplate: "%{text}<br>%{x:.4~g}, %{y:.4~g}<extra></extra>",
    };
  });
  const style = getComputedStyle(document.body);
  const grid = { gridcolor: style.getPropertyValue("--color-background-border"), zeroline: false };
  const axis = (column) => ({ ...grid, type: log.checked ? "log" : "linear", title: { text: columns[column] } });
  const layout = {
    xaxis: axis(x.value), yaxis: axis(y.value), font: { color: style.color, family: style.fontFamily },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", margin: { t: 10, r: 10 },
    legend: { orientation: "h", y: -0.2 },
  };
  Plotly.react(plot, traces, layout, { responsive: true, displaylogo: false });
}

draw();
new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
