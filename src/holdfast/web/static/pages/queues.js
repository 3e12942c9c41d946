import { html, may, post, useData, useTick } from "../lib.js";
import { Action, Badge, Failed, Head, Link, Panel, Spark, Table, duration, jobsPath, number } from "../ui.js";

export default function Queues() {
  const tick = useTick(2);
  const { data, error, reload } = useData("/queues", tick);
  const throughput = useData("/throughput?since=3600&step=120", tick);
  const done = (name) => {
    const values = Array(30).fill(0);
    const now = Date.now();
    for (const one of throughput.data?.items || []) if (one.queue === name) values[Math.max(0, 29 - Math.floor((now - Date.parse(one.at)) / 120000))] += one.succeeded + one.failed + one.retried;
    return values;
  };
  const act = (name, verb) => (given) => post(`/queues/${encodeURIComponent(name)}/${verb}`, given);
  const count = (name, field) => (row) => (row[field] ? html`<${Link} to=${jobsPath({ queue: row.name, status: name })}>${number(row[field])}<//>` : number(row[field]));
  return html`<${Head} title="Queues" /><${Failed} error=${error} /><${Panel}><${Table} label="Queues" rows=${data?.items} rowKey=${(row) => row.name}
    empty=${html`No queue has unfinished or failed jobs. Send a message: <code>holdfast send inbox '{"text": "hello"}'</code>`} columns=${[
      ["Queue", (row) => html`<${Link} to=${jobsPath({ queue: row.name })}>${row.name}<//>`], ["Ready", count("ready", "ready"), "right"], ["Running", count("running", "running"), "right"], ["Scheduled", count("scheduled", "scheduled"), "right"],
      ["Blocked", count("blocked", "blocked"), "right"], ["Failed", count("failed", "failed"), "right"], ["Oldest ready", (row) => duration(row.oldest_ready_age), "right nowrap"],
      ["Out, last hour", (row) => html`<${Spark} values=${done(row.name)} label="Jobs that ended in the last hour" />`],
      ["", (row) => html`<span class="row">${row.paused ? html`<${Badge} state="paused" />` : ""}${may("operator") ? html`<${Action} label=${row.paused ? "Resume" : "Pause"} title=${`${row.paused ? "Resume" : "Pause"} queue ${row.name}`} run=${act(row.name, row.paused ? "resume" : "pause")} done=${reload} />` : ""}</span>`]]} /><//>`;
}
