import { go, html, may, post, query, useData, useTick } from "../lib.js";
import { Action, Badge, Bar, Failed, Head, Link, Pager, Panel, Segments, Table, Time, counted, duration, jobsPath, number, seconds } from "../ui.js";

const STATES = [["All", ""], ["Open", "open"], ["Running", "running"], ["Done", "done"], ["Abandoned", "abandoned"]];

export default function Batches({ parameters }) {
  const tick = useTick(2);
  const chosen = Math.max(0, STATES.findIndex(([, state]) => state === (parameters.state || "")));
  const { data, error, reload } = useData(`/batches${query({ state: STATES[chosen][1], cursor: parameters.cursor })}`, tick);
  const act = (id, verb) => (given) => post(`/batches/${id}/${verb}`, given);
  const pending = (row) => row.total - row.finished;
  const share = (row) => (row.total ? `${Math.floor((100 * row.finished) / row.total)} %` : "empty");
  const words = (row) => `${number(row.finished)} of ${number(row.total)}${row.more ? "+" : ""} finished, ${number(row.failed)} failed`;
  return html`<${Head} title="Batches"><${Segments} label="State" options=${STATES} chosen=${chosen} choose=${(index) => go(`/batches${query({ state: STATES[index][1] })}`)} /><//><${Failed} error=${error} />
    <${Panel} plain><${Table} label="Batches" rows=${data?.items} error=${error} empty=${html`<b>There are no batches</b>Make one: <code>with app.batch(on_done=report) as batch: …</code>`} columns=${[
    ["Batch", (row) => html`<${Link} to=${jobsPath({ batch: String(row.id) })}>${row.id}<//>`], ["State", (row) => html`<${Badge} state=${row.abandoned ? "abandoned" : row.state} />`],
    ["Progress", (row) => html`<${Bar} label=${words(row)} parts=${[["ok", row.succeeded], ["bad", row.failed], ["warn", row.cancelled], ["part", row.running], ["rest", pending(row) - row.running]]} /><span class="muted small">${share(row)}</span>`],
    ["Members", (row) => `${number(row.total)}${row.more ? "+" : ""}`, "right"], ["Succeeded", (row) => number(row.succeeded), "right"],
    ["Failed", (row) => (row.failed ? html`<${Link} to=${jobsPath({ batch: String(row.id), status: "failed" })}>${number(row.failed)}<//>` : html`<span class="muted">0</span>`), "right"], ["Created", (row) => html`<${Time} at=${row.created_at} />`], ["Took", (row) => duration(seconds(row.created_at, row.done_at)), "right nowrap"],
    ["", (row) => (may("operator") ? html`<span class="actions">${pending(row) ? html`<${Action} label="Cancel" danger title=${`Cancel batch ${row.id}`} explain="Its unfinished members are cancelled." run=${act(row.id, "cancel")} done=${reload} said=${(made) => `Cancelled ${counted(made.jobs, "job")}`} />` : ""}${row.failed ? html`<${Action} label="Retry" title=${`Retry the failed members of batch ${row.id}`} run=${act(row.id, "retry")} done=${reload} said=${(made) => `Retried ${counted(made.jobs, "job")}`} />` : ""}</span>` : "")]]} /><//>
    ${data && (data.next || data.previous) ? html`<${Pager} page=${data} parameters=${{ state: parameters.state }} path="/batches" />` : ""}`;
}
