// External jobs that wait for a person: what is asked, until when, and the decision.
import { html, may, post, query, useData, useTick } from "../lib.js";
import { Action, Empty, Failed, Head, JobLink, Json, Pager, Panel, Time } from "../ui.js";

const parsed = (text) => {
  try { return JSON.parse(text); } catch (error) { throw new Error(`The answer must be JSON: ${error.message}`); }
};

function Item({ item, reload }) {
  const name = `${item.task} ${item.id}`;
  const complete = ({ result, reason }) => post(`/jobs/${item.id}/complete`, { result: parsed(result), reason });
  const reject = ({ code, detail, reason }) => post(`/jobs/${item.id}/fail`, { code, detail, reason });
  return html`<${Panel}><div class="inbox-item">
    <div><h2>${item.task}</h2><div class="muted small">job <${JobLink} id=${item.id} /> on ${item.queue}, created <${Time} at=${item.created_at} />${item.key ? `, key ${item.key}` : ""}${item.tags.length ? `, ${item.tags.join(", ")}` : ""}</div>
      ${item.timeout_at ? html`<div class="small">Deadline <b><${Time} at=${item.timeout_at} /></b></div>` : ""}</div>
    ${may("operator") ? html`<span class="actions"><${Action} label="Complete" primary title="Complete ${name}" fields=${[{ name: "result", label: "Answer, as JSON", area: true, value: "true" }]} run=${complete} done=${reload} />
      <${Action} label="Reject" danger title="Reject ${name}" fields=${[{ name: "code", label: "Error code", value: "REJECTED:BY_HAND", required: true }, { name: "detail", label: "Comment" }]} run=${reject} done=${reload} /></span>` : html`<span></span>`}
    ${item.hidden ? html`<p class="muted">The payload is hidden from viewers.</p>` : item.unreadable ? html`<p class="bad">${item.unreadable}</p>` : item.args === null ? html`<p class="muted small">No payload.</p>` : html`<${Json} value=${item.args} label="Payload of ${name}" />`}</div><//>`;
}

export default function Inbox({ parameters }) {
  const { data, error, reload } = useData(`/inbox${query({ cursor: parameters.cursor })}`, useTick(2));
  return html`<${Head} title="Inbox" /><${Failed} error=${error} />${data || error ? "" : html`<p class="loading">Loading…</p>`}
    ${data && !data.items.length ? html`<${Panel}><${Empty}><b>Nothing waits for a decision</b>Ask for one: <code>app.external("approve", {"amount": 7})</code><//><//>` : ""}
    <div class="stack">${(data?.items || []).map((item) => html`<${Item} key=${item.id} item=${item} reload=${reload} />`)}</div>
    ${data && (data.next || data.previous) ? html`<${Pager} page=${data} parameters=${{}} path="/inbox" />` : ""}`;
}
