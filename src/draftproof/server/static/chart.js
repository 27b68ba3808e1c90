// The break-even picture: what a step with m rows costs, and what the steps of an answer brought.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320, HEIGHT = 200, LEFT = 38, RIGHT = 10, TOP = 10, BOTTOM = 34;
const MOST = 6; // log2 of the largest number of rows shown

function make(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const x = (m) => LEFT + (WIDTH - LEFT - RIGHT) * Math.min(Math.log2(m), MOST) / MOST;
const y = (cost) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * Math.min(Math.log2(cost), MOST) / MOST;

/** V at any m, between the measured ones. costs: {"1": 1, "2": 1.3, ...} */
export function costAt(costs, m) {
  const known = Object.keys(costs).map(Number).sort((a, b) => a - b);
  const above = known.find((k) => k >= m) ?? known[known.length - 1];
  const below = [...known].reverse().find((k) => k <= m) ?? known[0];
  if (above === below) return costs[above];
  const share = (m - below) / (above - below);
  return costs[below] + share * (costs[above] - costs[below]);
}

/** costs: V(m). rows, tokens: of a verify step of the answer on average; null without any. */
export function breakEven(costs, rows, tokens) {
  const figure = document.createElement("figure");
  figure.className = "chart";
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  for (let power = 0; power <= MOST; power++) {
    const m = 2 ** power;
    svg.append(
      make("line", { class: "grid", x1: x(m), x2: x(m), y1: TOP, y2: HEIGHT - BOTTOM }),
      make("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(m), y2: y(m) }),
      make("text", { x: x(m), y: HEIGHT - BOTTOM + 13, "text-anchor": "middle" }, m),
      make("text", { x: LEFT - 5, y: y(m) + 4, "text-anchor": "end" }, m),
    );
  }
  const points = Object.entries(costs).map(([m, cost]) => `${x(Number(m))},${y(cost)}`);
  svg.append(
    make("polyline", { class: "cost", points: points.join(" ") }),
    make("text", { x: WIDTH / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "rows of a step, m"),
  );
  let words = "V(m): the time of a step with m rows, in plain steps, on this machine.";
  if (rows !== null) {
    const cost = costAt(costs, rows);
    const verdict = tokens > cost ? "above the line: it pays" : "below the line: it doesn't pay";
    svg.append(make("circle", { class: "here", cx: x(rows), cy: y(Math.max(tokens, 1)), r: 5 }));
    words += ` The dot: this answer's verify steps had ${rows.toFixed(1)} rows, cost `
      + `${cost.toFixed(2)} and brought ${tokens.toFixed(2)} tokens each; ${verdict}.`;
  } else {
    words += " This answer has no verify step.";
  }
  svg.setAttribute("aria-label", words);
  const caption = document.createElement("figcaption");
  caption.textContent = words;
  figure.append(svg, caption);
  return figure;
}
