// The part of a page that grows: news from the server, how each run stands, and panels that the server fills.
const link = get("link"), panel = get("panel");
let source = null, instance = null, rows = new Map(), tab = "runs", fresh = true, pause = 5000, turn = 0, soon = 0, shownText = "";

function told(kind, text) {
  link.dataset.kind = kind;
  link.textContent = text;
}

/** Takes over the columns of a log from a point on. */
function merge(log, news) {
  if (!news) return;
  if (news.from === 0) for (const name of Object.keys(log)) delete log[name];
  for (const [name, values] of Object.entries(news.columns)) {
    const column = (log[name] ??= []);
    column.length = Math.min(column.length, news.from);
    for (const value of values) column.push(value);
  }
}

function connect() {
  source = new EventSource("events");
  source.onopen = () => told("good", "live");
  source.onerror = () => {
    told("bad", `connection lost at ${new Date().toLocaleTimeString()}, trying again`);
    // a browser tries again by itself unless the server has refused
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
  };
  const on = (name, take) => source.addEventListener(name, (event) => take(JSON.parse(event.data)));
  on("start", (start) => {
    if (instance !== null && instance !== start.instance) location.reload();
    instance = start.instance;
  });
  on("runs", (news) => {
    const old = new Map(data.runs.map((run) => [run.key, run]));
    const log = () => Object.create(null);
    data.quantities = news.quantities;
    data.runs = news.runs.map((look) => {
      if (!old.has(look.key) && !look.chosen) state.hidden.add(look.key);
      const run = old.get(look.key) ?? { status: "", kind: "", cells: [], stride: 1, samples: 0, train: log(), val: log() };
      return Object.assign(run, look);
    });
    get("left-out").textContent = news.leftOut > 0 ? `; ${news.leftOut} more are left out` : "";
    legend();
    filter();
    for (const [key, row] of rows) {
      row.replaceChildren();
      const run = data.runs.find((run) => run.key === key);
      if (run) fillRow(run);
    }
    show();
    changed();
  });
  on("run", (news) => {
    const run = data.runs.find((run) => run.key === news.key);
    if (!run) return;
    if (isShown(run) && (tab === "samples" ? run.samples !== news.samples : news.train || news.val)) fresh = false;
    for (const name of ["status", "kind", "why", "cells", "samples", "stride"]) run[name] = news[name];
    merge(run.train, news.train);
    merge(run.val, news.val);
    mark(run);
    fillRow(run);
    changed();
  });
}

/** Draws before the next frame, however much is new until then. */
function changed() {
  if (soon) return;
  soon = requestAnimationFrame(() => {
    soon = 0;
    choices();
    summary();
    draw();
  });
}

function summary() {
  const counts = new Map();
  for (const run of data.runs) if (run.status) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
  const parts = [...counts].map(([status, count]) => `${count} ${status}`);
  const all = data.runs.length;
  const shown = data.runs.filter(isShown).length;
  get("summary").textContent = all === 0 ? "no run yet" : `${all} ${all === 1 ? "run" : "runs"} (${shown} shown): ${parts.join(", ")}`;
  canvas.dataset.runs = all;
  canvas.dataset.standing = data.runs.map((run) => `${run.id}=${run.status}`).join(" ");
}

hooks.entry = (run, button) => {
  run.mark = element("span", "mark");
  run.button = button;
  button.append(run.mark);
  mark(run);
};

/** Says beside the run's label how it stands. */
function mark(run) {
  if (!run.mark) return;
  run.mark.dataset.kind = run.kind;
  run.mark.textContent = run.status;
  run.button.title = `${run.id}, ${run.status}`;
}

hooks.shown = () => {
  for (const run of data.runs) {
    const box = rows.get(run.key)?.querySelector("input");
    if (box) box.checked = isShown(run);
  }
  summary();
  clearTimeout(hooks.timer);
  hooks.timer = setTimeout(refresh, 250);
};

const search = element("input", "");
search.type = "search";
search.id = "filter";
search.placeholder = "filter";
search.setAttribute("aria-label", "list only runs whose label, id or status has this text");
search.addEventListener("input", filter);
get("buttons").append(search);

function filter() {
  const text = search.value.trim().toLowerCase();
  const fits = (run) => [run.label, run.id, run.status].some((part) => part.toLowerCase().includes(text));
  for (const run of data.runs) buttons.get(run.key).parentElement.hidden = text !== "" && !fits(run);
}

/** A table of what the server sends: columns, and rows of cells, each a text and perhaps a number. */
function table({ columns, rows }) {
  const head = columns.map(({ title, numeric, hint }) => {
    const button = element("button", "", title);
    button.type = "button";
    if (hint) button.title = hint;
    return element("th", numeric ? "n" : "", button);
  });
  const body = element("tbody", "", ...rows.map((row) => element("tr", "", ...row.map((cell, i) => td(cell, columns[i])))));
  const made = element("table", "", element("thead", "", element("tr", "", ...head)), body);
  sortable(made);
  return made;
}

function td([text, value], { numeric }) {
  const made = element("td", numeric ? "n" : text.length > 60 ? "long" : "", text);
  if (typeof value === "number") made.dataset.v = value;
  return made;
}

/** The table of all runs, whose rows follow the news. */
function runsTable() {
  const made = table({ columns: [{ title: "run" }, ...data.columns], rows: [] });
  rows = new Map(data.runs.map((run) => [run.key, made.tBodies[0].appendChild(element("tr", ""))]));
  data.runs.forEach(fillRow);
  return element("div", "scroll", made);
}

function fillRow(run) {
  const row = rows.get(run.key);
  if (!row) return;
  if (row.cells.length === 0) {
    const box = element("input", "");
    box.type = "checkbox";
    box.checked = isShown(run);
    box.addEventListener("change", () => toggle(run));
    row.append(element("td", "", element("label", "", box, sample(run), run.id)));
  }
  // the first cell stays: it may have the focus
  while (row.cells.length > 1) row.deleteCell(1);
  const status = element("td", "", element("span", "mark", run.status));
  status.firstChild.dataset.kind = run.kind;
  if (run.why) status.append(element("div", "why", run.why));
  row.append(status, ...run.cells.map((cell, i) => td(cell, data.columns[i + 1])));
}

const heading = (text) => element("h2", "", text);
const list = (sentences) => (sentences.length ? [element("ul", "", ...sentences.map((text) => element("li", "", text)))] : []);
const scrolled = (content) => element("div", "scroll", table(content));
const titled = (tables) => tables.flatMap((content) => (content.title ? [heading(content.title)] : []).concat(scrolled(content)));

const results = ({ shared, tables, notes, sentences, remarks }) =>
  [element("p", "shared", shared), ...titled(tables), ...list(notes), ...list(sentences), ...list(remarks)];

function samples(runs) {
  const one = ({ step, text }) => [element("p", "shared", step === null ? "" : `step ${step}`), element("pre", "", text)];
  const card = ({ key, samples }) => {
    const run = data.runs.find((run) => run.key === key);
    if (!run) return "";
    const [newest, ...older] = samples;
    const made = element("article", "", element("h3", "", sample(run), run.label), ...(newest ? one(newest) : [element("p", "shared", "no samples yet")]));
    if (older.length) made.append(element("details", "", element("summary", "", `${older.length} before`), ...older.flatMap(one)));
    return made;
  };
  return [element("div", "cards", ...runs.map(card))];
}

const panels = {
  runs: null,
  results: ["compare", results],
  recipes: ["compare", ({ recipes }) => titled(recipes)],
  plan: ["compare", ({ plan }) => titled(plan)],
  samples: ["samples", samples],
};

/** Fills the panel that is chosen for the runs that are shown. */
async function refresh() {
  clearTimeout(refresh.timer);
  const mine = ++turn, chosen = tab, shown = data.runs.filter(isShown).map((run) => run.key);
  if (!panels[chosen]) {
    if (!panel.querySelector("table") || rows.size !== data.runs.length || data.runs.some((run) => !rows.has(run.key))) put([runsTable()], "");
    return;
  }
  rows = new Map();
  if (shown.length === 0) { put([element("p", "shared", "no run is chosen")], ""); return; }
  const [path, made] = panels[chosen], begun = performance.now();
  fresh = true;
  try {
    const response = await fetch(`${path}?runs=${shown.join(",")}`);
    if (mine !== turn) return;
    if (response.status === 503) {
      // it makes comparisons for others, and is asked again
      fresh = false;
      if (panel.dataset.tab !== chosen) put([element("p", "shared", "the server is busy with other readers")], "");
      return again();
    }
    if (!response.ok) throw new Error(`the server says ${response.status}`);
    const text = await response.text();
    if (mine !== turn) return;
    // a server that is busy with many rows is left alone for longer
    pause = Math.max(5000, 20 * (performance.now() - begun));
    if (chosen + text !== shownText) put(made(JSON.parse(text)), chosen + text);
  } catch (error) {
    if (mine !== turn) return;
    put([element("p", "shared", `this cannot be shown: ${error.message}`)], "");
  }
  again();
}

/** Asks again once something has changed that is looked at. */
function again() {
  refresh.timer = setTimeout(() => (!fresh && document.visibilityState === "visible" ? refresh() : again()), pause);
}

/** Puts something new into the panel; tables stay as the reader has sorted and moved them. */
function put(content, text) {
  const before = [...panel.querySelectorAll("table")].map((table) => [table.sorted, table.parentElement.scrollLeft]);
  const same = panel.dataset.tab === tab;
  panel.dataset.tab = tab;
  panel.replaceChildren(...content);
  if (same)
    [...panel.querySelectorAll("table")].forEach((table, i) => {
      const [sorted, moved] = before[i] ?? [];
      if (sorted && sorted[0] < table.tHead.rows[0].cells.length) sort(table, ...sorted);
      table.parentElement.scrollLeft = moved ?? 0;
    });
  shownText = text;
}

for (const button of document.querySelectorAll("#tabs button"))
  button.addEventListener("click", () => {
    tab = button.dataset.tab;
    for (const other of document.querySelectorAll("#tabs button")) other.setAttribute("aria-selected", String(other === button));
    rows = new Map();
    refresh();
  });

told("waiting", "connecting");
refresh();
connect();
