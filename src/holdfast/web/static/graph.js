// The graph around a job, drawn as SVG: blockers to the left, what waits for it to the right, its chain in a row.
import { ROOT, html } from "./lib.js";

const WIDTH = 190, HEIGHT = 48, COLUMN = 246, ROW = 62, PAD = 8;
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Gives each node a column: after all of its sources. The graph has no cycles; the bound is for damaged data.
function layers(nodes, edges) {
  const column = new Map(nodes.map((node) => [node.id, 0]));
  for (let round = 0; round < nodes.length; round += 1) {
    let moved = false;
    for (const { source, target } of edges) {
      if (column.has(source) && column.has(target) && column.get(target) <= column.get(source)) {
        column.set(target, column.get(source) + 1);
        moved = true;
      }
    }
    if (!moved) break;
  }
  return column;
}

export function Graph({ graph, here }) {
  const { nodes, edges } = graph;
  const column = layers(nodes, edges);
  const rows = {};
  const place = new Map();
  for (const node of [...nodes].sort((a, b) => (a.id === here ? -1 : b.id === here ? 1 : a.id - b.id))) {
    const at = column.get(node.id);
    rows[at] = (rows[at] || 0) + 1;
    place.set(node.id, { x: PAD + at * COLUMN, y: PAD + (rows[at] - 1) * ROW });
  }
  const width = (Math.max(...column.values()) + 1) * COLUMN - (COLUMN - WIDTH) + 2 * PAD;
  const height = Math.max(...Object.values(rows)) * ROW - (ROW - HEIGHT) + 2 * PAD;
  const path = ({ source, target }) => {
    const from = place.get(source), to = place.get(target);
    if (!from || !to) return "";
    const x1 = from.x + WIDTH, y1 = from.y + HEIGHT / 2, x2 = to.x, y2 = to.y + HEIGHT / 2, half = Math.max(24, (x2 - x1) / 2);
    return `M${x1},${y1} C${x1 + half},${y1} ${x2 - half},${y2} ${x2 - 5},${y2}`;
  };
  const words = `${nodes.length} jobs and ${edges.length} dependencies`;
  return html`<div class="graph" tabindex="0" role="region" aria-label="Graph of ${words}"><svg width=${width} height=${height} viewBox="0 0 ${width} ${height}">
    <defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="var(--muted)" /></marker></defs>
    ${edges.map((edge) => html`<path class="edge ${edge.kind}" d=${path(edge)} marker-end="url(#arrow)"><title>${edge.source} ${edge.kind === "continues" ? "continued with" : "blocks"} ${edge.target}</title></path>`)}
    ${nodes.map((node) => {
      const { x, y } = place.get(node.id);
      const label = `job ${node.id}, ${node.task || "message"}, ${node.status}`;
      const box = html`<g class="node ${node.id === here ? "here" : ""}" transform="translate(${x},${y})"><title>${label}${node.error_code ? `, ${node.error_code}` : ""}</title>
        <rect width=${WIDTH} height=${HEIGHT} rx="8" /><g class="s-${node.status}"><circle cx="15" cy="17" r="4" /></g>
        <text x="27" y="21">${node.id} ${cut(node.task || "message", 20)}</text>
        <text class="sub" x="27" y="38">${node.status}${node.external ? ", external" : ""}${node.more ? `, ${node.more} more` : ""}</text></g>`;
      return node.status === "deleted" || node.id === here ? box : html`<a href="${ROOT}/jobs/${node.id}" aria-label=${label}>${box}</a>`;
    })}</svg></div>`;
}
