import { html, may, post, useData, useTick } from "../lib.js";
import { Action, Badge, Failed, Head, JobLink, Panel, Table, Time } from "../ui.js";

export default function Schedules() {
  const { data, error, reload } = useData("/schedules", useTick(2));
  const act = (name, verb) => (given) => post(`/schedules/${encodeURIComponent(name)}/${verb}`, given);
  return html`<${Head} title="Schedules" /><${Failed} error=${error} /><${Panel}><${Table} label="Schedules" rows=${data?.items} rowKey=${(row) => row.name} empty=${html`There are no schedules. Add one: <code>@app.cron("*/5 * * * *")</code>`} columns=${[
    ["Schedule", (row) => row.name], ["When", (row) => html`<code>${row.cron}</code> <span class="muted">${row.tz}</span>`], ["Task", (row) => `${row.task} on ${row.queue}`],
    ["Next", (row) => html`<${Time} at=${row.next_at} />`], ["Last", (row) => html`<${Time} at=${row.last_at} /> ${row.last_job_id ? html`<${JobLink} id=${row.last_job_id} />` : ""}`],
    ["", (row) => html`<span class="row">${row.paused ? html`<${Badge} state="paused" />` : ""}${may("operator") ? html`<${Action} label="Run now" title=${`Run schedule ${row.name} now`} run=${act(row.name, "run")} done=${reload} /><${Action} label=${row.paused ? "Resume" : "Pause"} title=${`${row.paused ? "Resume" : "Pause"} schedule ${row.name}`} run=${act(row.name, row.paused ? "resume" : "pause")} done=${reload} />` : ""}</span>`]]} /><//>`;
}
