// Jobs: one search field with qualifiers, pages by cursor, and actions on single jobs.
import { ROOT, go, html, query, session, useData, useEffect, useRef, useState, useTick } from "../lib.js";
import { Badge, Failed, Head, Pager, Table, Time } from "../ui.js";

const QUALIFIERS = { status: "status", queue: "queue", task: "task", tag: "tag", key: "key", error: "error_code", batch: "batch" };
const STATES = ["ready", "running", "scheduled", "blocked", "succeeded", "failed", "cancelled"];
const UNITS = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
const COLUMNS = [
  ["id", "Job", (row) => html`<a href="${ROOT}/jobs/${row.id}">${row.id}</a>`], ["task", "Task", (row) => html`<span class="cut" title=${row.task || ""}>${row.task || "message"}</span>`],
  ["queue", "Queue", (row) => html`<span class="cut" title=${row.queue}>${row.queue}</span>`], ["status", "State", (row) => html`<${Badge} state=${row.status} />`],
  ["attempt", "Attempt", (row) => `${row.attempt}/${row.max_attempts}`], ["priority", "Priority", (row) => row.priority],
  ["created_at", "Created", (row) => html`<${Time} at=${row.created_at} />`], ["run_at", "Due", (row) => html`<${Time} at=${row.run_at} />`],
  ["finished_at", "Finished", (row) => html`<${Time} at=${row.finished_at} />`], ["error_code", "Error", (row) => html`<span class="cut" title=${row.error_detail || ""}>${row.error_code || ""}</span>`],
  ["key", "Key", (row) => html`<span class="cut">${row.key || ""}</span>`], ["tags", "Tags", (row) => row.tags.join(", ")], ["progress", "Progress", (row) => (row.progress === null ? "" : `${Math.round(row.progress * 100)} %`)],
];
const USUAL = ["id", "task", "queue", "status", "attempt", "created_at", "error_code"];

// `status:failed task:"send mail" since:1h` as filters of the API; words without a qualifier are told.
export function parse(text) {
  const filters = {};
  const wrong = [];
  for (const [, name, quoted, plain] of text.matchAll(/(\w+):(?:"([^"]*)"|(\S*))|\S+/g)) {
    const value = quoted ?? plain;
    if (name === undefined) wrong.push("a search is made of qualifiers, such as status:failed");
    else if (name === "since") {
      const [, amount, unit] = value.match(/^(\d+)([smhdw])$/) || [];
      if (amount) filters.created_after = new Date(Date.now() - amount * UNITS[unit] * 1000).toISOString();
      else wrong.push(`since: must be such as 30m, 1h or 2d`);
    } else if (name === "id") filters.id = value;
    else if (QUALIFIERS[name]) filters[QUALIFIERS[name]] = filters[QUALIFIERS[name]] ? `${filters[QUALIFIERS[name]]},${value}` : value;
    else wrong.push(`${name}: is no qualifier; there are ${[...Object.keys(QUALIFIERS), "id", "since"].join(", ")}`);
  }
  return { filters, wrong };
}

const chipsOf = (text) => text.match(/\w+:"[^"]*"|\S+/g) || [];

export default function Jobs({ parameters }) {
  const text = parameters.q || "";
  const [draft, setDraft] = useState(text);
  const [columns, setColumns] = useState(() => JSON.parse(localStorage.getItem("columns") || "null") || USUAL);
  const [selected, setSelected] = useState(-1);
  const field = useRef(null);
  const { filters, wrong } = parse(text);
  const searched = useRef(text);
  useEffect(() => { if (searched.current !== text) { searched.current = text; setDraft(text); } }, [text]);
  useEffect(() => { if (session.searching) field.current.focus(); session.searching = false; }, []);
  useEffect(() => { if (filters.id) go(`/jobs/${Number(filters.id) || 0}`, { replace: true }); }, [filters.id]);
  const tick = useTick(2);
  const { created_after, ...plain } = filters;
  const minute = created_after ? created_after.slice(0, 16) : "";
  const path = wrong.length || filters.id ? null : `/jobs${query({ ...plain, created_after: minute && `${minute}:00Z`, limit: 50, cursor: parameters.cursor })}`;
  const { data, error } = useData(path, parameters.cursor ? 0 : tick);
  const queues = useData("/queues");
  const search = (value) => go(`/jobs${query({ q: value.trim() })}`);
  const rows = data?.items || [];
  useEffect(() => {
    const pressed = (event) => {
      if (event.target.closest("input, textarea, select, dialog[open]") || event.ctrlKey || event.metaKey) return;
      if (event.key === "j") setSelected((n) => Math.min(rows.length - 1, n + 1));
      if (event.key === "k") setSelected((n) => Math.max(0, n - 1));
      if (event.key === "Enter" && rows[selected] && !event.target.closest("a, button")) go(`/jobs/${rows[selected].id}`);
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [rows, selected]);
  const choose = (name) => {
    const next = columns.includes(name) ? columns.filter((one) => one !== name) : [...columns, name];
    setColumns(next);
    localStorage.setItem("columns", JSON.stringify(next));
  };
  return html`<${Head} title="Jobs" />
    <form role="search" onSubmit=${(event) => { event.preventDefault(); search(draft); }}>
      <input class="search" ref=${field} value=${draft} onInput=${(event) => setDraft(event.target.value)} list="suggestions" aria-label="Search jobs" placeholder="status:failed queue:mail task:send_mail tag:vip error:TIMEOUT key:… id:7 since:1h" />
      <datalist id="suggestions">${STATES.map((state) => html`<option value="status:${state}" />`)}${(queues.data?.items || []).slice(0, 50).map((one) => html`<option value="queue:${one.name}" />`)}<option value="since:1h" /></datalist>
    </form>
    <div class="row" style=${{ margin: "10px 0" }}>
      ${chipsOf(text).map((chip) => html`<span class="chip">${chip}<button aria-label="Remove ${chip}" onClick=${() => search(chipsOf(text).filter((one) => one !== chip).join(" "))}>×</button></span>`)}
      ${text ? "" : STATES.map((state) => html`<button class="link small" onClick=${() => search(`status:${state}`)}>${state}</button>`)}
      <span class="grow"></span>
      <details class="small"><summary>Columns</summary><div class="row">${COLUMNS.map(([name, title]) => html`<label><input type="checkbox" checked=${columns.includes(name)} onChange=${() => choose(name)} /> ${title}</label>`)}</div></details>
    </div>
    ${wrong.map((one) => html`<p class="note">${one}</p>`)}<${Failed} error=${error} />
    <section class="panel"><${Table} label="Jobs" selected=${selected} rows=${data ? rows : path ? null : []} empty=${html`No job matches. ${text ? html`<button class="link" onClick=${() => search("")}>Show all</button>` : html`Enqueue one: <code>my_task.enqueue(…)</code>`}`} columns=${COLUMNS.filter(([name]) => columns.includes(name)).map(([, title, cell]) => [title, cell])} /></section>
    <${Pager} page=${data} parameters=${{ q: text }} path="/jobs" />`;
}
