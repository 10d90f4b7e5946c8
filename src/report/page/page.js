// The controls around the curves, the list of runs and the tables.
/** What the reader wants to see, which no run may have yet. */
const wanted = { quantity: state.quantity, axis: state.axis };

/** Offers what some run has. */
function choices() {
  const offer = (id, items, key) => {
    const found = items.find((item) => item.name === wanted[key]) ?? items[0];
    if (found) state[key] = found.name;
    const names = items.map((item) => item.name);
    const select = get(id), now = [...select.options].map((option) => option.value);
    if (names.length !== now.length || names.some((name, i) => name !== now[i]))
      select.replaceChildren(...items.map(({ name, title }) => new Option(title, name)));
    select.value = state[key];
  };
  offer("quantity", data.quantities.filter((q) => data.runs.some((run) => has(run, q))), "quantity");
  offer("axis", data.axes.filter((a) => data.runs.some((run) => column(run.train, a.name))), "axis");
  get("smooth").max = Math.max(2, Math.round(longest() / 5));
  get("smooth").value = points();
  get("smoothed").textContent = averaged();
}
for (const id of ["quantity", "axis"])
  get(id).addEventListener("change", (event) => { state[id] = wanted[id] = event.target.value; state.zoom = null; choices(); draw(); });
for (const [id, key] of [["logx", "logX"], ["logy", "logY"]]) {
  get(id).checked = state[key];
  get(id).addEventListener("change", (event) => { state[key] = event.target.checked; state.zoom = null; draw(); });
}
get("smooth").addEventListener("input", (event) => { state.window = Math.max(1, Number(event.target.value)); choices(); draw(); });

/** Makes an element of a name, a class and what is in it; texts stay texts. */
function element(name, kind, ...inside) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...inside);
  return made;
}

/** A sample of a run's line. */
function sample(run) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", 26);
  svg.setAttribute("height", 8);
  const line = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "line"));
  for (const [name, value] of [["x1", 0], ["x2", 26], ["y1", 4], ["y2", 4], ["stroke-width", 2]]) line.setAttribute(name, value);
  line.style.stroke = `var(--${run.ink})`;
  line.setAttribute("stroke-dasharray", dash(run).join(" "));
  return svg;
}

/** What a page that grows adds to an entry of the legend, and does when other runs are shown. */
const hooks = { entry() {}, shown() {} };
const isShown = (run) => !state.hidden.has(run.key);
const toggle = (run) => { if (!state.hidden.delete(run.key)) state.hidden.add(run.key); show(); };
const alone = (run) => { state.hidden = new Set(data.runs.map((other) => other.key).filter((key) => key !== run.key)); show(); };
let buttons = new Map();

/** Lists the runs beside the curves. */
function legend() {
  buttons = new Map();
  const entry = (run) => {
    const button = element("button", "", sample(run), element("span", "label", run.label));
    button.type = "button";
    button.title = `${run.id}, ${run.status}`;
    button.addEventListener("click", () => toggle(run));
    button.addEventListener("dblclick", () => alone(run));
    buttons.set(run.key, button);
    hooks.entry(run, button);
    return element("li", "", button);
  };
  get("legend").replaceChildren(...data.runs.map(entry));
}

function show() {
  for (const run of data.runs) buttons.get(run.key).setAttribute("aria-pressed", String(isShown(run)));
  hooks.shown();
  draw();
}
/** The runs that the buttons for all of them are about: those that are listed. */
const listed = () => data.runs.filter((run) => !buttons.get(run.key).parentElement.hidden);
get("all").addEventListener("click", () => { listed().forEach((run) => state.hidden.delete(run.key)); show(); });
get("none").addEventListener("click", () => { listed().forEach((run) => state.hidden.add(run.key)); show(); });

/** Sorts the rows of a table by a column, upwards for 1 and downwards for -1, and notes it. */
function sort(table, place, turn) {
  const rows = [...table.tBodies[0].rows];
  const key = (row) => { const cell = row.cells[place]; return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v); };
  const less = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  rows.sort((a, b) => turn * less(key(a), key(b)));
  table.tBodies[0].append(...rows);
  table.sorted = [place, turn];
}

/** Lets a click on a heading sort the rows of a table. */
function sortable(table) {
  table.querySelectorAll("thead th").forEach((head, place) => {
    head.querySelector("button").addEventListener("click", () => {
      const [before, turn] = table.sorted ?? [];
      sort(table, place, before === place ? -turn : 1);
    });
  });
}
document.querySelectorAll("table").forEach(sortable);

new ResizeObserver(draw).observe(canvas);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
choices();
legend();
show();
