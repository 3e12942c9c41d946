import { html, may, post, useData, useTick } from "../lib.js";
import { Action, Badge, Empty, Failed, Head, JobLink, Link, Panel, Time, exact, jobsPath } from "../ui.js";

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const FINE = new Intl.DateTimeFormat(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const LOCAL = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

function Schedule({ schedule, tick, reload }) {
  const times = useData(`/schedules/${encodeURIComponent(schedule.name)}/times`, `${tick} ${schedule.next_at}`);
  const local = (at) => (schedule.cron.startsWith("@every") ? FINE : LOCAL).format(new Date(at));
  const act = (verb) => (given) => post(`/schedules/${encodeURIComponent(schedule.name)}/${verb}`, given);
  const actions = may("operator") ? html`<${Action} label="Run now" title="Run schedule ${schedule.name} now" explain="Enqueues a job. The next run stays as it is." run=${act("run")} done=${reload} said=${(made) => `Enqueued job ${made.id}`} />
    <${Action} label=${schedule.paused ? "Resume" : "Pause"} title=${`${schedule.paused ? "Resume" : "Pause"} schedule ${schedule.name}`} explain=${schedule.paused ? "Runs that were missed are not made up." : ""} run=${act(schedule.paused ? "resume" : "pause")} done=${reload} />` : "";
  return html`<${Panel} title=${schedule.name} more=${html`${schedule.paused ? html`<${Badge} state="paused" />` : ""}${actions}`}>
    <p><b>${schedule.in_words}</b> <span class="muted">${schedule.tz}</span></p>
    <dl class="facts small"><dt>Expression</dt><dd><code>${schedule.cron}</code></dd><dt>Task</dt><dd><${Link} to=${jobsPath({ task: schedule.task })}>${schedule.task}<//> on ${schedule.queue}</dd>
      <dt>Next</dt><dd>${schedule.paused ? "paused" : times.data ? (times.data.upcoming.length ? times.data.upcoming.map((at, index) => html`<div title=${exact(at)}>${local(at)}${index ? "" : html` <span class="muted"><${Time} at=${at} /></span>`}</div>`) : "when a worker has calculated it") : "…"}</dd>
      <dt>Last runs</dt><dd>${times.data?.runs.length ? times.data.runs.map((run) => html`<div class="row"><span title=${exact(run.at)}>${local(run.at)}</span>${run.job_id ? html`<${JobLink} id=${run.job_id} />` : html`<span class="muted">skipped: its key was taken</span>`}${run.job_id ? html`<${Badge} state=${run.status || "deleted"} />` : ""}</div>`) : schedule.last_at ? html`<${Time} at=${schedule.last_at} /> ${schedule.last_job_id ? html`<${JobLink} id=${schedule.last_job_id} />` : ""}` : "never"}</dd></dl><//>`;
}

export default function Schedules() {
  const tick = useTick(2);
  const { data, error, reload } = useData("/schedules", tick);
  return html`<${Head} title="Schedules">${data?.items.length ? html`<span class="muted small">Times are in ${ZONE}</span>` : ""}<//><${Failed} error=${error} />
    ${data || error ? "" : html`<p class="loading">Loading…</p>`}${data && !data.items.length ? html`<${Panel}><${Empty}><b>There are no schedules</b>Add one: <code>@app.cron("*/5 * * * *")</code><//><//>` : ""}
    <div class="grid">${(data?.items || []).map((one) => html`<${Schedule} key=${one.name} schedule=${one} tick=${tick} reload=${reload} />`)}</div>`;
}
