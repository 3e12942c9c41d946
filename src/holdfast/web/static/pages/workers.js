import { html, useData, useEffect, useState, useTick } from "../lib.js";
import { Badge, Failed, Head, Panel, Table, Time } from "../ui.js";

export default function Workers() {
  const [turn, setTurn] = useState(0);
  useEffect(() => { const timer = setInterval(() => document.hidden || setTurn((n) => n + 1), 5000); return () => clearInterval(timer); }, []);
  const { data, error } = useData("/workers", `${useTick(2)} ${turn}`);
  return html`<${Head} title="Workers" /><${Failed} error=${error} /><${Panel}><${Table} label="Workers" rows=${data?.items} empty=${html`No worker has run yet. Start one: <code>holdfast worker module:app</code>`} columns=${[
    ["Worker", (row) => html`<code>${row.id}</code>`], ["State", (row) => html`<${Badge} state=${row.state} />`], ["Running", (row) => `${row.running} / ${row.concurrency}`, "right"], ["Process", (row) => `${row.host} ${row.pid}`],
    ["Queues", (row) => (row.queues ? row.queues.join(", ") : "all")], ["Started", (row) => html`<${Time} at=${row.started_at} />`], ["Heartbeat", (row) => html`<${Time} at=${row.heartbeat_at} />`], ["Ended", (row) => html`<${Time} at=${row.ended_at} />`]]} /><//>`;
}
