// Jobs: one search field with qualifiers, pages by cursor, and actions on the chosen jobs or on all that match.
import { QUALIFIED, ROOT, exactly, go, html, may, post, query, quoted, session, unquoted, useData, useEffect, useLayoutEffect, useRef, useState, useTick } from "../lib.js";
import { Badge, Failed, Head, Pager, Table, Time, counted, number } from "../ui.js";
import { Operations } from "./operations.js";

const QUALIFIERS = { status: "status", queue: "queue", task: "task", tag: "tag", key: "key", error: "error_code", fingerprint: "fingerprint", batch: "batch" };
const EXAMPLES = { status: "failed", queue: "mail", task: "send_*", tag: "vip", error: "TIMEOUT*", fingerprint: "9f2c…", key: "order-7", id: "7", since: "1h", batch: "3", "args.to": "ada@*" };
const STATES = ["ready", "running", "scheduled", "blocked", "succeeded", "failed", "cancelled"];
const SINCE = ["15m", "1h", "24h", "7d"];
const UNITS = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
const MOST_SUGGESTED = 12;
const COLUMNS = [
  ["id", "Job", (row) => html`<a href="${ROOT}/jobs/${row.id}">${row.id}</a>`], ["task", "Task", (row) => html`<span class="cut" title=${row.task || ""}>${row.task || "message"}</span>`],
  ["queue", "Queue", (row) => html`<span class="cut" title=${row.queue}>${row.queue}</span>`], ["status", "State", (row) => html`<${Badge} state=${row.status} />`],
  ["attempt", "Attempt", (row) => `${row.attempt}/${row.max_attempts}`], ["priority", "Priority", (row) => row.priority],
  ["created_at", "Created", (row) => html`<${Time} at=${row.created_at} />`], ["run_at", "Due", (row) => html`<${Time} at=${row.run_at} />`],
  ["finished_at", "Finished", (row) => html`<${Time} at=${row.finished_at} />`], ["error_code", "Error", (row) => html`<span class="cut" title=${row.error_detail || ""}>${row.error_code || ""}</span>`],
  ["key", "Key", (row) => html`<span class="cut">${row.key || ""}</span>`], ["tags", "Tags", (row) => row.tags.join(", ")], ["progress", "Progress", (row) => (row.progress === null ? "" : `${Math.round(row.progress * 100)} %`)],
];
const USUAL = ["id", "task", "queue", "status", "attempt", "created_at", "error_code"];

// `status:failed task:"send mail" args.to:ada* since:1h` as filters of the API; words without a qualifier are told. A
// comma separates several values, and is an ordinary character between quotation marks.
export function parse(text) {
  const filters = {};
  const args = {};
  const wrong = [];
  for (const [word, name, inMarks, plain] of text.matchAll(QUALIFIED)) {
    const value = inMarks === undefined ? plain : unquoted(inMarks);
    const field = Object.hasOwn(QUALIFIERS, name) ? QUALIFIERS[name] : null;
    if (name === undefined) wrong.push(`${word} is no qualifier: a search is made of status:failed, task:send_*, args.to:ada@* and the like`);
    else if (name.startsWith("args.")) args[name.slice(5)] = value;
    else if (name === "since") {
      const [, amount, unit] = value.match(/^(\d+)([smhdw])$/) || [];
      if (amount) filters.created_after = new Date(Date.now() - amount * UNITS[unit] * 1000).toISOString();
      else wrong.push("since: must be such as 30m, 1h or 2d");
    } else if (name === "id") {
      if (/^\d{1,18}$/.test(value)) filters.id = value;
      else wrong.push("id: must be the number of a job, such as id:7");
    } else if (field) filters[field] = [...(filters[field] ? [filters[field]] : []), inMarks === undefined ? value : exactly(value)].join();
    else wrong.push(`${name}: is no qualifier; there are ${[...Object.keys(QUALIFIERS), "id", "since", "args.NAME"].join(", ")}`);
  }
  if (Object.keys(args).length) filters.args = JSON.stringify(args);
  return { filters, wrong };
}

const chipsOf = (text) => [...text.matchAll(QUALIFIED)].map(([all]) => all);

// What may follow what was typed: qualifiers first, then the values of one.
function suggest(text, known) {
  const word = text.match(/\S*$/)[0];
  const [name, value] = word.includes(":") ? [word.slice(0, word.indexOf(":")), word.slice(word.indexOf(":") + 1)] : [word, null];
  const values = { status: STATES, since: SINCE, queue: known.queues, task: known.tasks, error: known.errors, tag: known.tags, key: known.keys };
  const all = value === null ? Object.keys(EXAMPLES).filter((one) => one.startsWith(name)).map((one) => [`${one}:`, EXAMPLES[one]])
    : (Object.hasOwn(values, name) ? values[name] : []).filter((one) => one.startsWith(value) && one !== value).map((one) => [`${name}:${quoted(one)} `, ""]);
  return all.slice(0, MOST_SUGGESTED).map(([add, example]) => ({ text: text.slice(0, text.length - word.length) + add, label: add.trim(), example }));
}

// rows: what is shown. Tags and keys are suggested from them: there can be millions of others.
function Search({ text, search, field, rows }) {
  const [draft, setDraft] = useState(text);
  const [open, setOpen] = useState(false);
  const [active, setActive] = useState(-1);
  const [wanted, setWanted] = useState(false);
  const counts = useData(wanted ? "/counts" : null);
  const failures = useData(wanted ? "/failures?limit=100" : null);
  const before = useRef(text);
  useLayoutEffect(() => { if (before.current !== text) { before.current = text; setDraft(text); } }, [text]);
  const names = (name) => [...new Set((counts.data?.items || []).map((one) => one[name]).filter(Boolean))];
  const known = { queues: names("queue"), tasks: names("task"), errors: [...new Set((failures.data?.items || []).map((one) => one.error_code))], tags: [...new Set(rows.flatMap((row) => row.tags))], keys: rows.map((row) => row.key).filter(Boolean) };
  const found = open ? suggest(draft, known) : [];
  const take = (one) => { setDraft(one.text); setActive(-1); field.current.focus(); };
  const pressed = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setOpen(true);
      setActive((now) => (found.length ? (now + (event.key === "ArrowDown" ? 1 : found.length + (now < 0 ? 0 : -1))) % found.length : -1));
    } else if (event.key === "Escape") { setOpen(false); setActive(-1); }
    else if (event.key === "Enter" && found[active]) { event.preventDefault(); take(found[active]); }
  };
  const submit = (event) => { event.preventDefault(); setOpen(false); search(draft); };
  return html`<form role="search" class="searchform" onSubmit=${submit}>
    <input class="search" ref=${field} value=${draft} role="combobox" aria-expanded=${found.length > 0} aria-controls="suggestions" aria-autocomplete="list" aria-activedescendant=${found[active] ? `suggestion-${active}` : undefined}
      onInput=${(event) => { setDraft(event.target.value); setOpen(true); setActive(-1); }} onFocus=${() => { setWanted(true); setOpen(true); }} onBlur=${() => { setOpen(false); setActive(-1); }} onKeyDown=${pressed}
      autocomplete="off" spellcheck=${false} aria-label="Search jobs" placeholder="status:failed queue:mail task:send_* tag:vip error:TIMEOUT* key:… args.to:ada@* id:7 since:1h" />
    <ul id="suggestions" role="listbox" aria-label="Suggestions" class="suggestions" hidden=${!found.length}>${found.map((one, index) => html`<li key=${one.label} id=${`suggestion-${index}`} role="option" aria-selected=${index === active}
      onMouseDown=${(event) => { event.preventDefault(); take(one); }}>${one.label} <span class="muted">${one.example}</span></li>`)}</ul>
  </form>`;
}

export default function Jobs({ parameters }) {
  const text = parameters.q || "";
  const [columns, setColumns] = useState(() => JSON.parse(localStorage.getItem("columns") || "null") || USUAL);
  const [selected, setSelected] = useState(-1);
  const [chosen, setChosen] = useState(new Set());
  const [started, setStarted] = useState([]);
  const field = useRef(null);
  const { filters, wrong } = parse(text);
  // What follows a new search is done before the next key, not after the next drawing, which a person can be ahead of.
  useLayoutEffect(() => { if (session.searching) field.current.focus(); session.searching = false; }, []);
  useEffect(() => { if (filters.id) go(`/jobs/${Number(filters.id)}`, { replace: true }); }, [filters.id]);
  useLayoutEffect(() => { setChosen(new Set()); setSelected(-1); }, [text, parameters.cursor]);
  const tick = useTick(2);
  const { created_after, ...plain } = filters;
  const wanted = created_after ? { ...plain, created_after: `${created_after.slice(0, 16)}:00Z` } : plain;
  const path = wrong.length || filters.id ? null : `/jobs${query({ ...wanted, limit: 50, cursor: parameters.cursor })}`;
  const { data, error, reload } = useData(path, parameters.cursor ? 0 : tick);
  const search = (value) => go(`/jobs${query({ q: value.trim() })}`);
  const rows = path && data ? data.items : [];
  const shown = useRef(null);
  shown.current = { rows, selected };
  useLayoutEffect(() => {
    const pressed = (event) => {
      if (event.target.closest("input, textarea, select, dialog[open]") || event.ctrlKey || event.metaKey) return;
      const { rows, selected } = shown.current;
      if (event.key === "j") setSelected((n) => Math.min(rows.length - 1, n + 1));
      if (event.key === "k") setSelected((n) => Math.max(0, n - 1));
      if (event.key === "x" && rows[selected]) choose(rows[selected].id);
      if (event.key === "Enter" && rows[selected] && !event.target.closest("a, button")) go(`/jobs/${rows[selected].id}`);
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
  const choose = (id) => setChosen((now) => { const next = new Set(now); if (!next.delete(id)) next.add(id); return next; });
  const show = (name) => {
    const next = columns.includes(name) ? columns.filter((one) => one !== name) : [...columns, name];
    setColumns(next);
    localStorage.setItem("columns", JSON.stringify(next));
  };
  const all = rows.length > 0 && rows.every((row) => chosen.has(row.id));
  const checks = [html`<input type="checkbox" aria-label="Choose all on this page" checked=${all} onChange=${() => setChosen(new Set(all ? [] : rows.map((row) => row.id)))} />`,
    (row) => html`<input type="checkbox" aria-label="Choose job ${row.id}" checked=${chosen.has(row.id)} onChange=${() => choose(row.id)} />`];
  const cells = COLUMNS.filter(([name]) => columns.includes(name)).map(([, title, cell]) => [title, cell]);
  const selection = chosen.size ? { ids: [...chosen] } : text && path ? { filters: wanted } : null;
  const what = chosen.size ? `${number(chosen.size)} chosen` : "all that match";
  const done = ({ id }) => { setChosen(new Set()); setStarted((now) => [...now, id]); reload(); };
  return html`<${Head} title="Jobs" /><${Search} text=${text} search=${search} field=${field} rows=${rows} />
    <div class="row chips">
      ${chipsOf(text).map((chip, index) => html`<span class="chip" key=${`${chip} ${index}`}>${chip}<button aria-label="Remove ${chip}" onClick=${() => search(chipsOf(text).filter((one) => one !== chip).join(" "))}>×</button></span>`)}
      ${text ? "" : STATES.map((state) => html`<button class="link small" onClick=${() => search(`status:${state}`)}>${state}</button>`)}
      <span class="grow"></span>
      <details class="small"><summary>Columns</summary><div class="row">${COLUMNS.map(([name, title]) => html`<label><input type="checkbox" checked=${columns.includes(name)} onChange=${() => show(name)} /> ${title}</label>`)}</div></details>
    </div>
    ${wrong.map((one) => html`<p class="note">${one}</p>`)}<${Failed} error=${error} />
    ${may("operator") ? html`<${Bulk} selection=${selection} what=${what} done=${done} />` : ""}<${Operations} started=${started} />
    <section class="panel"><${Table} label="Jobs" selected=${selected} rows=${data || !path ? rows : null} error=${error} empty=${html`No job matches. ${text ? html`<button class="link" onClick=${() => search("")}>Show all</button>` : html`Enqueue one: <code>my_task.enqueue(…)</code>`}`} columns=${may("operator") ? [checks, ...cells] : cells} /></section>
    <${Pager} page=${path ? data : null} parameters=${{ q: text }} path="/jobs" />`;
}

const ACTIONS = [["retry", "Retry", "retried"], ["cancel", "Cancel", "cancelled"], ["run_now", "Run now", "made ready"], ["delete", "Delete", "deleted"]];

// Counts first, and starts an operation only then.
function Bulk({ selection, what, done }) {
  const dialog = useRef(null);
  const [action, setAction] = useState(ACTIONS[0]);
  const [count, setCount] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [name, label, past] = action;
  const ask = (one) => {
    setAction(one);
    setCount(null);
    setError(null);
    dialog.current.showModal();
    post("/operations/count", { action: one[0], ...selection }).then(setCount, setError);
  };
  const start = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const operation = await post("/operations", { action: name, ...selection, reason: new FormData(event.target).get("reason") });
      dialog.current.close();
      done(operation);
    } catch (problem) { setError(problem); }
    setBusy(false);
  };
  const found = count && `${count.is_complete ? "" : "at least "}${counted(count.count, "job")}`;
  return html`<div class="row bulk" role="group" aria-label="Actions on many jobs"><span class="muted small">${selection ? what : "Choose rows, or search, to act on many jobs."}</span>
    ${selection ? ACTIONS.filter(([one]) => one !== "delete" || may("admin")).map((one) => html`<button key=${one[0]} class=${one[0] === "delete" ? "danger" : ""} onClick=${() => ask(one)}>${one[1]} …</button>`) : ""}</div>
    <dialog ref=${dialog} aria-label="${label} many jobs"><form onSubmit=${start}><h2>${label}: ${what}</h2>
      <p role="status">${found ? `${found} would be ${past}.` : error ? "" : "Counting…"}</p>
      <p class="muted small">It runs in the background, in short steps, and can be stopped. Jobs that come later are left alone.</p>
      <label>Reason, for the event log<br /><input name="reason" maxlength="400" style=${{ width: "100%" }} /></label><${Failed} error=${error} />
      <div class="row"><button type="submit" class=${name === "delete" ? "danger" : "primary"} disabled=${busy || !count?.count}>${label} ${found || ""}</button>
      <button type="button" onClick=${() => dialog.current.close()}>Close</button></div></form></dialog>`;
}
