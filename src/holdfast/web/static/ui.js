// Components that several pages use.
import { ago, bytes, counted, duration, exact, go, here, html, live, number, query, quoted, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";

export { ago, bytes, counted, duration, exact, number };

export const Badge = ({ state }) => html`<span class="badge s-${String(state).replace(/[^a-z]/g, "")}">${state}</span>`;

const clocks = new Set(); // one timer for all times of the page
setInterval(() => { if (!document.hidden) for (const again of clocks) again((n) => n + 1); }, 5000);

export function Time({ at }) {
  const [, again] = useState(0);
  useEffect(() => { clocks.add(again); return () => clocks.delete(again); }, []);
  return at ? html`<time datetime=${at} title=${exact(at)} class="nowrap">${ago(at)}</time>` : "–";
}

// For how long something has been so, with the exact moment since when.
export const Age = ({ seconds, since }) => (seconds === null || seconds === undefined ? "–" : html`<time datetime=${since} title="since ${exact(since)}">${duration(seconds)}</time>`);

// Date.parse drops microseconds, and many jobs are quicker than a millisecond.
const micros = (text) => Date.parse(text) * 1000 + Number(text.slice(23, 26));
export const seconds = (from, to) => (from && to ? Math.max(0, (micros(to) - micros(from)) / 1e6) : null);

export function Head({ title, children, lead }) {
  const [, again] = useState(0);
  useEffect(() => {
    document.title = `${title} – Holdfast`;
    const listener = (name) => name === "status" && again((n) => n + 1);
    live.listeners.add(listener);
    return () => live.listeners.delete(listener);
  }, [title]);
  return html`<div class="head"><h1>${title}</h1>${lead || ""}<span class="grow"></span>${children}
    ${live.status === "off" ? "" : html`<span class="live ${live.status === "on" ? "" : "off"}" role="status" title=${live.detail}>${live.status === "on" ? "live" : "reconnecting…"}</span>`}</div>`;
}

export const Failed = ({ error }) => (error ? html`<p class="note error" role="alert">${error.message}</p>` : null);

export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;

// options: [label, …]; `chosen` is an index.
export const Segments = ({ options, chosen, choose, label }) => html`<span class="segments" role="group" aria-label=${label}>${options.map(([text], index) => html`<button aria-pressed=${chosen === index} onClick=${() => choose(index)}>${text}</button>`)}</span>`;

// The period that the address names, as an index of options, and a function that changes it.
export function usePeriod(parameters, options, usual) {
  const named = ([label]) => label.replace(" ", "").toLowerCase();
  const found = options.findIndex((one) => named(one) === parameters.period);
  const choose = (index) => go(`${here().path}${query({ ...parameters, period: index === usual ? "" : named(options[index]) })}`, { replace: true });
  return [found < 0 ? usual : found, choose];
}

export function Stat({ to, value, label, children }) {
  const body = html`<div class="value">${value}</div><div class="label">${children || label}</div>`;
  return to ? html`<${Link} to=${to} class="stat">${body}<//>` : html`<div class="stat">${body}</div>`;
}

// Names of tasks and queues can be long, and may hold anything.
export const Name = ({ text }) => html`<span class="cut" title=${text}>${text}</span>`;

export const Panel = ({ title, children, wide, more, plain }) => html`<section class="panel ${wide ? "wide" : ""} ${plain ? "plain" : ""}">
  ${title ? html`<div class="row"><h2>${title}</h2><span class="grow"></span>${more || ""}</div>` : ""}${children}</section>`;

export const jobsPath = (filters) => `/jobs${query({ q: Object.entries(filters).filter(([, v]) => v).map(([k, v]) => `${k}:${quoted(v)}`).join(" ") })}`;

export function JobLink({ id, task, queue }) {
  return html`<a href=${`${document.documentElement.dataset.root}/jobs/${id}`}>${id}</a>${task !== undefined ? html` <span class="cut" title=${task || queue}>${task || "message"}</span>` : ""}`;
}

export const Link = ({ to, children, ...rest }) => html`<a href=${document.documentElement.dataset.root + to} ...${rest}>${children}</a>`;

// columns: [title, row => cell, class]. rows may be empty: then `empty` is shown. error: why there are none yet.
export function Table({ columns, rows, error, empty, rowKey = (row) => row.id, selected, label }) {
  if (!rows) return error ? html`<p class="empty">This could not be loaded.</p>` : html`<p class="loading">Loading…</p>`;
  if (!rows.length) return html`<${Empty}>${empty || "Nothing here."}<//>`;
  return html`<div class="tablewrap" tabindex="0" role="region" aria-label=${label || "Table"}><table>
    <thead><tr>${columns.map(([title, , style]) => html`<th scope="col" class=${style || ""}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${rowKey(row)} class=${selected === index ? "selected" : ""}>${columns.map(([, cell, style]) => html`<td class=${style || ""}>${cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// --- a JSON tree that folds, as text nodes: nothing in it is ever HTML ---

const beginning = (text, most) => (text.length > most ? `${text.slice(0, most)}… (${number(text.length)} characters)` : text);

export function Tree({ value, name, depth = 0 }) {
  const label = name === undefined ? "" : html`<span class="k">${beginning(String(name), 200)}</span>: `;
  if (value === null || typeof value !== "object") {
    const kind = typeof value === "string" ? "s" : "n";
    return html`<div>${label}<span class=${kind}>${beginning(JSON.stringify(value), 4000)}</span></div>`;
  }
  const entries = Array.isArray(value) ? value.map((one, index) => [index, one]) : Object.entries(value);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return html`<div>${label}${open}${close}</div>`;
  return html`<${Fold} open=${depth < 2} label=${html`${label}${open}${entries.length}${close}`}>
    ${() => entries.slice(0, 500).map(([key, one]) => html`<${Tree} name=${key} value=${one} depth=${depth + 1} />`)}
    ${() => (entries.length > 500 ? html`<div class="muted">… ${number(entries.length - 500)} more</div>` : null)}<//>`;
}

function Fold({ open, label, children }) {
  const [isOpen, setOpen] = useState(open);
  return html`<details open=${isOpen} onToggle=${(event) => { event.stopPropagation(); setOpen(event.currentTarget.open); }}>
    <summary>${label}</summary>${isOpen ? children.map((one) => one()) : ""}</details>`;
}

export const CopyJson = ({ value }) => html`<${Copy} text=${JSON.stringify(value, null, 2)} />`;

export function Json({ value, label }) {
  return html`<div class="tree" tabindex="0" role="region" aria-label=${label}><${Tree} value=${value} /></div>`;
}

export function Copy({ text }) {
  const [done, setDone] = useState("");
  const copy = async () => {
    setDone(await write(text) ? "copied" : "select it to copy");
    setTimeout(() => setDone(""), 1500);
  };
  return html`<button class="link small" onClick=${copy} aria-live="polite">${done || "copy"}</button>`;
}

// Browsers have no clipboard API on a page that is neither of this machine nor over TLS: then they copy a selection.
async function write(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = Object.assign(document.createElement("textarea"), { value: text, className: "skip" });
    document.body.append(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    return copied;
  }
}

// --- small charts ---

export function Spark({ values, label, kind = "", top }) {
  const high = Math.max(1e-9, top || 0, ...values);
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(22 - (value / high) * 20).toFixed(1)}`);
  return html`<svg class="spark ${kind}" viewBox="0 0 100 24" width="104" height="24" role="img" aria-label=${label} preserveAspectRatio="none"><title>${label}</title>
    <polygon class="area" points="0,23 ${points.join(" ")} 100,23" /><polyline class="line" points=${points.join(" ")} /></svg>`;
}

export function Bar({ parts, label }) {
  const total = parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  return html`<div class="bar" role="img" aria-label=${label}>${parts.map(([style, value]) => html`<span class=${style} style=${{ width: `${(100 * value) / total}%` }}></span>`)}</div>`;
}

const HEIGHT = 180;

// Times of an axis and of the legend, in the language and the zone of the viewer.
const CLOCK = { hour: "2-digit", minute: "2-digit" };
const DATE = { day: "numeric", month: "short" };
const written = (options) => { const format = new Intl.DateTimeFormat(undefined, options); return (seconds) => format.format(seconds * 1000); };
const clock = written(CLOCK);
const date = written(DATE);
const moment = written({ ...DATE, ...CLOCK });

// A label has the date where the day is another than that of the label before.
export function timeLabels(ticks) {
  return ticks.map((tick, index) => {
    const midnight = new Date(tick * 1000).getHours() + new Date(tick * 1000).getMinutes() === 0;
    const isNew = index > 0 && date(tick) !== date(ticks[index - 1]);
    return midnight ? date(tick) : isNew ? `${clock(tick)}\n${date(tick)}` : clock(tick);
  });
}

// series: [{label, color, values}], times in seconds. Zoom by dragging, double click to reset.
// period: what is shown; a zoom ends when it changes, and stays when there is only newer data.
export function Chart({ times, series, format = number, label, period }) {
  const place = useRef(null);
  const zoom = useRef({ period, range: null });
  if (zoom.current.period !== period) zoom.current = { period, range: null };
  const zoomed = (plot, scale) => {
    const [at] = plot.data;
    if (scale !== "x" || !at?.length) return;
    const { min, max } = plot.scales.x;
    const range = min > at[0] || max < at[at.length - 1] ? { min, max } : null;
    zoom.current.range = range;
    plot.root.parentNode.title = range ? "Double-click to zoom out" : "Drag to zoom in";
  };
  const [uPlot, setPlot] = useState(null);
  useEffect(() => { import("./vendor/uplot.js").then((module) => setPlot(() => module.default)); loadStyle(); }, []);
  const key = series.map((one) => one.label).join();
  const [theme, setTheme] = useState(0); // the colours are read when the chart is made
  useEffect(() => {
    const changed = () => setTheme((n) => n + 1);
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", changed);
    window.addEventListener("themed", changed);
    return () => { system.removeEventListener("change", changed); window.removeEventListener("themed", changed); };
  }, []);
  const plot = useRef(null);
  useLayoutEffect(() => {
    if (!uPlot || !place.current) return undefined;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), font: "11px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: place.current.clientWidth || 300, height: HEIGHT,
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high || 0, 1e-6) * 1.1] } },
      cursor: { points: { size: 7 }, drag: { x: true, y: false } }, hooks: { setScale: [zoomed] },
      axes: [{ ...axis, grid: { show: false }, size: 30, space: 64, values: (_, ticks) => timeLabels(ticks) }, { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => format(tick)) }],
      series: [{ label: "at", value: (_, at) => (at ? moment(at) : "") }, ...series.map((one) => ({
        label: one.label, stroke: colour(one.color), width: 1.6, fill: one.fill ? `${colour(one.color)}22` : undefined,
        points: { show: one.values.filter((value) => value !== null && value !== undefined).length < 40, size: 5 }, spanGaps: true, value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
      }))],
    };
    plot.current = new uPlot(options, null, place.current); // the data follows, in the effect below
    const resize = new ResizeObserver(() => place.current && plot.current?.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    resize.observe(place.current);
    return () => { resize.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, [uPlot, key, times[0], times.length, theme]);
  useLayoutEffect(() => {
    if (!plot.current) return;
    const { range } = zoom.current;
    plot.current.setData([times, ...series.map((one) => one.values)], !range);
    if (range) plot.current.setScale("x", range);
  });
  return html`<div class="chart" ref=${place} role="img" aria-label=${label}></div>`;
}

function loadStyle() {
  const href = `${document.documentElement.dataset.root}/static/vendor/uplot.css`;
  if (document.querySelector(`link[href="${href}"]`)) return;
  const link = document.createElement("link");
  Object.assign(link, { rel: "stylesheet", href });
  document.head.append(link);
}

// --- actions ---

export function toast(text) {
  document.querySelector(".toast")?.remove();
  const box = document.createElement("div");
  box.className = "toast";
  box.setAttribute("role", "status");
  box.textContent = text;
  document.body.append(box);
  setTimeout(() => box.remove(), 4000);
}

// A button that asks for a reason, runs `run(fields)` and tells the result.
// fields: [{name, label, value, area, number, required, placeholder}].
export function Action({ label, title, danger, primary, fields = [], run, done, explain, disabled, said, prepare }) {
  const dialog = useRef(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [found, setFound] = useState(null); // what `prepare` told, such as a dry run
  const open = () => {
    setError(null);
    setFound(prepare ? "Counting…" : null);
    dialog.current.showModal();
    prepare?.().then(setFound).catch((problem) => { setFound(null); setError(problem); });
  };
  const submit = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    setBusy(true);
    try {
      const result = await run(given);
      dialog.current.close();
      setError(null);
      toast(result?.ok === false ? "Nothing changed: its state did not allow it." : said ? said(result) : `${label}: done`);
      done?.(result);
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  return html`<button class=${danger ? "danger" : primary ? "primary" : ""} disabled=${disabled} onClick=${open}>${label}</button>
    <dialog ref=${dialog} aria-label=${title || label}><form onSubmit=${submit}>
      <h2>${title || label}</h2>${explain ? html`<p class="muted">${explain}</p>` : ""}${found ? html`<p role="status"><b>${found}</b></p>` : ""}
      ${fields.map((field) => html`<label>${field.label}<br />${field.area ? html`<textarea name=${field.name} required=${field.required} spellcheck="false">${field.value || ""}</textarea>` : html`<input name=${field.name} type=${field.number ? "number" : "text"} min=${field.number?.min} step=${field.number?.step} defaultValue=${field.value || ""} required=${field.required} placeholder=${field.placeholder || ""} />`}</label>`)}
      <label>Reason, for the event log<br /><input name="reason" maxlength="400" /></label>
      <${Failed} error=${error} />
      <div class="row"><button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy}>${label}</button>
      <button type="button" onClick=${() => dialog.current.close()}>Close</button></div>
    </form></dialog>`;
}

export function Pager({ page, parameters, path }) {
  if (!page) return null;
  const to = (cursor) => go(`${path}${query({ ...parameters, cursor })}`);
  return html`<div class="row" style=${{ marginTop: "10px" }}>
    <button disabled=${!page.previous} onClick=${() => to(page.previous)}>← Newer</button>
    <button disabled=${!page.next} onClick=${() => to(page.next)}>Older →</button>
    ${page.scanned ? html`<span class="muted small">The search stopped after ${number(page.scanned)} jobs. “Older” goes on.</span>` : ""}</div>`;
}
