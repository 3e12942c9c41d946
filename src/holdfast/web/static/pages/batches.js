import { html, may, post, query, useData, useTick } from "../lib.js";
import { Action, Badge, Bar, Failed, Head, Link, Pager, Panel, Table, Time, jobsPath, number } from "../ui.js";

export default function Batches({ parameters }) {
  const tick = useTick(2);
  const { data, error, reload } = useData(`/batches${query({ cursor: parameters.cursor })}`, tick);
  const act = (id, verb) => (given) => post(`/batches/${id}/${verb}`, given);
  const pending = (row) => row.total - row.finished;
  const share = (row) => (row.total ? `${Math.floor((100 * row.finished) / row.total)} %` : "empty");
  return html`<${Head} title="Batches" /><${Failed} error=${error} /><${Panel}><${Table} label="Batches" rows=${data?.items} empty=${html`There are no batches. Make one: <code>with app.batch(on_done=report) as batch: …</code>`} columns=${[
    ["Batch", (row) => html`<${Link} to=${jobsPath({ batch: String(row.id) })}>${row.id}<//>`], ["State", (row) => html`<${Badge} state=${row.abandoned ? "abandoned" : row.state} />`],
    ["Progress", (row) => html`<${Bar} label=${share(row)} parts=${[["ok", row.succeeded], ["bad", row.failed + row.cancelled], ["part", row.running], ["rest", pending(row) - row.running]]} /><span class="muted small">${share(row)}</span>`],
    ["Members", (row) => `${number(row.total)}${row.more ? "+" : ""}`, "right"], ["Succeeded", (row) => number(row.succeeded), "right"],
    ["Failed", (row) => (row.failed ? html`<${Link} to=${jobsPath({ batch: String(row.id), status: "failed" })}>${number(row.failed)}<//>` : "0"), "right"], ["Created", (row) => html`<${Time} at=${row.created_at} />`], ["Done", (row) => html`<${Time} at=${row.done_at} />`],
    ["", (row) => (may("operator") ? html`<span class="row">${pending(row) ? html`<${Action} label="Cancel" danger title=${`Cancel batch ${row.id}`} run=${act(row.id, "cancel")} done=${reload} />` : ""}${row.failed ? html`<${Action} label="Retry" title=${`Retry the failed members of batch ${row.id}`} run=${act(row.id, "retry")} done=${reload} />` : ""}</span>` : "")]]} /><//>
    <${Pager} page=${data} parameters=${{}} path="/batches" />`;
}
