// One job: its state in words, what can be done, its timeline, relations, arguments and result.
import { call, go, html, may, post, query, useData, useState, useTick } from "../lib.js";
import { Graph } from "../graph.js";
import { Action, Badge, Copy, CopyJson, Failed, Head, Json, Link, Panel, Time, counted, duration, exact, jobsPath, number, seconds } from "../ui.js";

const UNFINISHED = ["blocked", "scheduled", "ready", "running"];
const TONES = { succeeded: "ok", completed: "ok", failed: "bad", lost: "bad", recovered: "bad", cancelled: "warn", retry_scheduled: "warn", running: "part", claimed: "part" };

export default function Job({ id }) {
  const tick = useTick(1);
  const job = useData(`/jobs/${id}`, tick);
  const explain = useData(`/jobs/${id}/explain`, tick);
  const history = useData(`/jobs/${id}/history`, tick);
  const graph = useData(`/jobs/${id}/graph`, tick);
  const one = job.data;
  if (!one) return html`<${Head} title="Job ${id}" /><${Failed} error=${job.error} />${job.error ? html`<p><${Link} to="/jobs">All jobs<//></p>` : html`<p class="loading">Loading…</p>`}`;
  const again = () => { for (const part of [job, explain, history, graph]) part.reload(); };
  const open = UNFINISHED.includes(one.status);
  return html`<${Head} title="Job ${id}" lead=${html`<${Badge} state=${one.status} />`}><${Actions} job=${one} open=${open} again=${again} /><//>
    <${Failed} error=${job.error} />
    ${explain.data ? html`<div class="note ${one.status === "failed" ? "error" : ""}"><b>${linked(explain.data.reason, id)}</b>${explain.data.advice ? html`<br /><span class="muted">${linked(explain.data.advice, id)}</span>` : ""}</div>` : ""}
    ${one.progress !== null ? html`<div class="note"><div class="row"><b>${Math.round(one.progress * 100)} %</b><span class="muted">${one.progress_text || ""}</span></div><progress value=${one.progress} max="1" aria-label="Progress"></progress></div>` : ""}
    <div class="grid">
      <${Facts} job=${one} graph=${graph.data} />
      <div class="stack">
        <${Panel} title=${one.is_external ? "Payload" : "Arguments"} more=${one.hidden || one.unreadable ? "" : html`<${CopyJson} value=${one.args} />`}>${one.hidden ? html`<p class="muted">Hidden from viewers.</p>` : one.unreadable ? html`<p class="bad">${one.unreadable}</p>` : html`<${Json} value=${one.args} label=${one.is_external ? "Payload" : "Arguments"} />`}<//>
        ${one.result !== null ? html`<${Panel} title="Result" more=${html`<${CopyJson} value=${one.result} />`}><${Json} value=${one.result} label="Result" /><//>` : ""}
      </div>
      ${one.error_code ? html`<${LastError} job=${one} history=${history.data?.items || []} />` : ""}
      ${graph.data && graph.data.nodes.length > 1 ? html`<${Panel} title="Chain and dependencies" wide more=${html`<span class="muted small">${left(graph.data)}</span>`}><${Graph} graph=${graph.data} here=${id} /><//>` : ""}
      <${Panel} title="Timeline" wide><${Failed} error=${history.error} />${history.data ? html`<${Timeline} entries=${history.data.items} />` : html`<p class="loading">Loading…</p>`}<//>
    </div>`;
}

// Text with links to the jobs that it names.
const linked = (text, here) => text.split(/\b(job \d{1,18})\b/i).map((part, index) => (index % 2 && Number(part.slice(4)) !== here ? html`<${Link} to="/jobs/${part.slice(4)}">${part}<//>` : part));

function left(graph) {
  const parts = [];
  if (graph.chain_length > 1) parts.push(`a chain of ${number(graph.chain_length)}`);
  if (graph.more_blockers) parts.push(counted(graph.more_blockers, "more blocker"));
  if (graph.more_waiting) parts.push(`${number(graph.more_waiting)} more that ${graph.more_waiting === 1 ? "waits" : "wait"}`);
  return parts.join(", ");
}

function Actions({ job, open, again }) {
  const act = (verb) => (given) => post(`/jobs/${job.id}/${verb}`, given);
  if (!may("operator")) return null;
  return html`${["failed", "cancelled"].includes(job.status) ? html`<${Action} label="Retry" title="Run job ${job.id} again" primary run=${act("retry")} done=${again} />` : ""}
    ${job.status === "scheduled" ? html`<${Action} label="Run now" primary run=${act("run-now")} done=${again} />` : ""}
    ${open && job.task ? html`<${Action} label="Complete" primary=${job.is_external} title="Complete job ${job.id}" explain="The job succeeds with this result. What a running attempt does is not recorded." run=${complete(job.id)} done=${again} fields=${[{ name: "result", label: "Result, as JSON", area: true, value: "null" }]} />
      <${Action} label="Fail" title="Let job ${job.id} fail" run=${act("fail")} done=${again} fields=${[{ name: "code", label: "Error code", value: "REJECTED:BY_HAND", required: true }, { name: "detail", label: "Detail" }]} />` : ""}
    ${job.task && !job.hidden && !job.is_external ? html`<${Action} label="Copy" title="Edit and enqueue a copy" explain="The arguments are checked against the task’s signature, if this server has the app. The copy has the same tags and timeout, and no key." fields=${copyFields(job)} run=${copy(job)} done=${(made) => go(`/jobs/${made.id}`)} said=${(made) => `Enqueued job ${made.id}`} />` : ""}
    ${open ? html`<${Action} label="Cancel" danger title="Cancel job ${job.id}" run=${act("cancel")} done=${again} />` : ""}
    ${may("admin") && !open ? html`<${Action} label="Delete" danger title="Delete job ${job.id}" explain="Its attempts and events are deleted, too." run=${(given) => call(`/jobs/${job.id}`, { method: "DELETE", body: given })} done=${() => go("/jobs")} />` : ""}`;
}

function Facts({ job, graph }) {
  const took = seconds(job.started_at, job.finished_at);
  return html`<${Panel} title="Facts"><dl class="facts">
    <dt>${job.is_external ? "External job" : "Task"}</dt><dd>${job.task ? html`<${Link} to=${jobsPath({ task: job.task })}>${job.task}<//>` : "message"}</dd><dt>Queue</dt><dd><${Link} to=${jobsPath({ queue: job.queue })}>${job.queue}<//></dd>
    <dt>Attempt</dt><dd>${job.attempt} of ${job.max_attempts}</dd><dt>Priority</dt><dd>${job.priority}</dd>
    <dt>Created</dt><dd><${Time} at=${job.created_at} /></dd><dt>Due</dt><dd><${Time} at=${job.run_at} /></dd>
    ${job.started_at ? html`<dt>Started</dt><dd><${Time} at=${job.started_at} /></dd>` : ""}${job.finished_at ? html`<dt>Finished</dt><dd><${Time} at=${job.finished_at} /></dd>` : ""}
    ${took !== null ? html`<dt>Took</dt><dd>${duration(took)}</dd>` : ""}${job.timeout ? html`<dt>Timeout</dt><dd>${duration(job.timeout)}</dd>` : ""}
    ${job.timeout_at ? html`<dt>Deadline</dt><dd><${Time} at=${job.timeout_at} /></dd>` : ""}${job.expires_at ? html`<dt>Expires</dt><dd><${Time} at=${job.expires_at} /></dd>` : ""}
    ${job.key ? html`<dt>Key</dt><dd>${job.key}</dd>` : ""}${job.tags.length ? html`<dt>Tags</dt><dd>${job.tags.map((tag) => html`<${Link} to=${jobsPath({ tag })} class="chip plain">${tag}<//> `)}</dd>` : ""}
    ${job.worker ? html`<dt>Worker</dt><dd><${Link} to="/workers"><code>${job.worker}</code><//></dd>` : ""}
    ${job.chain_id !== job.id || job.chain_index ? html`<dt>Chain</dt><dd>step ${job.chain_index + 1} of chain <${Link} to="/jobs/${job.chain_id}">${job.chain_id}<//></dd>` : ""}
    ${graph?.batch_id ? html`<dt>Batch</dt><dd>${graph.is_callback ? "callback of " : ""}<${Link} to=${jobsPath({ batch: String(graph.batch_id) })}>batch ${graph.batch_id}<//></dd>` : ""}
    <dt>Neighbours</dt><dd>${job.id > 1 ? html`<${Link} to="/jobs/${job.id - 1}">← ${job.id - 1}<//> · ` : ""}<${Link} to="/jobs/${job.id + 1}">${job.id + 1} →<//></dd>
  </dl><//>`;
}

function LastError({ job, history }) {
  const attempt = [...history].reverse().find((entry) => entry.kind === "attempt" && entry.detail.fingerprint);
  const fingerprint = attempt?.detail.fingerprint;
  const same = useData(`/failures${query({ limit: 500, task: job.task || "", queue: job.queue })}`);
  const found = same.data?.items.find((one) => (fingerprint ? one.fingerprint === fingerprint : one.error_code === job.error_code));
  const traceback = useData(fingerprint ? `/tracebacks/${encodeURIComponent(fingerprint)}` : null);
  const text = traceback.data?.traceback;
  return html`<${Panel} title="Last error" wide more=${text ? html`<${Copy} text=${text} />` : ""}>
    <p><${Link} to=${jobsPath(fingerprint ? { fingerprint } : { status: "failed", error: job.error_code })}><b>${job.error_code}</b><//> ${job.error_detail || ""}</p>
    ${found ? html`<p class="muted small">The same error occurred <b>${counted(found.count, "time")}</b>: first <${Time} at=${found.first_seen} />, last <${Time} at=${found.last_seen} />. <${Link} to="/errors">All errors<//></p>` : ""}
    ${text ? html`<pre tabindex="0" role="region" aria-label="Traceback">${text}</pre>` : ""}<//>`;
}

function Timeline({ entries }) {
  const [all, setAll] = useState(false);
  // The attempt tells what its claim and its end would tell again.
  const actors = new Map(entries.filter((entry) => entry.kind === "attempt").map((entry) => [entry.attempt, entry.actor]));
  const repeats = (entry) => entry.kind === "event" && actors.get(entry.attempt) === entry.actor && (["claimed", "succeeded"].includes(entry.name) || entry.detail.from === "running");
  const shown = all ? entries : entries.filter((entry) => !repeats(entry));
  let before = null;
  return html`<ol class="timeline">${shown.map((entry) => {
    const { started_at: started, finished_at: ended, fingerprint, error_code: code, error_detail: detail, ...rest } = entry.detail;
    const waited = before ? seconds(before, entry.at) : null;
    before = ended || entry.at;
    const attempt = entry.kind === "attempt";
    return html`<li class=${attempt ? "attempt" : ""}><span class="at muted small"><${Time} at=${entry.at} />${waited ? html`<div class="gap">after ${duration(waited)}</div>` : ""}</span><span class="dot ${TONES[entry.name] || ""}"></span>
      <div><b>${attempt ? `Attempt ${entry.attempt}: ${entry.name.replaceAll("_", " ")}` : entry.name.replaceAll("_", " ")}</b> ${entry.actor ? html`<span class="muted small">by ${entry.actor}</span>` : ""}
        ${code ? html`<div><span class="bad">${code}</span> <span class="muted">${detail || ""}</span></div>` : ""}${details(rest)}</div>
      <span class="took">${attempt ? (ended ? `ran ${duration(seconds(started || entry.at, ended))}` : "running") : ""}</span></li>`;
  })}</ol>${shown.length < entries.length || all ? html`<button class="link small" onClick=${() => setAll(!all)}>${all ? "Show less" : "Show all events"}</button>` : ""}`;
}

function details(detail) {
  const shown = Object.entries(detail || {}).filter(([, value]) => value !== null && value !== "");
  return shown.length ? html`<div class="muted small">${shown.map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "string" && /^\d{4}-\d\d-\d\dT/.test(value) ? exact(value) : typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ")}</div>` : "";
}

const HIDDEN = "•••"; // what the server shows in place of a hidden value
const visible = (text) => { if (text.includes(HIDDEN)) throw new Error(`Values are hidden from you: write them in place of ${HIDDEN}`); return text; };
const parsed = (text, what) => {
  try { return JSON.parse(text); } catch (error) { throw new Error(`${what} must be JSON: ${error.message}`); }
};
const whole = (text) => (text === "" ? undefined : Number(text));
const complete = (id) => async ({ result, reason }) => post(`/jobs/${id}/complete`, { result: parsed(result, "The result"), reason });
const copyFields = (job) => [
  { name: "args", label: "Arguments, as JSON", area: true, value: JSON.stringify(job.args, null, 2) },
  { name: "queue", label: "Queue", value: job.queue, required: true }, { name: "delay", label: "Delay in seconds", value: "", placeholder: "0", number: { min: 0, step: "any" } },
  { name: "priority", label: "Priority", value: String(job.priority), number: {} }, { name: "max_attempts", label: "Attempts", value: String(job.max_attempts), number: { min: 1 } },
];
const copy = (job) => async ({ args, queue, delay, priority, max_attempts, reason }) => post("/jobs", {
  task: job.task, queue, tags: job.tags.length ? job.tags : undefined, timeout: job.timeout, delay: whole(delay), priority: whole(priority), max_attempts: whole(max_attempts), args: parsed(visible(args), "The arguments"), reason,
});
