import { html, may, post, useData, useTick } from "../lib.js";
import { Action, Age, Badge, Failed, Head, Link, Name, Panel, Spark, Table, Time, counted, jobsPath, number } from "../ui.js";

const STEP = 120, STEPS = 30; // an hour

// What went in and out of each queue per minute, by its name.
function rates(points) {
  const found = {};
  const now = Date.now();
  for (const one of points || []) {
    const queue = (found[one.queue] ||= { into: Array(STEPS).fill(0), out: Array(STEPS).fill(0) });
    const at = STEPS - 1 - Math.floor((now - Date.parse(one.at)) / 1000 / STEP);
    if (at < 0) continue;
    queue.into[at] += (one.enqueued * 60) / STEP;
    queue.out[at] += ((one.succeeded + one.failed + one.cancelled) * 60) / STEP;
  }
  return found;
}

const per = (values) => { const sum = values.slice(-5).reduce((a, b) => a + b, 0) / 5; return sum < 10 ? sum.toFixed(sum ? 1 : 0) : number(Math.round(sum)); };

const since = (age) => (age === null ? null : new Date(Date.now() - age * 1000).toISOString());

export default function Queues() {
  const tick = useTick(2);
  const { data, error, reload } = useData("/queues", tick);
  const throughput = useData(`/throughput?since=${STEP * STEPS}&step=${STEP}`, tick);
  const workers = useData("/workers", tick);
  const flows = rates(throughput.data?.items);
  const live = (workers.data?.items || []).filter((one) => one.alive);
  const act = (name, verb) => (given) => post(`/queues/${encodeURIComponent(name)}/${verb}`, given);
  const count = (field) => (row) => (row[field] ? html`<${Link} to=${jobsPath({ queue: row.name, status: field })}>${number(row[field])}<//>` : html`<span class="muted">${number(row[field])}</span>`);
  const flow = (row, kind, words) => {
    const values = flows[row.name]?.[kind] || Array(STEPS).fill(0);
    const both = flows[row.name] ? Math.max(...flows[row.name].into, ...flows[row.name].out) : 0;
    return html`<span class="sparks"><${Spark} kind=${kind === "into" ? "in" : "out"} values=${values} top=${both} label="Jobs ${words} per minute, in the last hour" /><span class="small muted nowrap">${per(values)} ${words}</span></span>`;
  };
  const served = (row) => {
    const serving = live.filter((one) => !one.queues || one.queues.includes(row.name));
    if (!serving.length) return html`<span class="nowrap ${row.ready ? "bad" : "muted"}">no worker</span>`;
    const limits = serving.map((one) => one.limits[row.name]).filter((limit) => limit !== undefined);
    const slots = serving.reduce((sum, one) => sum + Math.min(one.concurrency, one.limits[row.name] ?? one.concurrency), 0);
    return html`<span title=${counted(serving.length, "worker")}>${number(row.running)} / ${number(slots)}</span>${limits.length ? html`<div class="muted small nowrap">limit ${limits.join(", ")}</div>` : ""}`;
  };
  return html`<${Head} title="Queues" /><${Failed} error=${error} /><${Panel} plain><${Table} label="Queues" rows=${data?.items} error=${error} rowKey=${(row) => row.name}
    empty=${html`<b>No queue has unfinished or failed jobs</b>Send a message: <code>holdfast send inbox '{"text": "hello"}'</code>`} columns=${[
      ["Queue", (row) => html`<${Link} to=${jobsPath({ queue: row.name })}><${Name} text=${row.name} /><//>${row.paused ? html`<div class="small reason"><${Badge} state="paused" /> <span class="muted">by ${row.paused_by || "plain SQL"} <${Time} at=${row.paused_at} />${row.pause_reason ? `: ${row.pause_reason}` : ""}</span></div>` : ""}`],
      ["Ready", count("ready"), "right"], ["Oldest", (row) => html`<span class="muted"><${Age} seconds=${row.oldest_ready_age} since=${since(row.oldest_ready_age)} /></span>`, "right nowrap"], ["Running", served, "right"],
      ["Scheduled", count("scheduled"), "right"], ["Blocked", count("blocked"), "right"], ["Failed", count("failed"), "right"],
      ["In and out per minute", (row) => html`${flow(row, "into", "in")}${flow(row, "out", "out")}`],
      ["", (row) => (may("operator") ? html`<span class="actions"><${Action} label=${row.paused ? "Resume" : "Pause"} title=${`${row.paused ? "Resume" : "Pause"} queue ${row.name}`} explain=${row.paused ? "" : "No worker or consumer takes jobs of it until it is resumed. Running jobs continue."} run=${act(row.name, row.paused ? "resume" : "pause")} done=${reload} /></span>` : "")]]} /><//>`;
}
