// One job: its state in words, what can be done, its timeline, arguments and result.
import { call, go, html, may, post, useData, useTick } from "../lib.js";
import { Action, Badge, Failed, Head, Json, Link, Panel, Time, duration, exact, jobsPath } from "../ui.js";

const UNFINISHED = ["blocked", "scheduled", "ready", "running"];

export default function Job({ id }) {
  const tick = useTick(1);
  const job = useData(`/jobs/${id}`, tick);
  const explain = useData(`/jobs/${id}/explain`, tick);
  const history = useData(`/jobs/${id}/history`, tick);
  const one = job.data;
  if (!one) return html`<${Head} title="Job ${id}" /><${Failed} error=${job.error} />${job.error ? html`<p><${Link} to="/jobs">All jobs<//></p>` : html`<p class="loading">Loading…</p>`}`;
  const again = () => { job.reload(); explain.reload(); history.reload(); };
  const act = (verb) => (given) => post(`/jobs/${id}/${verb}`, given);
  const open = UNFINISHED.includes(one.status);
  return html`<${Head} title="Job ${id}"><${Badge} state=${one.status} />
      ${may("operator") ? html`
        ${["failed", "cancelled"].includes(one.status) ? html`<${Action} label="Retry" primary run=${act("retry")} done=${again} />` : ""}
        ${one.status === "scheduled" ? html`<${Action} label="Run now" primary run=${act("run-now")} done=${again} />` : ""}
        ${open && one.task ? html`<${Action} label="Complete" run=${complete(id)} done=${again} fields=${[{ name: "result", label: "Result, as JSON", area: true, value: "null" }]} />
          <${Action} label="Fail" run=${act("fail")} done=${again} fields=${[{ name: "code", label: "Error code", value: "REJECTED:BY_HAND", required: true }, { name: "detail", label: "Detail" }]} />` : ""}
        ${open ? html`<${Action} label="Cancel" danger run=${act("cancel")} done=${again} />` : ""}
        ${one.task && !one.hidden ? html`<${Action} label="Copy" title="Edit and enqueue a copy" fields=${[{ name: "args", label: "Arguments, as JSON", area: true, value: JSON.stringify(one.args, null, 2) }]} run=${copy(one)} done=${(made) => go(`/jobs/${made.id}`)} />` : ""}` : ""}
      ${may("admin") && !open ? html`<${Action} label="Delete" danger run=${(given) => call(`/jobs/${id}`, { method: "DELETE", body: given })} done=${() => go("/jobs")} />` : ""}<//>
    <${Failed} error=${job.error} />
    ${explain.data ? html`<p class="note"><b>${explain.data.reason}</b>${explain.data.advice ? html`<br />${explain.data.advice}` : ""}</p>` : ""}
    <div class="grid">
      <${Panel} title="Facts"><dl class="facts">
        <dt>Task</dt><dd>${one.task ? html`<${Link} to=${jobsPath({ task: one.task })}>${one.task}<//>` : "message"}</dd><dt>Queue</dt><dd><${Link} to=${jobsPath({ queue: one.queue })}>${one.queue}<//></dd>
        <dt>Attempt</dt><dd>${one.attempt} of ${one.max_attempts}</dd><dt>Priority</dt><dd>${one.priority}</dd>
        <dt>Created</dt><dd><${Time} at=${one.created_at} /></dd><dt>Due</dt><dd><${Time} at=${one.run_at} /></dd><dt>Started</dt><dd><${Time} at=${one.started_at} /></dd><dt>Finished</dt><dd><${Time} at=${one.finished_at} /></dd>
        ${one.started_at && one.finished_at ? html`<dt>Took</dt><dd>${duration((Date.parse(one.finished_at) - Date.parse(one.started_at)) / 1000)}</dd>` : ""}
        ${one.key ? html`<dt>Key</dt><dd>${one.key}</dd>` : ""}${one.tags.length ? html`<dt>Tags</dt><dd>${one.tags.join(", ")}</dd>` : ""}
        ${one.expires_at ? html`<dt>Expires</dt><dd><${Time} at=${one.expires_at} /></dd>` : ""}${one.timeout ? html`<dt>Timeout</dt><dd>${duration(one.timeout)}</dd>` : ""}${one.worker ? html`<dt>Worker</dt><dd>${one.worker}</dd>` : ""}
        ${one.chain_id !== id || one.chain_index ? html`<dt>Chain</dt><dd>step ${one.chain_index + 1} of chain <${Link} to="/jobs/${one.chain_id}">${one.chain_id}<//></dd>` : ""}
        ${one.batch_id ? html`<dt>Batch</dt><dd><${Link} to=${jobsPath({ batch: String(one.batch_id) })}>${one.batch_id}<//></dd>` : ""}
        ${one.progress !== null ? html`<dt>Progress</dt><dd><progress value=${one.progress} max="1"></progress> ${Math.round(one.progress * 100)} % ${one.progress_text || ""}</dd>` : ""}
      </dl><//>
      <${Panel} title="Arguments">${one.hidden ? html`<p class="muted">Hidden from viewers.</p>` : one.unreadable ? html`<p class="note error">${one.unreadable}</p>` : html`<${Json} value=${one.args} />`}<//>
      ${one.result !== null ? html`<${Panel} title="Result"><${Json} value=${one.result} /><//>` : ""}
      ${one.error_code ? html`<${Panel} title="Last error" wide><p><${Link} to=${jobsPath({ status: "failed", error: one.error_code })}><b>${one.error_code}</b><//> ${one.error_detail || ""}</p><${Traceback} code=${one.error_code} task=${one.task} /><//>` : ""}
      <${Panel} title="Timeline" wide><${Failed} error=${history.error} /><ol class="timeline">${(history.data?.items || []).map((entry) => html`<li><span class="muted" title=${exact(entry.at)}><${Time} at=${entry.at} /></span><div>
        <b>${entry.kind === "attempt" ? `attempt ${entry.attempt}: ${entry.name}` : entry.name}</b> ${entry.actor ? html`<span class="muted">by ${entry.actor}</span>` : ""} ${details(entry.detail)}</div></li>`)}</ol><//>
    </div>`;
}

function details(detail) {
  const shown = Object.entries(detail || {}).filter(([, value]) => value !== null && value !== "");
  return shown.length ? html`<div class="muted small">${shown.map(([name, value]) => `${name} ${typeof value === "string" && /^\d{4}-\d\d-\d\dT/.test(value) ? exact(value) : typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ")}</div>` : "";
}

function Traceback({ code, task }) {
  const found = useData(`/failures?${new URLSearchParams({ limit: 100, ...(task ? { task } : {}) })}`);
  const one = found.data?.items.find((item) => item.error_code === code && item.traceback);
  return one ? html`<p class="muted small">${one.count} times, first <${Time} at=${one.first_seen} />, last <${Time} at=${one.last_seen} /></p><pre>${one.traceback}</pre>` : null;
}

const parsed = (text, what) => {
  try { return JSON.parse(text); } catch (error) { throw new Error(`${what} must be JSON: ${error.message}`); }
};
const complete = (id) => async ({ result, reason }) => post(`/jobs/${id}/complete`, { result: parsed(result, "The result"), reason });
const copy = (job) => async ({ args }) => post("/jobs", { task: job.task, queue: job.queue, priority: job.priority, max_attempts: job.max_attempts, args: parsed(args, "The arguments") });
