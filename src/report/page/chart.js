// Draws the curves of the page's data on a canvas.
const data = JSON.parse(document.getElementById("data").textContent);
const get = (id) => document.getElementById(id);
const canvas = get("canvas"), tip = get("tip"), ctx = canvas.getContext("2d");
const DASHES = [[], [9, 4], [3, 3], [11, 3, 3, 3]];
const longest = () => Math.max(1, ...data.runs.map((run) => (run.train.step || []).length));
const coarsest = () => Math.max(1, ...data.runs.map((run) => run.stride));
// the window counts points of the coarsest curve; null is a fiftieth of the longest curve, also while that grows
const state = {
  axis: data.axis, quantity: data.quantity, logX: data.logX, logY: data.logY,
  window: data.window ? Math.max(1, Math.round(data.window / coarsest())) : null,
  zoom: null, hidden: new Set(), hover: null, whole: false,
};
const points = () => state.window ?? Math.max(1, Math.round(longest() / 50));
/** Over how many steps a curve is averaged: a point of a long log is a mean already. All are alike if they are smoothed. */
const steps = (run, { smoothed }) => Math.max(run.stride, smoothed ? points() * coarsest() : 1);
function averaged() {
  const shown = quantity(state.quantity);
  if (shown.evaluated) return "none";
  const all = data.runs.map((run) => steps(run, shown)), least = Math.min(...all), most = Math.max(...all);
  return most <= 1 ? "none" : `over ${least < most ? `${least} to ` : ""}${most} steps`;
}
let view = null;

const quantity = (name) => data.quantities.find((q) => q.name === name);
/** A column of a log by name; a name may be any text. */
const column = (log, name) => (name && Object.hasOwn(log, name) ? log[name] : undefined);
const has = (run, q) => Boolean(column(q.evaluated ? run.val : run.train, q.name));

/** Where the evaluations of a run lie. They have no clock of their own: each is as old as the training step before. */
function evaluated(run) {
  const steps = column(run.val, "step") || [];
  if (state.axis !== "elapsed_s") return column(run.val, state.axis) || [];
  const done = column(run.train, "step") || [], clock = column(run.train, "elapsed_s") || [];
  let i = 0;
  return steps.map((step) => {
    while (i < done.length && done[i] < step - 1) i++;
    if (i === done.length) return clock[i - 1] ?? 0;
    const [x, y] = i > 0 ? [done[i - 1], clock[i - 1]] : [-1, 0];
    return y + ((clock[i] - y) * (step - 1 - x)) / (done[i] - x);
  });
}

/** The mean of each value with others on both sides, fewer at the ends; gaps stay gaps. */
function around(values, reach) {
  const sums = [0], counts = [0];
  for (const value of values) {
    sums.push(sums[sums.length - 1] + (value ?? 0));
    counts.push(counts[counts.length - 1] + (value === null ? 0 : 1));
  }
  return values.map((value, i) => {
    if (value === null) return null;
    const r = Math.min(reach, i, values.length - 1 - i);
    return (sums[i + r + 1] - sums[i - r]) / (counts[i + r + 1] - counts[i - r]);
  });
}

/** A weighted mean over a window, as in the plots without a page. */
function smooth(values, window) {
  if (window < 2) return values;
  if (window < 4) return around(values, 1);
  const reach = Math.floor((window + 1) / 4);
  return around(around(values, reach), reach);
}

/** The curve of a run as it is shown: places, values, and evaluations beside the training loss. */
function curve(run) {
  const shown = quantity(state.quantity), { name, evaluated: isEvaluated, marks } = shown;
  const values = column(run.val, marks);
  const evaluations = values ? { x: evaluated(run), y: values } : null;
  if (isEvaluated) return evaluations ? { ...evaluations, marks: evaluations } : { x: [], y: [] };
  const x = column(run.train, state.axis), y = column(run.train, name);
  if (!x || !y) return { x: [], y: [] };
  return { x, y: smooth(y, Math.round(steps(run, shown) / run.stride)), marks: evaluations };
}

/** The targets of the column that is shown, or of the one that is marked beside it. */
function levels() {
  const { name, marks } = quantity(state.quantity);
  return data.targets.filter((t) => t.column === name || t.column === marks);
}

/** As in `plot/scale.rs`: greater numbers, and on a logarithmic axis smaller ones than the inverse, have no place. */
const LARGEST = 1e100;
const usable = (value, log) => value !== null && Math.abs(value) <= LARGEST && (!log || value >= 1 / LARGEST);

function extent(values, log, margin) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (usable(value, log)) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return null;
  if (log) { low = Math.log(low); high = Math.log(high); }
  const least = Math.max(Number.EPSILON * Math.max(Math.abs(low), Math.abs(high)), 1 / LARGEST);
  const room = high - low > least ? (high - low) * margin : Math.max(Math.abs(low) * 0.05, 1e-9);
  return log ? [Math.exp(low - room), Math.exp(high + room)] : [low - room, high + room];
}

function scale([low, high], log, from, to) {
  const f = log ? Math.log : (v) => v;
  const a = f(low), b = f(high);
  const place = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  const back = (p) => { const v = a + ((p - from) / (to - from)) * (b - a); return log ? Math.exp(v) : v; };
  return { place, back, log, low, high };
}

function ticks({ low, high, log }, count) {
  if (log && high / low > 15) {
    const out = [];
    const digits = high / low < 1e4 ? [1, 2, 5] : [1];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const digit of digits) {
        const value = digit * 10 ** power;
        if (value >= low && value <= high) out.push(value);
      }
    const stride = Math.ceil(out.length / (count + 2));
    return out.filter((_, i) => i % stride === 0);
  }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((digit) => digit * power >= rough * (1 - 1e-9)) * power;
  // counted, for in a narrow range one more may be the same number
  const first = Math.ceil(low / step), more = Math.min(Math.floor(high / step) - first, 3 * count), out = [];
  for (let i = 0; i <= more; i++) out.push((first + i) * step);
  return out;
}

function shown(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4) {
    const [unit, name] = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]].find(([unit]) => size >= unit);
    return String(Number((value / unit).toPrecision(digits))) + name;
  }
  const text = String(Number(value.toPrecision(digits)));
  return size < 1e-3 ? Number(value.toPrecision(digits)).toExponential().replace("e+", "e") : text;
}

/** Labels of ticks, in as many digits as tell them apart. */
function labels(values) {
  const gap = Math.min(...values.slice(1).map((v, i) => v - values[i]));
  const tells = (digits) => values.every((v) => !(Math.abs(Number(v.toPrecision(digits)) - v) > gap / 100));
  const digits = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16].find(tells) ?? 17;
  return values.map((v) => shown(v, digits));
}

/** Seconds in the unit that suits the range. */
function timeUnit(high) {
  return [[86400, "days", 3 * 86400], [3600, "h", 3 * 3600], [60, "min", 180], [1, "s", 0]].find((u) => high >= u[2]);
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (run) => style("--" + run.ink);
const dash = (run) => DASHES[data.runs.length > 1 ? run.dash : 0];

function draw() {
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, box.width, box.height);
  ctx.font = "12px Inter, Helvetica, Arial, sans-serif";
  const curves = data.runs
    .filter((run) => !state.hidden.has(run.key))
    .map((run) => ({ run, ...curve(run) }))
    .filter((c) => c.x.length > 0);
  const every = (pick) => curves.flatMap((c) => pick(c));
  const end = state.whole ? null : data.ends[state.axis];
  const along = (c) => (c.marks ? c.x.concat(c.marks.x) : c.x).filter((v) => !end || v <= end).concat(end ? [end] : []);
  const rangeX = state.zoom ? state.zoom.x : extent(every(along), state.logX, 0.01);
  const inside = (c) => c.y.filter((_, i) => !rangeX || (c.x[i] >= rangeX[0] && c.x[i] <= rangeX[1]));
  const marked = (c) => (c.marks ? c.marks.y.filter((_, i) => c.marks.x[i] >= rangeX[0] && c.marks.x[i] <= rangeX[1]) : []);
  const rangeY = state.zoom?.y || (rangeX && extent(every((c) => inside(c).concat(marked(c))).concat(levels().map((t) => t.value)), state.logY, 0.04));
  canvas.dataset.curves = curves.length;
  canvas.dataset.levels = levels().map((t) => t.value).join(" ");
  canvas.dataset.x = rangeX ? rangeX.join(" ") : "";
  canvas.dataset.y = rangeY ? rangeY.join(" ") : "";
  if (!rangeX || !rangeY) {
    view = null;
    ctx.fillStyle = style("--muted");
    ctx.fillText("nothing to show", 60, 40);
    return;
  }
  const top = 26, bottom = box.height - 42, right = box.width - 12;
  const probe = scale(rangeY, state.logY, bottom, top);
  const yTicks = ticks(probe, 8);
  const yLabels = labels(yTicks);
  const left = 16 + Math.max(...yLabels.map((text) => ctx.measureText(text).width), 20);
  const x = scale(rangeX, state.logX, left, right), y = probe;
  view = { x, y, left, right, top, bottom, curves };
  const [divisor, unit] = state.axis === "elapsed_s" ? timeUnit(rangeX[1]) : [1, ""];
  ctx.strokeStyle = style("--grid");
  ctx.fillStyle = style("--muted");
  ctx.lineWidth = 1;
  ctx.textAlign = "right";
  yTicks.forEach((t, i) => {
    const p = y.place(t);
    ctx.beginPath(); ctx.moveTo(left, p); ctx.lineTo(right, p); ctx.stroke();
    ctx.fillText(yLabels[i], left - 7, p + 4);
  });
  ctx.textAlign = "center";
  ctx.strokeStyle = style("--muted");
  const xTicks = ticks({ low: rangeX[0] / divisor, high: rangeX[1] / divisor, log: state.logX }, Math.max(2, Math.floor((right - left) / 90)));
  const xLabels = labels(xTicks);
  xTicks.forEach((t, i) => {
    const p = x.place(t * divisor);
    ctx.beginPath(); ctx.moveTo(p, bottom); ctx.lineTo(p, bottom + 4); ctx.stroke();
    ctx.fillText(xLabels[i], p, bottom + 18);
  });
  ctx.beginPath(); ctx.moveTo(left, bottom); ctx.lineTo(right, bottom); ctx.stroke();
  ctx.fillStyle = style("--fg");
  const title = data.axes.find((a) => a.name === state.axis).title;
  ctx.fillText(unit ? `${title} (${unit})` : title, (left + right) / 2, bottom + 36);
  ctx.textAlign = "left";
  ctx.fillText(data.quantities.find((q) => q.name === state.quantity).title, left, top - 11);
  ctx.save();
  ctx.beginPath(); ctx.rect(left, top, right - left, bottom - top); ctx.clip();
  ctx.strokeStyle = ctx.fillStyle = style("--fg");
  ctx.lineWidth = 1.2;
  ctx.setLineDash([5, 4]);
  for (const t of levels()) {
    const p = y.place(t.value);
    ctx.beginPath(); ctx.moveTo(left, p); ctx.lineTo(right, p); ctx.stroke();
    ctx.fillText(t.shown, left + 6, p - 5);
  }
  ctx.setLineDash([]);
  const many = curves.length > 60;
  for (const c of curves.slice().reverse()) {
    ctx.strokeStyle = ctx.fillStyle = colour(c.run);
    ctx.lineWidth = many ? 0.8 : 1.7;
    ctx.setLineDash(many ? [] : dash(c.run));
    ctx.beginPath();
    let pen = false;
    for (let i = 0; i < c.x.length; i++) {
      if (!usable(c.y[i], state.logY) || !usable(c.x[i], state.logX)) { pen = false; continue; }
      const px = x.place(c.x[i]), py = y.place(c.y[i]);
      if (pen) ctx.lineTo(px, py); else ctx.moveTo(px, py);
      pen = true;
    }
    ctx.stroke();
    ctx.setLineDash([]);
    if (c.marks && !many)
      c.marks.y.forEach((v, i) => {
        if (!usable(v, state.logY) || !usable(c.marks.x[i], state.logX)) return;
        ctx.beginPath(); ctx.arc(x.place(c.marks.x[i]), y.place(v), 3.2, 0, 2 * Math.PI); ctx.fill();
      });
  }
  if (state.drag) {
    ctx.fillStyle = style("--muted");
    ctx.globalAlpha = 0.2;
    ctx.fillRect(state.drag.x0, state.drag.y0, state.drag.x1 - state.drag.x0, state.drag.y1 - state.drag.y0);
    ctx.globalAlpha = 1;
  }
  if (state.hover !== null) {
    ctx.strokeStyle = style("--muted");
    ctx.beginPath(); ctx.moveTo(state.hover, top); ctx.lineTo(state.hover, bottom); ctx.stroke();
  }
  ctx.restore();
}

/** What every curve has at a place, the value nearest to the pointer first. */
function point(px, py) {
  if (!view || px < view.left || px > view.right) { tip.hidden = true; state.hover = null; draw(); return; }
  const at = view.x.back(px);
  const rows = [];
  for (const c of view.curves) {
    let low = 0, high = c.x.length - 1;
    while (low < high) { const middle = (low + high) >> 1; if (c.x[middle] < at) low = middle + 1; else high = middle; }
    const i = low > 0 && at - c.x[low - 1] < c.x[low] - at ? low - 1 : low;
    if (usable(c.y[i], state.logY)) rows.push({ c, x: c.x[i], y: c.y[i], off: Math.abs(view.y.place(c.y[i]) - py) });
  }
  rows.sort((a, b) => a.off - b.off);
  const nearest = rows.slice(0, 10).sort((a, b) => a.y - b.y);
  tip.replaceChildren();
  const line = (text, tint) => {
    const row = tip.appendChild(document.createElement("div"));
    if (tint) { const dot = row.appendChild(document.createElement("i")); dot.style.background = tint; }
    row.append(text);
  };
  const [divisor, unit] = state.axis === "elapsed_s" ? timeUnit(view.x.high) : [1, ""];
  const title = data.axes.find((a) => a.name === state.axis).title;
  if (rows.length) line(`${title} ${shown(rows[0].x / divisor, 6)} ${unit}`);
  for (const row of nearest) line(`${shown(row.y, 5)}  ${row.c.run.label}`, colour(row.c.run));
  if (rows.length > nearest.length) line(`and ${rows.length - nearest.length} more`);
  tip.hidden = rows.length === 0;
  const wide = tip.offsetWidth, room = canvas.getBoundingClientRect().width;
  tip.style.left = (px + 14 + wide > room ? Math.max(0, px - wide - 14) : px + 14) + "px";
  tip.style.top = Math.max(0, Math.min(py, view.bottom - tip.offsetHeight)) + "px";
  state.hover = px;
  draw();
}

const place = (event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
const clamp = (v, low, high) => Math.min(high, Math.max(low, v));
canvas.addEventListener("pointerdown", (event) => {
  if (!view) return;
  const [x, y] = place(event);
  try { canvas.setPointerCapture(event.pointerId); } catch { /* a pointer of a test has no capture */ }
  state.drag = { x0: x, y0: y, x1: x, y1: y };
});
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = place(event);
  if (state.drag && view) {
    state.drag.x1 = clamp(x, view.left, view.right);
    state.drag.y1 = clamp(y, view.top, view.bottom);
    draw();
  } else point(x, y);
});
canvas.addEventListener("pointerup", () => {
  const drag = state.drag;
  state.drag = null;
  if (!drag || !view) return;
  const wide = Math.abs(drag.x1 - drag.x0) > 8, tall = Math.abs(drag.y1 - drag.y0) > 8;
  const sorted = (a, b) => (a < b ? [a, b] : [b, a]);
  // a drag along one direction zooms in that one only
  if (wide || tall)
    state.zoom = {
      x: wide ? sorted(view.x.back(drag.x0), view.x.back(drag.x1)) : [view.x.low, view.x.high],
      y: tall ? sorted(view.y.back(drag.y0), view.y.back(drag.y1)) : null,
    };
  draw();
});
canvas.addEventListener("pointerleave", () => { tip.hidden = true; state.hover = null; draw(); });
const reset = () => { state.zoom = null; state.whole = true; draw(); };
canvas.addEventListener("dblclick", reset);
canvas.addEventListener("keydown", (event) => { if (event.key === "Escape") reset(); });
get("reset").addEventListener("click", reset);

